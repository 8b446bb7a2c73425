//! A profile of a process without dormouse: by thread, from the kernel's events, where these are
//! allowed.
//!
//! Nothing is put into the process. Each of its threads has an event on each processor, which
//! records into that processor's ring, in memory of this process. New threads are searched at each
//! pass. Events are not inherited: with one for each processor, a thread would take three times
//! longer to start.
//!
//! # Weights
//!
//! A sample stands for a period of the thread's CPU time. At a report, the samples of a living
//! thread are scaled to the CPU time that the kernel reports for it. A thread that has used time
//! and got no sample has a row without a stack; the threads that were never seen have one such row
//! together. Where the kernel's own time may not be sampled, a thread's samples are not scaled: the
//! rest of its time has no stack.
//!
//! # Stacks
//!
//! The kernel follows frame pointers, and copies 16 to 60 KiB of the stack into each sample, in
//! which callers are then found by unwind tables.
//!
//! # Descriptors
//!
//! One descriptor for each thread and processor, and one for each processor, up to three quarters
//! of the limit of this process. A thread for which none is left counts as refused.
//!
//! # References
//!
//! `perf_event_open(2)`, `clock_getcpuclockid(3)`; `schedstat` in Linux
//! `Documentation/scheduler/sched-stats.rst`.

mod callers;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::num::NonZero;
use std::time::{Instant, SystemTime};

use dormouse_clock::process_cpu_ns_of;
use dormouse_maps::{AddressSpace, Perms, SpaceError};
use dormouse_protocol::profile::{MappedRange, Profile, ProfileCoverage, ProfileKind, Sample, Thread};
use dormouse_sys::perf::{
    Attr, Buffer, Error as Refusal, KernelEvent, OpenEvent, Sampling, Subject, What, online_cpus,
};
use dormouse_sys::process::schedstat::Schedstat;
use dormouse_sys::process::threads::{is_alive_in, list_whole_at};
use rustix::process::{Resource, getrlimit};

use crate::aggregate::Aggregate;
use crate::ends::StackEnd;
use crate::{Error, Options};
use callers::{Callers, copy_in};

/// Bytes of the ring of a processor: some hundred samples.
const RING: usize = 128 << 10;
/// The most bytes of a ring with copied stacks, and of those of all processors together.
const RING_OF_STACKS: usize = 2 << 20;
const RINGS_OF_STACKS: usize = 128 << 20;
/// The time between two passes, in nanoseconds.
const PASS: u64 = SECOND / 10;
/// Stands for CPU time of threads that ended before they were seen.
const NOT_SEEN: &str = "(not seen)";
/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// A profile of another process, from outside. It ends when this is dropped.
#[derive(Debug)]
#[must_use = "the profile ends when this is dropped"]
pub struct OutsideProfiling {
    pid: u32,
    period: NonZero<u64>,
    space: AddressSpace,
    mappings: Vec<MappedRange>,
    /// The event that each thread gets.
    attr: Attr,
    /// Whether the kernel's own time is sampled.
    has_kernel: bool,
    rings: Vec<(u32, Buffer)>,
    callers: Callers,
    threads: HashMap<u32, Sampled>,
    /// By index, the CPU time of threads whose number another one has now.
    replaced: HashMap<u32, u64>,
    aggregate: Aggregate,
    begun: Instant,
    unix_ns: u64,
    /// CPU time of the process at the beginning and at the last pass.
    cpu: [Option<u64>; 2],
    coverage: ProfileCoverage,
    /// The first refusal of the kernel.
    why: Option<Error>,
}

/// A thread of the process.
#[derive(Debug)]
struct Sampled {
    /// Its index in the aggregate.
    index: u32,
    /// Its CPU time when it was found, and at the last pass that saw it.
    base: u64,
    used: u64,
    /// One for each processor; none if it was refused, or has ended.
    events: Vec<OpenEvent>,
    is_alive: bool,
}

/// The CPU time of the threads that share an index in the aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SharedTime {
    ns: u64,
    /// Whether none of them has ended.
    is_alive: bool,
}

