//! One side of a comparison: the reports in a file or a directory, as `dormouse-bench -o` writes
//! them.
//!
//! A file contains JSON objects, one on each line; in a directory, each `.json` and `.jsonl` file
//! counts. Several reports of one workload are several processes of one side. Everything must be
//! reports: nothing is skipped silently.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::report::{BenchReport, SCHEMA};

/// The most bytes that are read of a file.
const MOST: u64 = 256 << 20;

/// The longest name or unit, in characters.
const LONGEST: usize = 200;

/// No value is larger: differences and sums of two are finite.
const LARGEST: f64 = 1e100;

/// So that powers of the ratio of two are finite, also of such values.
const PACES: std::ops::RangeInclusive<f64> = 1e-9..=1e15;

/// A report, and the file and line where it begins.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) report: BenchReport,
    pub(super) place: String,
}

/// One side.
#[derive(Debug)]
pub(super) struct Side {
    /// The path as it was given.
    pub(super) name: String,
    /// In the order of files and lines; there is at least one.
    pub(super) reports: Vec<Found>,
}

impl Side {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let mut reports: Vec<Found> = Vec::new();
        for file in files(path)? {
            let found = parse(&text(&file)?, &file)?;
            ensure!(!found.is_empty(), "{} holds no report", file.display());
            reports.extend(found);
        }
        let name = path.display().to_string().replace(char::is_control, "?");
        Ok(Self { name, reports })
    }

    /// The notes that begin so, with the places of their reports.
    pub(super) fn notes<'s>(&'s self, start: &'s str) -> impl Iterator<Item = (&'s str, &'s String)> {
        let all =
            self.reports.iter().flat_map(|found| found.report.notes.iter().map(|note| (&*found.place, note)));
        all.filter(move |(_, note)| note.starts_with(start))
    }
}

/// Whether each report is there once: a process counts once, and is no other run than itself.
pub(super) fn check_once(sides: &[Side]) -> anyhow::Result<()> {
    let is_measured = |found: &&Found| found.report.rows.iter().any(|row| !row.values.is_empty());
    // Those of a workload that this machine cannot run are the same each time.
    let all = || sides.iter().flat_map(|side| &side.reports).filter(is_measured);
    for (index, found) in all().enumerate() {
        if let Some(same) = all().take(index).find(|other| other.report == found.report) {
            bail!("{} holds the report of {} again: a process counts once", found.place, same.place);
        }
    }
    Ok(())
}

/// Whether a file with that name in a directory is read as a report.
pub(crate) fn is_read(file: &Path) -> bool {
    file.extension().is_some_and(|end| end == "json" || end == "jsonl")
}

/// The file itself, or the files of a directory by name.
fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let unreadable = || format!("cannot read the directory {}", path.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(path).with_context(unreadable)? {
        let file = entry.with_context(unreadable)?.path();
        if is_read(&file) {
            files.push(file);
        }
    }
    files.sort();
    ensure!(!files.is_empty(), "{} has no .json file in it", path.display());
    // To open a pipe would wait for its other end.
    let odd = files.iter().find(|file| file.exists() && !file.is_file());
    ensure!(odd.is_none(), "{} is no file", odd.map(|odd| odd.display().to_string()).unwrap_or_default());
    Ok(files)
}

fn text(path: &Path) -> anyhow::Result<String> {
    let unreadable = || format!("cannot read {}", path.display());
    let mut text = String::new();
    let file = File::open(path).with_context(unreadable)?;
    let read = file.take(MOST + 1).read_to_string(&mut text).with_context(unreadable)?;
    ensure!(read as u64 <= MOST, "{} is larger than {} MiB", path.display(), MOST >> 20);
    Ok(text)
}

fn parse(text: &str, path: &Path) -> anyhow::Result<Vec<Found>> {
    let mut reports = Vec::new();
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<BenchReport>();
    let (mut line, mut counted) = (1, 0);
    loop {
        let rest = &text[stream.byte_offset()..];
        let start = text.len() - rest.trim_start().len();
        line += text[counted..start].matches('\n').count();
        counted = start;
        let Some(next) = stream.next() else { return Ok(reports) };
        // A report of another version may look different: its version is the error.
        if let Some(schema) = schema(&text[start..]).filter(|&schema| schema != u64::from(SCHEMA)) {
            bail!("{}, line {line}: schema {schema}, and only {SCHEMA} is known here", path.display());
        }
        let report = next.map_err(|error| {
            // The error contains its line and column.
            anyhow::anyhow!("{}: no report of the bench: {error}", path.display())
        })?;
        let place = format!("{}, line {line}", path.display());
        check(&report).map_err(|reason| anyhow::anyhow!("{place}: {reason}"))?;
        reports.push(Found { report, place });
    }
}

fn schema(text: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Head {
        schema: u64,
    }
    let mut documents = serde_json::Deserializer::from_str(text).into_iter::<Head>();
    Some(documents.next()?.ok()?.schema)
}

/// Checks that names can be distinguished and shown, and that numbers are finite.
fn check(report: &BenchReport) -> Result<(), String> {
    let mut names = HashSet::new();
    let words = report.rows.iter().flat_map(|row| [&row.name, &row.unit]).chain([&report.bench]);
    for word in words {
        if word.chars().count() > LONGEST || word.contains('\n') {
            let start: String = word.chars().take(20).collect();
            return Err(format!("the name {start:?}… is longer than {LONGEST} characters, or than a line"));
        }
    }
    for row in &report.rows {
        if !names.insert(&row.name) {
            return Err(format!("two rows are called {:?}", row.name));
        }
        if row.values.iter().any(|value| !value.is_finite() || value.abs() > LARGEST) {
            return Err(format!("a value of the row {:?} is not finite, or beyond {LARGEST:e}", row.name));
        }
        let is_pace = row.pace.iter().all(|pace| PACES.contains(pace));
        if !is_pace || !row.pace.is_empty() && row.pace.len() != row.values.len() {
            return Err(format!("the row {:?} has no pace for each value", row.name));
        }
    }
    let document = serde_json::to_value(report).map_err(|error| error.to_string())?;
    for (name, fact) in document["machine"].as_object().into_iter().flatten() {
        if fact.as_str().is_some_and(|fact| fact.contains('\n')) {
            return Err(format!("the machine's {name} has several lines"));
        }
    }
    hidden(&document)
        .map_or(Ok(()), |hidden| Err(format!("a text has {hidden:?} in it, which no text shows")))
}

/// A character of the document that would affect a terminal, or the order of what it shows.
fn hidden(document: &Value) -> Option<char> {
    let is_hidden = |it: &char| {
        let turns = matches!(it, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        turns || it.is_control() && *it != '\n'
    };
    match document {
        Value::String(text) => text.chars().find(is_hidden),
        Value::Array(items) => items.iter().find_map(hidden),
        Value::Object(fields) => {
            fields.iter().find_map(|(name, field)| name.chars().find(is_hidden).or_else(|| hidden(field)))
        }
        _ => None,
    }
}
