//! A recorder's file in place of an agent: recorded answers are returned as answers.
//!
//! A client sends the same requests as to a service. An answer is looked up by the operation, and
//! one in parts by where it begins. After `trace` the frames come as from a socket, read from the
//! file again, so that records are never all in memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dormouse_maps::SpaceError;
use dormouse_profile::NameFinder;
use dormouse_protocol::{
    FILE_MAGIC, FileHead, FileMappings, FileMissing, FilePart, FileReader, Hello, Op, PlacesRequest,
    ProfileBegun, ProfileReportRequest, TasksRequest, WaitsBegun, is_file,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Client, Source};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{FAIR, say};
use crate::text::clean;

/// The most bytes of answers that are held of a file.
const MOST: usize = 256 << 20;

/// The memory of an answer beside its bytes.
const ENTRY: usize = 256;

/// Bytes of frames that are read at once.
const READ: usize = 64 * 1024;

/// A file.
#[derive(Debug)]
pub(crate) struct Recorded {
    path: PathBuf,
    file: File,
    head: FileHead,
    answers: BTreeMap<(String, u64), Vec<u8>>,
    /// Where the frames are being read, once somebody has asked for them.
    frames: Option<FileReader<BufReader<File>>>,
}

impl Client {
    /// A conversation with a file.
    pub(super) fn of_file(path: &Path, patience: Duration) -> Outcome<(Client, Hello)> {
        let recorded = Recorded::open(path)?;
        let hello: Hello = recorded.parse("hello", 0)?;
        recorded.announce();
        let (pid, who) = (recorded.head.pid, format!("{} (process {})", path.display(), recorded.head.pid));
        let source = Source::File(Box::new(recorded));
        let mut client = Client::new(source, pid, who, patience);
        client.know(&hello);
        Ok((client, hello))
    }

    /// The file that answers, if it is one.
    pub(crate) fn file(&self) -> Option<&Recorded> {
        match &self.source {
            Source::File(recorded) => Some(recorded),
            Source::Socket(_) => None,
        }
    }

    /// The names of the addresses that are in answers.
    pub(crate) fn names(&self) -> Result<NameFinder, SpaceError> {
        match &self.source {
            Source::File(recorded) => recorded.names(),
            Source::Socket(_) => NameFinder::of(self.pid),
        }
    }
}

impl Recorded {
    fn open(path: &Path) -> Outcome<Recorded> {
        let cannot =
            |why: &dyn std::fmt::Display| Failure::failed(format!("cannot read {}: {why}", path.display()));
        let mut file = File::open(path).map_err(|error| cannot(&error))?;
        let mut magic = Vec::new();
        let read = file.by_ref().take(FILE_MAGIC as u64).read_to_end(&mut magic);
        read.map_err(|error| cannot(&error))?;
        if !is_file(&magic) {
            let hint = "give a process id or name, or a file that dormouse record TARGET --save wrote";
            let message = format!("{} is no file of dormouse's recorder", path.display());
            return Err(Failure::new(Exit::Usage, message).hint(hint));
        }
        let mut frames = begin(&file).map_err(|why| cannot(&why))?;
        let head = frames.head().clone();
        let (mut answers, mut bytes) = (BTreeMap::new(), 0);
        while let Some(part) = frames.next().map_err(|why| cannot(&why))? {
            if let FilePart::Answer { name, from, json } = part {
                bytes += ENTRY + name.len() + json.len();
                if bytes > MOST {
                    return Err(cannot(&format_args!("its answers are longer than {MOST} bytes")));
                }
                answers.insert((name.to_owned(), from), json.to_vec());
            }
        }
        Ok(Recorded { path: path.to_owned(), file, head, answers, frames: None })
    }

    /// Prints why the file was written, and what it lacks.
    fn announce(&self) {
        let FileHead { rule, seen, program, .. } = &self.head;
        let why = rule.as_ref().map_or(String::new(), |rule| format!(" by {}", clean(rule)));
        say(format_args!("recorded{why}: {} ({})", clean(seen), clean(program)));
        for FileMissing { what, why } in self.missing() {
            say(format_args!("{FAIR}no {}:{FAIR:#} {}", clean(&what), clean(&why)));
        }
    }