impl SharedTime {
    /// Scales the samples of these threads to their CPU time, and returns that time. Beyond the
    /// period of a sample that is still to come, the rest is a row without a stack.
    fn scale(self, index: u32, has_kernel: bool, period: u64, samples: &mut Vec<Sample>) -> u64 {
        let rows = samples.iter_mut().filter(|row| row.thread == index);
        let sampled: u64 = rows.map(|row| row.values[1]).sum();
        // The use of a thread after it was seen for the last time is in its samples alone.
        let used = if self.is_alive { self.ns } else { self.ns.max(sampled) };
        let mut met = sampled;
        if has_kernel && sampled > 0 {
            met = used.min(sampled.saturating_add(period));
            // The parts of rounding add up.
            let (mut before, mut given) = (0_u128, 0);
            for row in samples.iter_mut().filter(|row| row.thread == index) {
                before += u128::from(row.values[1]);
                let until = (u128::from(met) * before / u128::from(sampled)) as u64;
                row.values[1] = until - given;
                given = until;
            }
        }
        if used > met {
            samples.push(Sample { thread: index, values: [0, used - met, 0, 0], ..Sample::default() });
        }
        used.max(if has_kernel { 0 } else { sampled })
    }
}

impl OutsideProfiling {
    /// Begins to sample the CPU time of all threads of a process.
    ///
    /// # Errors
    ///
    /// [`Error::Denied`]: the kernel does not allow it. [`Error::Unavailable`]: there is no such
    /// process, or another kind is asked for.
    pub fn start(pid: u32, options: &Options) -> Result<Self, Error> {
        if options.kind != ProfileKind::Cpu {
            let kind = options.kind.name();
            let why = format!("a profile of {kind} from outside: that takes dormouse in the process");
            return Err(Error::Unavailable(why));
        }
        let space = AddressSpace::of(pid).map_err(|error| match error {
            SpaceError::Denied { .. } => Error::Denied(error.to_string()),
            _ => Error::Unavailable(error.to_string()),
        })?;
        let hz = u64::from(options.hz).clamp(1, 10_000);
        let period = NonZero::new(SECOND / hz).unwrap_or(NonZero::<u64>::MIN);
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let cpu = process_cpu_ns_of(pid);
        let (attr, has_kernel) = allowed(pid)?;
        let callers = Callers::of(pid);
        let mut profiling = Self {
            pid,
            period,
            space,
            mappings: Vec::new(),
            attr,
            has_kernel,
            rings: rings(period, callers.refused().is_none())?,
            callers,
            threads: HashMap::new(),
            replaced: HashMap::new(),
            aggregate: Aggregate::new(),
            begun: Instant::now(),
            unix_ns: u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX),
            cpu: [cpu, cpu],
            coverage: ProfileCoverage::default(),
            why: None,
        };
        profiling.look(true);
        // Time used before this cannot be charged to any row.
        profiling.cpu[0] = process_cpu_ns_of(pid);
        profiling.look(false);
        match profiling.why.take() {
            Some(why) if profiling.coverage.armed == 0 => Err(why),
            why => {
                profiling.why = why;
                Ok(profiling)
            }
        }
    }

    /// Reads what was recorded, and begins to sample new threads. For each processor there is room
    /// for some hundred samples between two passes, so call it ten times a second. Returns whether
    /// the process goes on; executing another program counts as its end.
    pub fn pass(&mut self) -> bool {
        self.drain();
        self.look(false);
        let goes_on = self.space.refresh().is_ok();
        if !goes_on {
            // Their memory is for the profile of the next program.
            self.rings.clear();
        }
        goes_on
    }

    /// The profile so far.
    pub fn read(&mut self) -> Profile {
        self.drain();
        self.look(false);
        if self.space.refresh().is_ok() {
            self.mappings = code(&self.space);
        }
        for (&tid, thread) in self.threads.iter().filter(|(_, thread)| thread.is_alive) {
            // One that was seen at its very beginning had no name of its own yet.
            if let Some(name) = name_of(self.pid, tid) {
                self.aggregate.name_thread(thread.index, Thread { tid, name });
            }
        }
        let (groups, mut threads, stacks, mut samples) = self.aggregate.parts();
        let mut known = 0;
        for (index, used) in self.used() {
            known += used.scale(index, self.has_kernel, self.period.get(), &mut samples);
        }
        let total = self.cpu[1].zip(self.cpu[0]).map_or(0, |(now, then)| now.saturating_sub(then));
        if total > known {
            let thread = threads.len() as u32;
            threads.push(Thread { tid: 0, name: NOT_SEEN.to_owned() });
            samples.push(Sample { thread, values: [0, total - known, 0, 0], ..Sample::default() });
        }
        let mut coverage = self.coverage.clone();
        coverage.total = total;
        coverage.merged = self.aggregate.merged();
        coverage.notes.push(
            "taken from outside: by thread, because the process has no groups without dormouse".to_owned(),
        );
        if !self.has_kernel {
            coverage.notes.push(
                "the kernel's own time may not be sampled here: it is in the rows without a stack".to_owned(),
            );
        }
        let refused = self.callers.refused().into_iter();
        let by_links =
            |why| format!("callers are found by frame pointers alone: its memory cannot be read: {why}");
        coverage.notes.extend(refused.map(by_links));
        coverage.notes.extend(self.why.iter().map(|why| format!("a thread could not be sampled: {why}")));
        Profile {
            kind: ProfileKind::Cpu,
            unix_ns: self.unix_ns,
            duration_ns: u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX),
            period: self.period.get(),
            pid: self.pid,
            program: fs::read_link(format!("/proc/{}/exe", self.pid))
                .map_or_else(|_| String::new(), |path| path.to_string_lossy().into_owned()),
            groups,
            threads,
            stacks,
            samples,
            mappings: self.mappings.clone(),
            coverage,
            ..Profile::default()
        }
    }

    /// The CPU time of all threads, by index: many share one where there are too many for the
    /// table.
    fn used(&self) -> HashMap<u32, SharedTime> {
        let replaced = self.replaced.iter().map(|(&index, &ns)| (index, SharedTime { ns, is_alive: false }));
        let mut all: HashMap<u32, SharedTime> = replaced.collect();
        for thread in self.threads.values() {
            let used = all.entry(thread.index).or_insert(SharedTime { ns: 0, is_alive: true });
            used.ns += thread.used.saturating_sub(thread.base);
            used.is_alive &= thread.is_alive;
        }
        all
    }

    /// Looks for threads; `first`: for those that have used time before the profile.
    fn look(&mut self, first: bool) {
        let mut tids = Vec::new();
        // Threads that the list lacks are looked up below.
        let _is_whole = list_whole_at(format!("/proc/{}/task", self.pid), &mut tids);
        self.cpu[1] = process_cpu_ns_of(self.pid).or(self.cpu[1]);
        for &tid in &tids {
            let Some(used) = thread_cpu(self.pid, tid) else { continue };
            // A number that came back with less time is another thread's.
            match self.threads.get_mut(&tid) {
                Some(known) if known.is_alive && used >= known.used => known.used = used,
                _ => self.arm(tid, used, if first { used } else { 0 }),
            }
        }
        let listed: HashSet<u32> = tids.into_iter().collect();
        let pid = self.pid;
        let has_ended = |tid: u32| !listed.contains(&tid) && !is_alive_in(pid, tid);
        for (_, gone) in self.threads.iter_mut().filter(|(tid, thread)| thread.is_alive && has_ended(**tid)) {
            gone.is_alive = false;
            gone.events.clear();
        }
    }

    fn arm(&mut self, tid: u32, used: u64, base: u64) {
        let open = self.threads.values().map(|thread| thread.events.len()).sum::<usize>() + self.rings.len();
        let events = if open + self.rings.len() > descriptors() {
            Err(Refusal::NoDescriptor("task-clock"))
        } else {
            let each = self.rings.iter();
            each.map(|(cpu, ring)| ring.open_into(&self.attr, Subject::ThreadOnCpu { tid, cpu: *cpu }))
                .collect()
        };
        // It may have ended meanwhile.
        if let Err(Refusal::NoSuchThread { .. }) = events {
            return;
        }
        self.coverage.threads += 1;
        let events = events.unwrap_or_else(|refusal| {
            self.coverage.refused += 1;
            self.why.get_or_insert_with(|| refused(&refusal));
            Vec::new()
        });
        self.coverage.armed += u64::from(!events.is_empty());
        let name = name_of(self.pid, tid).unwrap_or_default();
        let index = self.aggregate.add_thread(Thread { tid, name });
        // The thread that had this number before keeps its row.
        if let Some(old) = self.threads.insert(tid, Sampled { index, base, used, events, is_alive: true }) {
            *self.replaced.entry(old.index).or_default() += old.used.saturating_sub(old.base);
        }
    }

    fn drain(&mut self) {
        let Self { space, rings, callers, threads, aggregate, coverage, period, .. } = self;
        for (_, ring) in rings {
            ring.drain(|record| match record.what {
                What::Sample { tid, ip, callchain, stack, .. } => {
                    let Some(thread) = threads.get(&tid) else { return };
                    let (frames, end) = callers.stack(space, ip, callchain, stack.as_deref());
                    coverage.samples += 1;
                    coverage.cut += u64::from(end == Some(Err(StackEnd::Cut)));
                    coverage.ended += u64::from(end == Some(Ok(())));
                    aggregate.add(0, thread.index, frames.into_iter(), [1, period.get(), 0, 0]);
                }
                What::Lost(lost) => coverage.dropped += lost,
                _ => {}
            });
        }
    }
}

