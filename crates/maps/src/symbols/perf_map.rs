//! Names of code that is generated at run time, from the file that its runtime writes for them:
//! `/tmp/perf-PID.map`, one line for each function: where it begins, its length, its name.
//!
//! Node writes it with `--perf-basic-prof`, Python 3.12 with `-X perf`, a JVM when `jcmd PID
//! Compiler.perfmap` asks for it; wasmtime, .NET, Ruby and `LuaJIT` have an option for it, too. The
//! file is in the process's own file system and has the number that the process has there. It
//! belongs to the process's user or to root, or it is not read: anybody may write to `/tmp`.
//!
//! Code is moved and freed, so a line holds until a later one says something else about its
//! addresses. The file is read again when it has changed; what it says about an address is not
//! kept.
//!
//! # References
//!
//! `tools/perf/Documentation/jit-interface.txt` of Linux.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::open::regular_below;
use super::symbol::{Frame, Names};

/// Bytes that are read of such a file: the last ones, because later lines replace earlier ones.
const MOST_BYTES: u64 = 64 << 20;
/// Between two reads, as a multiple of the time that the first took: a busy runtime adds lines all
/// the time.
const PAUSE: u32 = 20;
/// Lines that are taken: the last ones. Each adds two functions at most.
const MOST_LINES: usize = 1 << 20;
/// Letters of a name.
const LONGEST_NAME: usize = 1 << 12;

/// The names of a process's generated code.
#[derive(Debug, Default)]
pub(super) struct PerfMap {
    /// The process, and where its file would be.
    place: Option<(u32, Place)>,
    /// The version of the file that was read.
    read: Option<Version>,
    /// When it may be read again.
    next: Option<Instant>,
    /// Functions by beginning, with their ends; they do not overlap.
    functions: BTreeMap<u64, (u64, Function)>,
}

#[derive(Debug, Clone)]
struct Function {
    /// Where it began before others took a part of it.
    begin: u64,
    name: Arc<str>,
}

/// The root of a process's file system, and the name of a file in it.
type Place = (PathBuf, PathBuf);

/// Inode, length, and time of the last change.
type Version = (u64, u64, i64, i64);

impl PerfMap {
    /// The function at `addr` of process `pid`.
    pub(super) fn frame(&mut self, pid: u32, addr: u64, names: &mut Names) -> Option<Frame> {
        self.see(pid);
        let (_, (end, function)) = self.functions.range(..=addr).next_back()?;
        let name = (addr < *end).then(|| names.intern(&function.name))?;
        Some(Frame { function: name, offset: Some(addr - function.begin), source: None })
    }

    /// Reads the file, if it has changed. The names of a process that has ended stay.
    pub(super) fn see(&mut self, pid: u32) {
        let is_there = || fs::read_link(format!("/proc/{pid}/root")).is_ok();
        if self.refresh(pid).is_err() && is_there() {
            (self.read, self.functions) = (None, BTreeMap::new());
        }
    }

    /// Reads the file if it has changed.
    fn refresh(&mut self, pid: u32) -> io::Result<()> {
        let (root, name) = match &mut self.place {
            Some((known, place)) if *known == pid => place,
            place => &mut place.insert((pid, place_of(pid))).1,
        };
        // This opens nothing.
        let version = version(&fs::symlink_metadata(root.join(&name))?);
        let begun = Instant::now();
        let is_same_file = self.read.is_some_and(|read| read.0 == version.0);
        let may_wait = is_same_file && self.next.is_some_and(|next| begun < next);
        if Some(version) != self.read && !may_wait {
            let (file, user) = (regular_below(root, name)?, fs::metadata(format!("/proc/{pid}"))?.uid());
            let data = file.metadata()?;
            if data.uid() != user && data.uid() != 0 {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
            }
            (self.read, self.functions) = (Some(version), functions(&text(&file)?));
            self.next = Some(Instant::now() + begun.elapsed() * PAUSE);
        }
        Ok(())
    }
}

