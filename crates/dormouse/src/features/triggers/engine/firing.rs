//! A file that is being written, one part in each step of the lookout, which does its other work in
//! between.
//!
//! | stage | writes | next |
//! |---|---|---|
//! | begun | head, `hello`, probes; the profile begins | records |
//! | records | half a megabyte of the newest records | records, then tasks |
//! | tasks, places | a part of them; with the last, cancelled requests | the same, then figures |
//! | figures | groups, threads, mappings | profile |
//! | profile | it, a second after the file was begun, or as soon as the process is put to sleep | over: the file is in its place |
//!
//! Everything is streamed into the file.

use std::collections::HashSet;
use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use dormouse_profile::{ProfileKind, own_mappings};
use dormouse_protocol::{
    BatchStat, CancelledRequest, FILE_VERSION, FileHead, FileMappings, FileWriter, Note, ProfilePart,
    StatPart, TasksRequest, Tracing, Verb as _,
};
use dormouse_sys::records::RingOwner;
use dormouse_waits::TraceContext;

use super::readings::Finding;
use super::store::{PartFile, Store, StoreSettings, file_name};
use crate::core::asleep::{self, Part};
use crate::core::group::Group;
use crate::core::memory;
use crate::core::rows::{clock_point, probe_info};
use crate::features::hello::hello;
use crate::features::profile::{ProfileRun, ProfileSpec};
use crate::features::recorder::engine::Recording;
use crate::features::stat::stat;
use crate::features::waits::taking::TimesScope;
use crate::features::{cancelled, tasks, waits};

/// How long the profile takes, and how often it samples.
const PROFILE: Duration = Duration::from_secs(1);
const HZ: u32 = 99;

/// The memory of a file beside its parts: what gzip holds, and some pieces.
const MEMORY: usize = 2 * 1024 * 1024;

/// The memory of a profile that begins and is read.
const PROFILE_MEMORY: usize = 16 * 1024 * 1024;

/// Rows of a profile in one part.
const ROWS: usize = 4096;

/// Bytes of records in a file for which a thread waits: some ten milliseconds.
const HURRIED: u64 = 1024 * 1024;

/// Bytes of records that a step writes; of very many, a part of them.
const RECORDS: usize = 512 * 1024;
const SHARE: usize = 64;

/// The part of a file that is written next.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// From the record with that number on, and not that one: numbers count from the recorder's
    /// first record.
    Records {
        recorder: u64,
        from: u64,
        to: u64,
    },
    Tasks(u64),
    Places(u32),
    Figures,
    Profile,
}

/// A file on its way.
#[derive(Debug)]
pub(crate) struct Firing {
    /// The number of the trigger.
    pub(crate) number: u64,
    /// When the next step is due.
    pub(crate) until: Instant,
    stage: Stage,
    /// The threads whose names are written.
    named: HashSet<(u32, u64)>,
    /// `None`: it is in its place.
    writer: Option<FileWriter<PartFile>>,
    profile: Result<ProfileRun, String>,
    begun: Instant,
}

