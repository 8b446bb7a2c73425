//! Where reports go beside standard output: a file, or a directory with a file a workload.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// How each report begins.
const REPORT: &[u8] = b"{\"schema\":";

/// Written as the reports come, so that finished reports survive an interrupted run.
#[derive(Debug)]
pub(crate) struct Output<'a> {
    path: &'a Path,
    /// The names of the workloads that will run.
    names: &'a [&'static str],
    directory: bool,
    /// Whether the name is that of a JSON file.
    is_json: bool,
    /// Reports of this run so far, by their file; each is a line.
    lines: BTreeMap<PathBuf, String>,
}

impl<'a> Output<'a> {
    /// For reports of the workloads `names` at `path`: a directory if it is one, ends like one, or
    /// is for several workloads and not called a JSON file.
    pub(crate) fn new(path: &'a Path, names: &'a [&'static str]) -> Self {
        let is_json = path.extension().is_some_and(|extension| extension == "json" || extension == "jsonl");
        let directory = path.is_dir()
            || path.as_os_str().as_encoded_bytes().ends_with(b"/")
            || (names.len() > 1 && !is_json);
        Self { path, names, directory, is_json, lines: BTreeMap::new() }
    }

    /// Finds out before the measuring, not after it, whether every report can be written.
    pub(crate) fn prepare(&self) -> anyhow::Result<()> {
        if self.directory {
            fs::create_dir_all(self.path)
                .with_context(|| format!("cannot make the directory {} of -o", self.path.display()))?;
        } else if !self.is_json {
            bail!("-o {}: name a file that ends in .json, or a directory", self.path.display());
        }
        for path in self.names.iter().map(|name| self.file_of(name)) {
            try_to_write(&path)
                .with_context(|| format!("cannot write {}, which -o asks for", path.display()))?;
        }
        Ok(())
    }

    /// Writes the report of the workload `name`.
    pub(crate) fn write(&mut self, name: &str, json: &str) -> anyhow::Result<()> {
        let path = self.file_of(name);
        let lines = self.lines.entry(path.clone()).or_default();
        lines.push_str(json);
        lines.push('\n');
        replace(&path, lines)
    }

    /// Takes away the report of an earlier run, which would pass for one of this run, in which the
    /// workload has none.
    pub(crate) fn forget(&self, name: &str) {
        let path = self.file_of(name);
        if self.directory && !self.lines.contains_key(&path) {
            // It may not be there.
            let _ = fs::remove_file(path);
        }
    }

    fn file_of(&self, name: &str) -> PathBuf {
        if self.directory { self.path.join(format!("{name}.json")) } else { self.path.to_owned() }
    }
}

/// Writes a whole file. An interrupt may come at any time: the name stands for the old text or for
/// the new one.
pub(crate) fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let unfinished = path.with_extension("unfinished");
    fs::write(&unfinished, text)
        .and_then(|()| fs::rename(&unfinished, path))
        .inspect_err(|_| {
            // It may not be there either.
            let _ = fs::remove_file(&unfinished);
        })
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Whether a report can be written to `path`; neither changes a file nor leaves a new one. A file
/// that does not begin like a report is refused.
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

    const JSON: &str = "{\"schema\":1}";

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
        many.write("keys", JSON).unwrap();
        many.write("poll", JSON).unwrap();
        many.write("poll", JSON).unwrap();
        let one = base.join("all.json");
        let mut single = Output::new(&one, ALL);
        single.prepare().unwrap();
        single.write("keys", JSON).unwrap();
        single.write("poll", JSON).unwrap();
        let lines = |path: &Path| fs::read_to_string(path).unwrap().lines().count();
        assert_eq!(lines(&base.join("keys.json")), 1);
        assert_eq!(lines(&base.join("poll.json")), 2, "of two runs");
        assert_eq!(lines(&one), 2);
    }

    #[test]
    fn an_old_report_stays_until_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.json");
        fs::write(&path, JSON).unwrap();
        Output::new(directory.path(), KEYS).prepare().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), JSON);
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
