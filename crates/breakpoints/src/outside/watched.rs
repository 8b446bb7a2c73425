//! The watches of one process from outside: passes over the records, and reports.

use dormouse_sys::clock::monotonic_ns;
use dormouse_sys::perf::{Error as Refusal, Subject, UserStack, What, keeps_apart, online_cpus};
use rustix::process::{Resource, getrlimit};

use super::arm::{LineEvent, Plan, arm, nowhere, registers_free};
use super::lines::{Line, lines_of};
use super::rings::Rings;
use super::sites::Sites;
use super::target::{TargetEnd, TargetProcess};
use crate::watch::rate::{Allowance, Throttle};
use crate::watch::share::Share;
use crate::{Coverage, Error, WatchHit, WatchReport, WatchSpec, WatchState};

/// How much of this process's resources a watch from outside may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutsideBudget {
    /// The number of descriptors. Records need one for each line, thread and processor, and one for
    /// each processor.
    pub descriptors: usize,
    /// The bytes of locked memory, for all processors together.
    pub locked_bytes: usize,
    /// The bytes of the stack to copy at each hit, for [`Outside::take_stacks`]; 0 for none. With
    /// 8192 a hit costs one microsecond more, and a ring has room for some hundred in a MiB.
    pub stack_bytes: u16,
}

impl Default for OutsideBudget {
    /// Three quarters of this process's limit of descriptors, 8 MiB, and no stacks.
    fn default() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let descriptors = usize::try_from(limit / 4 * 3).unwrap_or(usize::MAX);
        Self { descriptors, locked_bytes: 8 << 20, stack_bytes: 0 }
    }
}

/// The result of a watch from outside.
#[derive(Debug, Clone)]
pub struct OutsideReport {
    /// Counts and places, as in a watch inside a process.
    pub watch: WatchReport,
    /// Why hits are only counted, and places unknown; `None` if hits are recorded.
    pub counts_only: Option<String>,
    /// Single hits for which the stream had no room.
    pub unstreamed: u64,
    /// How the target ended; `None` if the watch goes on, or has reached its maximum of hits.
    pub end: Option<TargetEnd>,
}

/// Watches of a process, armed from outside. They end when this is dropped.
#[derive(Debug)]
#[must_use = "the watches end when this is dropped"]
pub struct Outside {
    target: TargetProcess,
    lines: Vec<Line>,
    watches: Vec<Watched>,
    /// Where hits are recorded, or the reason why they are not.
    rings: Result<Rings, String>,
    events: Vec<LineEvent>,
    /// Whether records were lost that no watch has counted yet.
    has_lost: bool,
    end: Option<TargetEnd>,
}

/// One request.
#[derive(Debug)]
struct Watched {
    spec: WatchSpec,
    sites: Sites,
    throttle: Throttle,
    share: Share,
    /// Hits by the kernel's count, of a watch that is over.
    last_count: Option<u64>,
    /// Hits that are known to have no record.
    missed: u64,
    /// Hits whose value could not be read.
    unread: u64,
}

impl Outside {
    /// Arms these watches on all present and future threads of a process, or on none.
    ///
    /// A watch is armed in a thread as soon as that thread is reached: the first hits may come
    /// before the call returns.
    ///
    /// # Cost
    ///
    /// Some five microseconds for each thread, processor and line.
    ///
    /// # Errors
    ///
    /// [`Error::NoProcess`], [`Error::OnlyInside`] for requests that need dormouse in the process,
    /// [`Error::TooFewRegisters`], and [`Error::Thread`] with the thread and the reason.
    pub fn open(pid: u32, specs: &[WatchSpec], budget: OutsideBudget) -> Result<Self, Error> {
        let target = TargetProcess::open(pid)?;
        let mut lines = lines_of(specs)?;
        for line in &mut lines {
            line.read(&target);
        }
        let breakpoints: Vec<_> = lines.iter().map(|line| line.breakpoint).collect();
        let apart = keeps_apart();
        let plan = Plan {
            target: &target,
            lines: &breakpoints,
            rings: None,
            descriptors: budget.descriptors,
            apart,
            leave_one: !specs.iter().all(|spec| spec.all_slots),
        };
        let recorded = Rings::open(&online_cpus(), budget.locked_bytes, apart, budget.stack_bytes)
            .map_err(|refusal| target.refused(pid, refusal))
            .and_then(|rings| {
                let descriptors = budget.descriptors.saturating_sub(rings.len());
                let events = arm(Plan { rings: Some(&rings), descriptors, ..plan })?;
                Ok((rings, events))
            });
        let (rings, events) = match recorded {
            Ok((rings, events)) => (Ok(rings), events),
            Err(Error::Thread { source, .. }) if is_limit(&source) => (Err(source.to_string()), arm(plan)?),
            Err(error) => return Err(error),
        };
        let now = monotonic_ns();
        let watches = specs.iter().map(|spec| Watched::new(spec, now)).collect();
        Ok(Self { target, lines, watches, rings, events, has_lost: false, end: None })
    }