impl Firing {
    /// Begins a file. `is_hurried`: the process may end soon, and waits for it.
    pub(crate) fn begin(
        number: u64,
        rule: Option<String>,
        seen: &Finding,
        is_hurried: bool,
        recording: &mut Recording,
    ) -> Result<Self, String> {
        if !memory::is_there(MEMORY) {
            return Err(NO_MEMORY.into());
        }
        let begun = Instant::now();
        let profile = if is_hurried {
            Err("the process may end by the panic: its file does not wait for a profile".to_owned())
        } else if memory::is_there(PROFILE_MEMORY) {
            let spec = ProfileSpec::new(ProfileKind::Cpu).hz(HZ);
            ProfileRun::start(&spec).map_err(|why| why.to_string())
        } else {
            Err(NO_MEMORY.to_owned())
        };
        let store = Rc::new(Store::open(StoreSettings::own())?);
        let hello = hello();
        let clock = clock_point();
        let head = FileHead {
            version: FILE_VERSION,
            rule,
            seen: seen.words.clone(),
            task: seen.task,
            group: seen.group,
            trace_id: seen.trace.map(TraceContext::trace_digits),
            span_id: seen.trace.and_then(TraceContext::span_digits),
            real_ns: clock.real_ns,
            mono_ns: clock.mono_ns,
            pid: hello.pid,
            program: hello.exe.clone(),
        };
        let most = if is_hurried { (HURRIED, "a thread waits for it") } else { (u64::MAX, "") };
        let fitting = (store.nearly_full(), FULL);
        let most = [most, fitting].into_iter().min().unwrap_or(most);
        let part = store.begin(&file_name(&hello.name, SystemTime::now())).map_err(fault)?;
        let mut writer = FileWriter::new(part, &head).map_err(fault)?;
        writer.answer("hello", 0, &hello).map_err(fault)?;
        let stage = write_probes(&mut writer, recording, most).map_err(fault)?;
        let named = HashSet::new();
        Ok(Self { number, until: begun, stage, named, writer: Some(writer), profile, begun })
    }

    /// Writes the next part; the path, once the file is in its place.
    pub(crate) fn step(&mut self, recording: &mut Recording) -> Result<Option<PathBuf>, String> {
        let Some(writer) = &mut self.writer else { return Ok(None) };
        let next = match self.stage {
            Stage::Records { recorder, from, to } => {
                write_records(writer, recording, &mut self.named, (recorder, from, to)).map_err(fault)?
            }
            Stage::Tasks(from) => write_tasks(writer, from).map_err(fault)?,
            Stage::Places(from) => write_places(writer, from).map_err(fault)?,
            Stage::Figures => {
                write_stat(writer).map_err(fault)?;
                let mappings = FileMappings { mappings: own_mappings() };
                writer.answer("mappings", 0, &mappings).map_err(fault)?;
                if self.profile.is_ok() {
                    self.until = self.begun + PROFILE;
                }
                Stage::Profile
            }
            Stage::Profile => {
                match &self.profile {
                    Ok(run) if memory::is_there(PROFILE_MEMORY) => write_profile(writer, run),
                    Ok(_) => writer.missing("profile-report", NO_MEMORY),
                    Err(why) => writer.missing("profile-report", why.as_str()),
                }
                .map_err(fault)?;
                let writer = self.writer.take();
                return writer
                    .map(|writer| writer.finish().and_then(PartFile::finish).map_err(fault))
                    .transpose();
            }
        };
        self.stage = next;
        Ok(None)
    }
}

/// Why there are no more records or tasks.
const FULL: &str = "DORMOUSE_RECORD_DISK allows no more";

/// Why there is none of a thing that takes memory.
pub(crate) const NO_MEMORY: &str = "there is no memory for it";

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn fault(why: io::Error) -> String {
    format!("cannot write to {}: {}", StoreSettings::own().directory.display(), &why as &dyn Display)
}

fn write_profile(writer: &mut FileWriter<PartFile>, run: &ProfileRun) -> io::Result<()> {
    let mut profile = run.read();
    let mut from = 0;
    loop {
        let part = ProfilePart::of(&mut profile, from, ROWS);
        writer.answer("profile-report", from, &part)?;
        match part.next {
            Some(next) => from = next,
            None => return Ok(()),
        }
    }
}