fn refused(refusal: &Refusal) -> Error {
    match refusal {
        Refusal::Denied { .. } => Error::Denied(refusal.to_string()),
        _ => Error::Unavailable(refusal.to_string()),
    }
}

/// The event that this process may open for that one: with the kernel's time, or without.
fn allowed(pid: u32) -> Result<(Attr, bool), Error> {
    let attr = Attr::count(KernelEvent::TaskClock).until_exec();
    match OpenEvent::open(&attr.disabled(), Subject::Thread(pid)) {
        Ok(_) => return Ok((attr, true)),
        Err(Refusal::Denied { .. }) => {}
        Err(refusal) => return Err(refused(&refusal)),
    }
    let attr = attr.user_only();
    OpenEvent::open(&attr.disabled(), Subject::Thread(pid)).map_err(|refusal| refused(&refusal))?;
    Ok((attr, false))
}

/// The name of a thread, while it is there.
fn name_of(pid: u32, tid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
}

/// A ring for each processor. They belong to events that count nothing, so that they outlive the
/// threads. All have one size: the kernel has one limit of locked memory for a user.
fn rings(every: NonZero<u64>, is_copied: bool) -> Result<Vec<(u32, Buffer)>, Error> {
    let cpus = online_cpus();
    let each = (RINGS_OF_STACKS / cpus.len().max(1)).clamp(RING, RING_OF_STACKS);
    let mut bytes = if is_copied { 1 << each.ilog2() } else { RING };
    loop {
        match rings_of(&cpus, every, is_copied, bytes) {
            Err(Refusal::LockedMemory { .. }) if bytes > rustix::param::page_size() => bytes /= 2,
            made => return made.map_err(|refusal| refused(&refusal)),
        }
    }
}