    /// The answers that the file lacks, and why.
    fn missing(&self) -> Vec<FileMissing> {
        let all = self.answers.range(("missing".to_owned(), 0)..=("missing".to_owned(), u64::MAX));
        all.filter_map(|(_, json)| serde_json::from_slice(json).ok()).collect()
    }

    /// Whether this is among what the file lacks.
    pub(crate) fn is_without(&self, what: &str) -> bool {
        self.missing().iter().any(|missing| missing.what == what)
    }

    /// The answer that a request had then.
    pub(super) fn call<T: DeserializeOwned>(&mut self, op: &Op) -> Outcome<T> {
        match op {
            Op::Hello(_) => self.parse("hello", 0),
            Op::Stat(_) => self.parse("stat", 0),
            Op::Tasks(TasksRequest { from }) => self.parse("tasks", *from),
            Op::Places(PlacesRequest { from }) => self.parse("places", u64::from(*from)),
            Op::Cancelled(_) => self.parse("cancelled", 0),
            Op::ProfileReport(ProfileReportRequest { from, .. }) => self.parse("profile-report", *from),
            Op::Trace(_) => {
                self.frames = Some(begin(&self.file).map_err(|why| self.cannot(&why))?);
                self.parse("trace", 0)
            }
            // These were begun before the file was written.
            Op::Waits(_) => self.same(&WaitsBegun { places: true, cpu: false, stalls: false }),
            Op::Profile(_) => self.same(&ProfileBegun { number: 1 }),
            _ => Err(self.lacks("an answer to that")),
        }
    }

    /// An answer that is made here.
    fn same<T: DeserializeOwned>(&self, answer: &impl Serialize) -> Outcome<T> {
        let answer = serde_json::to_value(answer).and_then(serde_json::from_value);
        answer.map_err(|why| self.cannot(&why))
    }

    /// The answer of that name that begins there, or is the last to begin before.
    fn parse<T: DeserializeOwned>(&self, name: &str, from: u64) -> Outcome<T> {
        let known = self.answers.range((name.to_owned(), 0)..=(name.to_owned(), from));
        let Some(json) = known.map(|(_, json)| json).next_back() else {
            return Err(self.lacks(&format!("`{name}`")));
        };
        serde_json::from_slice(json).map_err(|why| self.cannot(&format_args!("`{name}`: {why}")))
    }

    /// Adds frames of the trace to `inbox`; false: there are no more.
    pub(super) fn fill(&mut self, inbox: &mut Vec<u8>) -> Outcome<bool> {
        let Some(frames) = &mut self.frames else { return Ok(false) };
        let begun = inbox.len();
        while inbox.len() < begun + READ {
            match frames.next() {
                Ok(Some(FilePart::Frame(frame))) => inbox.extend_from_slice(frame),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(why) => return Err(self.cannot(&why)),
            }
        }
        Ok(inbox.len() > begun)
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn names(&self) -> Result<NameFinder, SpaceError> {
        let mappings: FileMappings = self.parse("mappings", 0).unwrap_or_default();
        let at = UNIX_EPOCH.checked_add(Duration::from_nanos(self.head.real_ns));
        NameFinder::recorded(&mappings.mappings, at.unwrap_or(SystemTime::UNIX_EPOCH))
    }

    fn lacks(&self, what: &str) -> Failure {
        let message = format!("{} has not {what}", self.path.display());
        let why = self.missing().into_iter().find(|missing| what.contains(&missing.what));
        match why {
            Some(missing) => Failure::failed(format!("{message}: {}", clean(&missing.why))),
            None => Failure::failed(message).hint("ask the service itself"),
        }
    }

    fn cannot(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::failed(format!("cannot read {}: {why}", self.path.display()))
    }
}

/// Begins to read the file at its first byte.
fn begin(file: &File) -> Result<FileReader<BufReader<File>>, dormouse_protocol::FileError> {
    let fault = |why: std::io::Error| dormouse_protocol::FileError { at: 0, what: why.to_string() };
    let mut again = file.try_clone().map_err(fault)?;
    again.rewind().map_err(fault)?;
    FileReader::new(BufReader::new(again))
}