    /// Reads the records, arms and disarms watches by their rate and their maximum of hits, and
    /// checks whether the target has ended. Call it regularly, for example every 20 ms: a ring has
    /// room for several thousand hits.
    ///
    /// # Cost
    ///
    /// Where hits are only counted, or were lost, a system call for each event.
    pub fn pass(&mut self) {
        let end = self.target.end();
        self.drain();
        if std::mem::take(&mut self.has_lost) {
            // The counts first: of later hits nothing is missing.
            let counts: Vec<u64> = (0..self.watches.len()).map(|at| self.count(at)).collect();
            self.drain();
            for (watch, count) in self.watches.iter_mut().zip(counts) {
                watch.missed = watch.missed.max(count.saturating_sub(watch.sites.delivered));
            }
        }
        let now = monotonic_ns();
        for at in 0..self.watches.len() {
            // Later hits belong to another program, or to no process.
            if end.is_some() {
                self.finish(at, now);
                continue;
            }
            let watch = &self.watches[at];
            let hits =
                if self.rings.is_err() { self.count(at) } else { watch.sites.delivered + watch.missed };
            self.control(at, hits, now);
        }
        self.end = self.end.or(end);
    }

    /// Makes a pass, and returns the results so far, in the order of the requests.
    ///
    /// # Cost
    ///
    /// A system call for each event, which interrupts its thread if that runs.
    pub fn reports(&mut self) -> Vec<OutsideReport> {
        // First: what is recorded after that is no loss.
        let counts: Vec<u64> = (0..self.watches.len()).map(|at| self.count(at)).collect();
        self.pass();
        let threads =
            if self.end.is_some() { 0 } else { self.target.tids().map_or(0, |(tids, _)| tids.len() as u32) };
        counts.into_iter().enumerate().map(|(at, count)| self.report(at, count, threads)).collect()
    }

    /// The single hits of a watch since the last call. The first call turns the stream on, and
    /// returns none.
    pub fn take_hits(&mut self, watch: usize) -> Vec<WatchHit> {
        self.watches.get_mut(watch).map(|watch| watch.sites.take()).unwrap_or_default()
    }

    /// Returns the stacks that were copied at the first hit of each place that is new since the
    /// last call, with the place's [`WatchSite::ip`](crate::WatchSite::ip). They are for an
    /// unwinder that needs no frame pointers. Empty if [`OutsideBudget::stack_bytes`] is 0.
    pub fn take_stacks(&mut self, watch: usize) -> Vec<(usize, UserStack)> {
        self.watches.get_mut(watch).map(|watch| watch.sites.take_stacks()).unwrap_or_default()
    }

    /// Whether all watches are over.
    pub fn is_over(&self) -> bool {
        self.watches.iter().all(|watch| watch.last_count.is_some())
    }

    /// Takes the records out.
    fn drain(&mut self) {
        let Ok(rings) = &mut self.rings else { return };
        let mut hits = Vec::new();
        rings.drain(|record| match record.what {
            What::Sample { tid, ip, addr, callchain, stack, .. } => {
                let line = self.lines.iter().position(|line| line.addr as u64 == addr);
                hits.extend(line.map(|line| (line, record.time, tid, ip, callchain, stack)));
            }
            What::Lost(_) => self.has_lost = true,
            _ => {}
        });
        hits.sort_by_key(|&(_, time, ..)| time);
        // All lines of a watch, because they may show the same bytes.
        let is_hit: Vec<_> = hits.iter().map(|&(line, ..)| self.lines[line].watch).collect();
        for line in self.lines.iter_mut().filter(|line| is_hit.contains(&line.watch)) {
            line.read(&self.target);
        }
        for (line, mono_ns, tid, ip, callchain, copied) in hits {
            let line = &self.lines[line];
            let watch = &mut self.watches[line.watch];
            watch.unread += u64::from(line.shown.is_some() && line.new.is_none());
            // The first is the instruction itself.
            let stack: Vec<usize> = callchain.into_iter().skip(1).map(|ip| ip as usize).collect();
            let inner = stack.len();
            let (ip, old, new) = (ip as usize, line.old, line.new);
            let hit = WatchHit { ip, tid, mono_ns, old, new, stack, inner, ..WatchHit::default() };
            watch.sites.add(hit, copied);
        }
    }

