//! A file that is being written.
//!
//! What passes goes first: the newest records, the tasks with their places, groups and threads. The
//! profile takes a second, in which the lookout goes on looking; then the file is put into its
//! place. Everything is streamed into the file, part by part.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use dormouse_profile::{ProfileKind, own_mappings};
use dormouse_sys::records::RingOwner;

use super::sight::Sighting;
use super::store::{PartFile, Store, StoreSettings, file_name};
use crate::answers::waiting::ClientWaits;
use crate::answers::{host, places, tasks, waiting};
use crate::group::Group;
use crate::lookout::recording::Recording;
use crate::memory;
use crate::profile::{ProfileRun, ProfileSpec};
use crate::wire::{
    BatchStat, ClockPoint, FILE_VERSION, FileHead, FileMappings, FileWriter, Note, ProbeInfo, ProfilePart,
    Tracing, WaitsWish,
};

/// How long the profile takes, and how often it samples.
const PROFILE: Duration = Duration::from_secs(1);
const HZ: u32 = 99;

/// The memory of a file beside its parts: what gzip holds, and some pieces.
const MEMORY: usize = 2 * 1024 * 1024;

/// The memory of a profile that begins and is read.
const PROFILE_MEMORY: usize = 16 * 1024 * 1024;

/// Rows of a profile in one part.
const ROWS: usize = 4096;

/// A file on its way.
#[derive(Debug)]
pub(crate) struct Firing {
    /// Of the trigger.
    pub(crate) number: u64,
    pub(crate) until: Instant,
    writer: FileWriter<PartFile>,
    profile: Result<ProfileRun, String>,
}

impl Firing {
    /// Begins a file, and writes all but the profile.
    pub(crate) fn begin(
        number: u64,
        rule: Option<String>,
        seen: &Sighting,
        recording: &mut Recording,
    ) -> Result<Self, String> {
        if !memory::is_there(MEMORY) {
            return Err(NO_MEMORY.into());
        }
        let settings = StoreSettings::own();
        let store = Rc::new(Store::open(&settings)?);
        let fail = |why: io::Error| fault(&settings, &why);
        let hello = host::hello();
        let name = file_name(&hello.name, SystemTime::now());
        let clock = ClockPoint::now();
        let head = FileHead {
            version: FILE_VERSION,
            rule,
            seen: seen.words.clone(),
            task: seen.task,
            group: seen.group,
            real_ns: clock.real_ns,
            mono_ns: clock.mono_ns,
            pid: hello.pid,
            program: hello.exe.clone(),
        };
        let part = store.begin(&name).map_err(fail)?;
        let mut writer = FileWriter::new(part, &head).map_err(fail)?;
        writer.answer("hello", 0, &hello).map_err(fail)?;
        write_records(&mut writer, recording).map_err(fail)?;
        write_tasks(&mut writer).map_err(fail)?;
        write_stat(&mut writer).map_err(fail)?;
        let mappings = FileMappings { mappings: own_mappings() };
        writer.answer("mappings", 0, &mappings).map_err(fail)?;
        let profile = if memory::is_there(PROFILE_MEMORY) {
            let spec = ProfileSpec::new(ProfileKind::Cpu).hz(HZ);
            ProfileRun::start(&spec).map_err(|why| why.to_string())
        } else {
            Err(NO_MEMORY.into())
        };
        let length = if profile.is_ok() { PROFILE } else { Duration::ZERO };
        Ok(Self { number, until: Instant::now() + length, writer, profile })
    }

    /// Writes the profile, and puts the file into its place.
    pub(crate) fn finish(self) -> Result<PathBuf, String> {
        let Self { mut writer, profile, .. } = self;
        let fail = |why: io::Error| fault(&StoreSettings::own(), &why);
        let written = match profile {
            Ok(run) if memory::is_there(PROFILE_MEMORY) => write_profile(&mut writer, &run),
            Ok(_) => writer.missing("profile-report", NO_MEMORY),
            Err(why) => writer.missing("profile-report", why),
        };
        written.map_err(fail)?;
        writer.finish().and_then(PartFile::finish).map_err(fail)
    }
}

/// Why there is none of a thing that takes memory.
pub(crate) const NO_MEMORY: &str = "there is no memory for it";

fn fault(settings: &StoreSettings, why: &dyn Display) -> String {
    format!("cannot write to {}: {why}", settings.directory.display())
}

fn write_profile(writer: &mut FileWriter<PartFile>, run: &ProfileRun) -> io::Result<()> {
    let mut look = run.read();
    let mut from = 0;
    loop {
        let part = ProfilePart::of(&mut look, from, ROWS);
        writer.answer("profile-report", from, &part)?;
        match part.next {
            Some(next) => from = next,
            None => return Ok(()),
        }
    }
}

/// The newest records, with the probes that they are of.
fn write_records(writer: &mut FileWriter<PartFile>, recording: &mut Recording) -> io::Result<()> {
    let clock = ClockPoint::now();
    let Some(run) = recording.newest() else {
        let (matched, probes, batch) = (Vec::new(), Vec::new(), BatchStat::default());
        writer.answer("trace", 0, &Tracing { matched, keys: 0, probes, batch, clock })?;
        return writer.missing("records", "nothing is recorded: `dormouse record`, or DORMOUSE_RECORD");
    };
    let keys = run.trace().keys();
    let tracing = Tracing {
        matched: keys.iter().map(|used| used.key.name().to_owned()).collect(),
        keys: keys.len(),
        probes: keys.iter().filter_map(ProbeInfo::of).collect(),
        batch: BatchStat::default(),
        clock,
    };
    writer.answer("trace", 0, &tracing)?;
    for group in Group::all() {
        writer.note(&Note::Group { id: group.id(), name: group.name().to_owned() })?;
    }
    let mut threads: Vec<RingOwner> = Vec::new();
    for chunk in run.chunks() {
        if !threads.contains(&chunk.writer) {
            threads.push(chunk.writer);
        }
    }
    for of in threads {
        let RingOwner { tid, start } = of;
        writer.note(&Note::Thread { tid, start, name: run.name_of(of) })?;
    }
    let mut chunks = run.chunks();
    chunks.try_for_each(|chunk| writer.records(chunk.writer.tid, chunk.writer.start, chunk.bytes))
}

fn write_tasks(writer: &mut FileWriter<PartFile>) -> io::Result<()> {
    if !dormouse_waits::is_on() {
        let why = "nobody has times of tasks taken: set DORMOUSE_WAITS=1, or arm a rule on requests";
        return writer.missing("tasks", why);
    }
    if !memory::is_there(tasks::MEMORY) {
        return writer.missing("tasks", NO_MEMORY);
    }
    let mut from = Some(0);
    while let Some(at) = from {
        let part = tasks::part(at);
        from = part.next;
        writer.answer("tasks", at, &part)?;
    }
    let mut from = Some(0);
    while let Some(at) = from {
        let part = places::part(at);
        from = part.next;
        writer.answer("places", u64::from(at), &part)?;
    }
    Ok(())
}

fn write_stat(writer: &mut FileWriter<PartFile>) -> io::Result<()> {
    if !host::has_memory_for_threads() || !memory::is_there(waiting::memory()) {
        return writer.missing("stat", NO_MEMORY);
    }
    let waits = dormouse_waits::is_on().then(|| ClientWaits::begin(WaitsWish::default()).ok());
    let mut waits = waits.flatten().map(|(waits, _)| waits);
    writer.answer("stat", 0, &host::stat(None, waits.as_mut()))
}
