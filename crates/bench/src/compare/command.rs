//! `dormouse-bench compare`: its arguments, and how it ends.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::error::ErrorKind;
use serde::Serialize;

use super::{Comparison, is_read};
use crate::output::replace;
use crate::report::SCHEMA;

/// Compare runs of the bench: what got worse, what got better, and what is uncertain
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dormouse-bench keys --quick --runs 10 -o old/
  dormouse-bench keys --quick --runs 10 -o new/     with the other build
  dormouse-bench compare old/ new/ --fail-on-regression

A row got worse or better if a rank test over its processes says so at a risk of 1 %, corrected for
all rows, and the change is past the threshold. One process a side shows nothing: what differs
between processes is larger than what differs within one.")]
pub(crate) struct CompareArgs {
    /// Reports as `dormouse-bench -o` writes them, files or directories: the first is compared with
    /// each of the others
    #[arg(value_name = "PATH", num_args = 2.., required = true)]
    paths: Vec<PathBuf>,

    /// Changes below it are no finding
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent)]
    threshold: f64,

    /// Exit with 1 if a row got worse, is lost or wrong, or if too few processes ran to decide
    #[arg(long)]
    fail_on_regression: bool,

    /// Compare runs of different machines or kernels, too
    #[arg(long)]
    across_machines: bool,

    /// Also write a page of HTML
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// A comparison with the version of its JSON in front.
#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    #[serde(flatten)]
    comparison: &'a Comparison,
}

/// Prints the comparison.
///
/// # Errors
///
/// Where reports cannot be read or compared, or the comparison cannot be written; and behind the
/// printed comparison, where it shuts the gate that `args` ask for.
pub(crate) fn compare(args: &CompareArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if let Some(html) = &args.html {
        if args.paths.iter().any(|path| is_in(html, path)) {
            let message = format!("{} is one of the reports: name another file with --html", html.display());
            return Err(clap::Error::raw(ErrorKind::ValueValidation, message).into());
        }
        if html.exists() && !html.is_file() {
            bail!("{} is no file and is not replaced: name another with --html", html.display());
        }
    }
    let comparison = Comparison::of(&args.paths, args.threshold, args.across_machines)?;
    if let Some(html) = &args.html {
        replace(html, &comparison.html())?;
    }
    let text = if args.json {
        serde_json::to_string(&Document { schema: SCHEMA, comparison: &comparison })?
    } else {
        comparison.text()
    };
    writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()).context("cannot print the comparison")?;
    let Some(reason) = comparison.gate_failure().filter(|_| args.fail_on_regression) else { return Ok(()) };
    match comparison.processes_needed {
        Some(needed) => bail!("compare: {reason}; --runs {needed} has processes enough"),
        None => bail!("compare: {reason}"),
    }
}

/// Whether a file is that one, or would be read as one of that directory.
fn is_in(file: &Path, path: &Path) -> bool {
    let place = |path: &Path| path.canonicalize().ok();
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_there = is_read(file) && place(parent).is_some_and(|parent| place(path) == Some(parent));
    is_there || place(file).is_some_and(|file| place(path) == Some(file))
}

/// A percentage such as `5%` or `2.5`.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let percent = number.parse().ok().filter(|percent| (0.0..=1e6).contains(percent));
    percent.ok_or_else(|| "say a number of percent, as in 5%".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_numbers_of_percent() {
        assert_eq!(["5%", "2.5", "0"].map(|text| percent(text).ok()), [Some(5.0), Some(2.5), Some(0.0)]);
        assert!(["", "%", "-1%", "NaN", "inf", "5 per cent"].iter().all(|text| percent(text).is_err()));
    }
}