/// Writes the probes of the recorder, and chooses which of its records to write: as many of the
/// newest as fit into `most` uncompressed bytes, because their compressed size is unknown.
fn write_probes(
    writer: &mut FileWriter<PartFile>,
    recording: &mut Recording,
    (most, why): (u64, &str),
) -> io::Result<Stage> {
    let clock = clock_point();
    let Some(run) = recording.newest() else {
        let (matched, probes, batch) = (Vec::new(), Vec::new(), BatchStat::default());
        writer.answer("trace", 0, &Tracing { matched, keys: 0, probes, batch, clock })?;
        writer.missing("records", "nothing is recorded: `dormouse record`, or DORMOUSE_RECORD")?;
        return Ok(Stage::Tasks(0));
    };
    let keys = run.trace().keys();
    let tracing = Tracing {
        matched: keys.iter().map(|used| used.key.name().to_owned()).collect(),
        keys: keys.len(),
        probes: keys.iter().filter_map(probe_info).collect(),
        batch: BatchStat::default(),
        clock,
    };
    writer.answer("trace", 0, &tracing)?;
    for group in Group::all() {
        writer.note(&Note::Group { id: group.id(), name: group.name().to_owned() })?;
    }
    let (recorder, first) = (run.stat().number, run.stat().aged);
    let held: u64 = run.chunks().map(|chunk| chunk.bytes.len() as u64).sum();
    let (mut from, mut beyond) = (first, held.saturating_sub(most));
    for chunk in run.chunks() {
        let length = chunk.bytes.len() as u64;
        if length > beyond {
            // The last one that goes, in part: the rest of it is kept.
            let kept = chunk.cut_while(|rest| length - (rest.bytes.len() as u64) < beyond);
            from += u64::from(chunk.records - kept.records);
            break;
        }
        beyond -= length;
        from += u64::from(chunk.records);
    }
    if from > first {
        let why = format!(
            "{} of the oldest were left out: the file has {most} bytes of them, because {why}",
            from - first
        );
        writer.missing("records", why)?;
    }
    let rings = run.lost_since(from);
    if rings > 0 {
        writer.note(&Note::Dropped { rings, client: 0 })?;
    }
    Ok(Stage::Records { recorder, from, to: first + run.stat().records })
}

/// Records of that recorder with these numbers: those that fit into a step.
fn write_records(
    writer: &mut FileWriter<PartFile>,
    recording: &mut Recording,
    named: &mut HashSet<(u32, u64)>,
    (recorder, from, to): (u64, u64, u64),
) -> io::Result<Stage> {
    let next = Stage::Tasks(0);
    let Some(run) = recording.newest().filter(|run| run.stat().number == recorder) else {
        writer.missing("records", "the recorder ended while the file was written")?;
        return Ok(next);
    };
    // Memory gives up whole chunks, so those that are left have the same numbers as before.
    let first = run.stat().aged;
    if first > from {
        let why = format!("{} were given up for newer ones while the file was written", first - from);
        writer.missing("records", why)?;
    }
    let most = RECORDS.max(run.stat().held / SHARE);
    let (mut at, mut bytes, mut behind, mut fresh) = (first, 0, to, Vec::new());
    for chunk in run.chunks() {
        let own = at;
        at += u64::from(chunk.records);
        if at <= from {
            continue;
        }
        if own >= to || bytes >= most {
            behind = own;
            break;
        }
        bytes += chunk.bytes.len();
        if named.insert((chunk.writer.tid, chunk.writer.start)) {
            fresh.push(chunk.writer);
        }
    }
    for of in fresh {
        let RingOwner { tid, start } = of;
        writer.note(&Note::Thread { tid, start, name: run.name_of(of) })?;
    }
    at = first;
    for chunk in run.chunks() {
        let own = at;
        at += u64::from(chunk.records);
        if own >= behind {
            break;
        }
        if at > from {
            let wanted = chunk.cut_while(|rest| at - u64::from(rest.records) < from);
            writer.records(chunk.writer.tid, chunk.writer.start, wanted.bytes)?;
        }
    }
    Ok(if behind < to { Stage::Records { recorder, from: behind, to } } else { next })
}

fn write_tasks(writer: &mut FileWriter<PartFile>, from: u64) -> io::Result<Stage> {
    if !dormouse_waits::is_on() {
        let off = "times of tasks are not taken: set DORMOUSE_WAITS=1, or arm a rule on requests";
        let why = asleep::why_limited(Part::Times).unwrap_or_else(|| off.to_owned());
        writer.missing("tasks", why)?;
        return Ok(Stage::Figures);
    }
    if !memory::is_there(TasksRequest::MEMORY.bytes) {
        writer.missing("tasks", NO_MEMORY)?;
        return Ok(Stage::Figures);
    }
    let mut part = tasks::part(from);
    if part.next.is_some() && writer.get_ref().is_nearly_full() {
        part.next = None;
        writer.missing("more tasks", FULL)?;
    }
    writer.answer("tasks", from, &part)?;
    Ok(part.next.map_or(Stage::Places(0), Stage::Tasks))
}