    /// Arms or disarms a watch by its hits so far.
    fn control(&mut self, at: usize, hits: u64, now: u64) {
        let watch = &mut self.watches[at];
        if watch.last_count.is_some() {
            return;
        }
        if hits >= watch.spec.max_hits {
            return self.finish(at, now);
        }
        let is_armed = matches!(watch.throttle.look(now, hits), Allowance::Hits(_));
        if is_armed == watch.share.is_armed() {
            return;
        }
        watch.share.set_armed(now, is_armed);
        for LineEvent { event, .. } in self.events.iter().filter(|event| self.lines[event.line].watch == at) {
            // The kernel refuses neither of an open event.
            let _ = if is_armed { event.enable() } else { event.disable() };
        }
    }

    /// Ends a watch: the registers are free.
    fn finish(&mut self, at: usize, now: u64) {
        if self.watches[at].last_count.is_some() {
            return;
        }
        let is_its = |event: &LineEvent| self.lines[event.line].watch == at;
        for event in self.events.iter().filter(|event| is_its(event)) {
            let _ = event.event.disable();
        }
        let count = self.count(at);
        self.events.retain(|event| !is_its(event));
        // The last records.
        self.drain();
        self.watches[at].last_count = Some(count);
        self.watches[at].share.end(now);
    }

    /// The hits of a watch by the kernel's count.
    fn count(&self, at: usize) -> u64 {
        let of = |event: &&LineEvent| self.lines[event.line].watch == at;
        let read = |event: &LineEvent| event.event.read().map_or(0, |reading| reading.value);
        self.watches[at].last_count.unwrap_or_else(|| self.events.iter().filter(of).map(read).sum())
    }

    fn report(&self, at: usize, count: u64, threads: u32) -> OutsideReport {
        let watch = &self.watches[at];
        let now = monotonic_ns();
        let delivered = watch.sites.delivered;
        let sites = watch.sites.sorted();
        // A hit is counted a moment before it is recorded: while the watch is armed, a difference
        // is a loss only as far as records are known to be lost.
        let count = watch.last_count.unwrap_or(count).max(delivered + watch.missed);
        let lost = match watch.last_count {
            Some(_) if self.rings.is_ok() => count - delivered,
            Some(_) => 0,
            None => watch.missed,
        };
        let state = match watch.last_count {
            Some(_) => WatchState::Over,
            None if watch.share.is_armed() => WatchState::Armed,
            None => WatchState::Resting,
        };
        OutsideReport {
            watch: WatchReport {
                name: watch.spec.name.clone(),
                addr: watch.spec.addr,
                len: watch.spec.len,
                access: watch.spec.access,
                hits: count,
                delivered,
                passed: delivered,
                lost,
                sites,
                other_sites: watch.sites.other,
                state,
                coverage: Coverage {
                    threads_armed: if state == WatchState::Armed { threads } else { 0 },
                    threads_alive: threads,
                    armed_ns: watch.share.armed_ns(now),
                    wall_ns: watch.share.wall_ns(now),
                    rests: watch.throttle.rests(),
                    unread: watch.unread,
                    ..Coverage::default()
                },
            },
            counts_only: self.rings.as_ref().err().cloned(),
            unstreamed: watch.sites.unstreamed,
            end: self.end,
        }
    }
}

impl Watched {
    fn new(spec: &WatchSpec, now: u64) -> Self {
        let mut share = Share::new(now);
        share.set_armed(now, true);
        Self {
            spec: spec.clone(),
            sites: Sites::default(),
            throttle: Throttle::new(spec.rate, now),
            share,
            last_count: None,
            missed: 0,
            unread: 0,
        }
    }
}

/// The number of debug registers for memory that are free in a thread of any process, on any
/// processor. During the call all of them are taken.
///
/// # Errors
///
/// The kernel's error, as for a watch.
pub fn free_registers(tid: u32) -> Result<usize, Error> {
    registers_free(Subject::Thread(tid), nowhere()).map_err(|source| Error::Thread {
        tid,
        thread: String::new(),
        source,
    })
}

/// Whether less would be allowed: a watch without records.
fn is_limit(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::NoDescriptor(_) | Refusal::LockedMemory { .. })
}