/// Rings of that size.
fn rings_of(
    cpus: &[u32],
    every: NonZero<u64>,
    is_copied: bool,
    bytes: usize,
) -> Result<Vec<(u32, Buffer)>, Refusal> {
    let own = dormouse_sys::process::identity::tid();
    let idle = Attr::count(KernelEvent::Dummy).user_only().disabled();
    let stack_bytes = if is_copied { copy_in(bytes, (PASS / every) as usize) } else { 0 };
    let sampling = Sampling { every, life: false, callchain: true, stack_bytes };
    let mut rings = Vec::new();
    for &cpu in cpus {
        match Buffer::open(&idle, sampling, Subject::ThreadOnCpu { tid: own, cpu }, bytes) {
            Ok(ring) => rings.push((cpu, ring)),
            // Switched off since.
            Err(Refusal::NoSuchCpu(_)) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(rings)
}

/// The most descriptors that events may take of this process's.
fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / 4 * 3).unwrap_or(usize::MAX)
}

/// CPU time of a thread.
fn thread_cpu(pid: u32, tid: u32) -> Option<u64> {
    let said = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    Some(Schedstat::parse(&said)?.run_ns)
}

/// The mappings of a space that have code.
fn code(space: &AddressSpace) -> Vec<MappedRange> {
    let all = space.mappings().unwrap_or_default();
    let code = all.into_iter().filter(|mapping| mapping.value.perms.contains(Perms::EXECUTE));
    code.map(|mapping| MappedRange {
        start: mapping.start,
        end: mapping.last.saturating_add(1),
        offset: mapping.value.offset,
        path: space
            .object(mapping.value.object)
            .map_or_else(String::new, |object| object.name().to_string_lossy().into_owned()),
        build_id: space.build_id(&mapping).map_or_else(String::new, |id| hex(&id)),
    })
    .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