fn place_of(pid: u32) -> Place {
    (format!("/proc/{pid}/root").into(), format!("tmp/perf-{}.map", own_number(pid)).into())
}

/// The number that a process has in its own namespace.
pub(super) fn own_number(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    // The last one is that of the innermost namespace.
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    ids.and_then(|ids| ids.split_whitespace().next_back()?.parse().ok()).unwrap_or(pid)
}

fn version(data: &Metadata) -> Version {
    (data.ino(), data.len(), data.mtime(), data.mtime_nsec())
}

fn text(mut file: &File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let skipped = file.metadata()?.len().saturating_sub(MOST_BYTES);
    file.seek(SeekFrom::Start(skipped))?;
    file.take(MOST_BYTES).read_to_end(&mut text)?;
    if skipped > 0 {
        // The rest of a line whose beginning is not there.
        let end = memchr::memchr(b'\n', &text).map_or(text.len(), |at| at + 1);
        text.drain(..end);
    }
    Ok(text)
}

/// The functions of a file. A line that is none is left out: the last one may be half written.
fn functions(text: &[u8]) -> BTreeMap<u64, (u64, Function)> {
    let mut all = BTreeMap::new();
    let skipped = memchr::memchr_iter(b'\n', text).count().saturating_sub(MOST_LINES);
    for line in text.split_inclusive(|&byte| byte == b'\n').skip(skipped) {
        let Some((begin, end, name)) = line.strip_suffix(b"\n").and_then(parsed) else { continue };
        make_room(&mut all, begin, end);
        all.insert(begin, (end, Function { begin, name: name.into() }));
    }
    all
}

/// Takes the range from `begin` to `end` from the functions that were there.
fn make_room(all: &mut BTreeMap<u64, (u64, Function)>, begin: u64, end: u64) {
    let before = all.range(..begin).next_back().map(|(&at, _)| at);
    let inside: Vec<u64> = before.into_iter().chain(all.range(begin..end).map(|(&at, _)| at)).collect();
    for at in inside {
        let Some((old_end, function)) = all.get(&at).cloned() else { continue };
        if at >= begin {
            all.remove(&at);
        } else if old_end > begin {
            all.insert(at, (begin, function.clone()));
        }
        if old_end > end {
            all.insert(end, (old_end, function));
        }
    }
}

fn parsed(line: &[u8]) -> Option<(u64, u64, String)> {
    let line = String::from_utf8_lossy(line);
    let mut words = line.splitn(3, ' ');
    let mut hex = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
    let (begin, size) = (hex()?, hex()?);
    let name: String = words.next()?.trim().chars().take(LONGEST_NAME).collect();
    let end = begin.checked_add(size)?;
    (end > begin && !name.is_empty()).then_some((begin, end, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_lines_replace_parts_of_earlier_ones() {
        let text = b"1000 100 old\n1040 20 JS:*new app.js:4\nnonsense\n0x2000 0 none\n3000 10 half";
        let mut map = PerfMap { functions: functions(text), ..PerfMap::default() };
        let named = |map: &PerfMap, addr: u64| {
            let (_, (end, function)) = map.functions.range(..=addr).next_back()?;
            (addr < *end).then(|| (function.name.to_string(), addr - function.begin))
        };
        for (addr, right) in [
            (0xfff, None),
            (0x103f, Some(("old", 0x3f))),
            (0x1040, Some(("JS:*new app.js:4", 0))),
            (0x1060, Some(("old", 0x60))),
            (0x1100, None),
            (0x2000, None),
            (0x3000, None),
        ] {
            assert_eq!(named(&map, addr), right.map(|(name, at)| (name.to_owned(), at)), "{addr:#x}");
        }
        map.functions = functions(b"10 10 a\n20 10 b\n30 10 c\n18 20 d\n");
        let ends: Vec<_> = map.functions.iter().map(|(at, (end, it))| (*at, *end, &*it.name)).collect();
        assert_eq!(ends, [(0x10, 0x18, "a"), (0x18, 0x38, "d"), (0x38, 0x40, "c")]);
    }
}