fn write_places(writer: &mut FileWriter<PartFile>, from: u32) -> io::Result<Stage> {
    let part = waits::verb::places_part(from);
    writer.answer("places", u64::from(from), &part)?;
    if let Some(next) = part.next {
        return Ok(Stage::Places(next));
    }
    if memory::is_there(CancelledRequest::MEMORY.bytes) {
        writer.answer("cancelled", 0, &cancelled::cancelled())?;
    } else {
        writer.missing("cancelled", NO_MEMORY)?;
    }
    Ok(Stage::Figures)
}

fn write_stat(writer: &mut FileWriter<PartFile>) -> io::Result<()> {
    if !memory::is_there_for_threads() || !memory::is_there(memory::of_times()) {
        return writer.missing("stat", NO_MEMORY);
    }
    let waits = dormouse_waits::is_on().then_some(TimesScope::ALL);
    writer.answer("stat", 0, &stat(None, waits, StatPart::Whole))
}

#[cfg(test)]
mod tests {
    use dormouse_protocol::{FilePart, FileReader, TriggerRow};
    use dormouse_testkit::{eventually, in_child};

    use crate::core::asleep;
    use crate::features::{recorder, triggers};
    use crate::lookout::LOOKOUT;

    fn made(text: &str) {
        crate::probe!("losing.made", text);
    }

    fn row(number: u64) -> Option<TriggerRow> {
        triggers::list().unwrap().triggers.into_iter().find(|row| row.number == number)
    }

    /// The note on losses in a new file.
    fn noted() -> Option<u64> {
        let number = triggers::save().unwrap();
        let file = || row(number)?.file;
        eventually(|| file().is_some());
        let mut reader = FileReader::new(std::fs::File::open(file().unwrap()).unwrap()).unwrap();
        let mut noted = None;
        while let Some(part) = reader.next().unwrap() {
            // Length, kind, and the note.
            let FilePart::Frame(frame) = part else { continue };
            if let Ok(super::Note::Dropped { rings, client: 0 }) = serde_json::from_slice(&frame[5..]) {
                noted = Some(rings);
            }
        }
        noted
    }

    #[test]
    #[allow(unsafe_code, reason = "the environment of a child")]
    fn a_file_is_finished_before_a_sleep() {
        in_child(|| {
            let directory = tempfile::tempdir().unwrap();
            // SAFETY: nothing else runs in the child.
            unsafe { std::env::set_var("DORMOUSE_RECORD_DIR", directory.path()) };
            let number = triggers::save().unwrap();
            eventually(|| row(number).unwrap().fired_ago_ns.is_some());
            asleep::begin(0, 0);
            LOOKOUT.wake();
            eventually(|| row(number).unwrap().file.is_some());
        });
    }

    #[test]
    #[allow(unsafe_code, reason = "the environment of a child")]
    fn a_file_has_what_its_recorder_has_lost() {
        in_child(|| {
            let directory = tempfile::tempdir().unwrap();
            // SAFETY: nothing else runs in the child.
            unsafe { std::env::set_var("DORMOUSE_RECORD_DIR", directory.path()) };
            let recorder = recorder::start("losing.*", 1 << 20).unwrap();
            assert_eq!(noted(), None);
            let text = "x".repeat(200);
            let lost = || recorder::stat().map_or(0, |stat| stat.dropped);
            eventually(|| {
                // Twice what a ring holds.
                (0..600).for_each(|_| made(&text));
                lost() > 0
            });
            assert_eq!(noted(), Some(lost()));
            drop(recorder);
        });
    }
}
