//! Where the JSON goes beside standard output: a file, or a directory with a file a workload.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::report::BenchReport;

/// How each report begins.
const REPORT: &[u8] = b"{\"schema\":";

/// Written as the reports come, so that finished reports survive an interrupted run.
#[derive(Debug)]
pub(crate) struct Output<'a> {
    path: &'a Path,
    /// Of the workloads that will run.
    names: &'a [&'static str],
    directory: bool,
    /// Whether the name is that of a JSON file.
    is_json: bool,
    /// Reports of this run so far; a single file holds one a line.
    lines: String,
}

impl<'a> Output<'a> {
    /// For reports of the workloads `names` at `path`: a directory if it is one, ends like one, or
    /// is for several workloads and not called a JSON file.
    pub(crate) fn new(path: &'a Path, names: &'a [&'static str]) -> Self {
        let is_json = path.extension().is_some_and(|extension| extension == "json" || extension == "jsonl");
        let directory = path.is_dir()
            || path.as_os_str().as_encoded_bytes().ends_with(b"/")
            || (names.len() > 1 && !is_json);
        Self { path, names, directory, is_json, lines: String::new() }
    }

    /// Finds out before the measuring, not after it, whether every report can be written.
    pub(crate) fn prepare(&self) -> anyhow::Result<()> {
        if self.directory {
            fs::create_dir_all(self.path)
                .with_context(|| format!("cannot make the directory {} of -o", self.path.display()))?;
        } else if !self.is_json {
            bail!("-o {}: name a file that ends in .json, or a directory", self.path.display());
        }
        for name in self.names {
            let path = self.file_of(name);
            try_to_write(&path)
                .with_context(|| format!("cannot write {}, which -o asks for", path.display()))?;
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, report: &BenchReport) -> anyhow::Result<()> {
        let json = serde_json::to_string(report).context("cannot turn the report into JSON")?;
        if self.directory {
            self.lines.clear();
        }
        self.lines.push_str(&json);
        self.lines.push('\n');
        let path = self.file_of(&report.bench);
        // An interrupt may come at any time: the name stands for the old reports or for the new
        // ones.
        let unfinished = path.with_extension("unfinished");
        fs::write(&unfinished, &self.lines)
            .and_then(|()| fs::rename(&unfinished, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn file_of(&self, name: &str) -> PathBuf {
        if self.directory { self.path.join(format!("{name}.json")) } else { self.path.to_owned() }
    }
}

/// Whether a report can be written to `path`; neither changes a file nor leaves a new one. A file
/// that is no report is refused.
fn try_to_write(path: &Path) -> io::Result<()> {
    let is_new = !path.try_exists()?;
    if !is_new {
        let mut start = Vec::new();
        File::open(path)?.take(REPORT.len() as u64).read_to_end(&mut start)?;
        if !start.is_empty() && start != REPORT {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "what is there is no report of a bench",
            ));
        }
    }
    OpenOptions::new().append(true).create(true).open(path)?;
    if is_new { fs::remove_file(path) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::SCHEMA;
    use crate::row::Params;

    fn report(name: &str) -> BenchReport {
        BenchReport {
            schema: SCHEMA,
            bench: name.to_owned(),
            machine: Machine::here(),
            params: Params::new(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    const KEYS: &[&str] = &["keys"];
    const ALL: &[&str] = &["keys", "poll"];

    fn refused(path: &Path, names: &[&'static str]) -> String {
        format!("{:#}", Output::new(path, names).prepare().unwrap_err())
    }

    #[test]
    fn directories_get_files_and_files_get_lines() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("reports.2026");
        let mut many = Output::new(&base, ALL);
        many.prepare().unwrap();
        assert_eq!(fs::read_dir(&base).unwrap().count(), 0, "trying leaves nothing");
        many.write(&report("keys")).unwrap();
        many.write(&report("poll")).unwrap();
        let one = base.join("all.json");
        let mut single = Output::new(&one, ALL);
        single.prepare().unwrap();
        single.write(&report("keys")).unwrap();
        single.write(&report("poll")).unwrap();
        let lines = |path: &Path| fs::read_to_string(path).unwrap().lines().count();
        assert_eq!(lines(&base.join("keys.json")), 1);
        assert_eq!(lines(&base.join("poll.json")), 1);
        assert_eq!(lines(&one), 2);
    }

    #[test]
    fn an_old_report_stays_until_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.json");
        let old = serde_json::to_string(&report("keys")).unwrap();
        fs::write(&path, &old).unwrap();
        Output::new(directory.path(), KEYS).prepare().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), old);
    }

    #[test]
    fn a_file_that_is_no_report_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let (users, precious) = (directory.path().join("passwd"), directory.path().join("precious.json"));
        for (path, reason) in [(&users, "ends in .json"), (&precious, "no report of a bench")] {
            fs::write(path, "of somebody else").unwrap();
            assert!(refused(path, KEYS).contains(reason));
            assert_eq!(fs::read_to_string(path).unwrap(), "of somebody else");
        }
    }

    #[test]
    fn an_unwritable_place_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        fs::create_dir(directory.path().join("poll.json")).unwrap();
        let missing = directory.path().join("missing/x.json");
        for (path, names, named) in [
            (file.as_path(), ALL, "file"),
            (&file.join("below/"), KEYS, "file/below"),
            (&missing, KEYS, "missing/x.json"),
            // A directory stands where the report goes.
            (directory.path(), ALL, "poll.json"),
            // A directory that takes no files, not even from root.
            (Path::new("/proc/self"), KEYS, "/proc/self/keys.json"),
        ] {
            let said = refused(path, names);
            assert!(said.contains(named) && said.contains("-o"), "{}: {said}", path.display());
        }
    }
}
