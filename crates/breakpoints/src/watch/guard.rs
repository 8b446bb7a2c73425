//! The guard of a watch: from the request to the last report.

use dormouse_sys::arch::{PASSES_WATCHES, WATCH_REGISTERS, WATCH_REGISTERS_VARY, WATCHES_STOP_BEHIND};
use dormouse_sys::clock::monotonic_ns;
use dormouse_sys::keeper::KeeperError;
use dormouse_sys::perf::Access;
use dormouse_sys::process::{identity, threads};
use dormouse_sys::trap::{self, Disposition};
use dormouse_sys::{environment, loader, perf, rendezvous};
use dormouse_unwind::own;

use super::duty::Duty;
use super::entry::{self, Claimed, MOST_WATCHES};
use super::holders;
use super::keeper::{self, KEEPER};
use super::known::Known;
use super::line::free_registers;
use super::losses::Losses;
use super::report::{Coverage, WatchHit, WatchReport, WatchSite, WatchState};
use super::sched::{self, Covered};
use super::spec::WatchSpec;
use super::tally::{Counts, Tally};
use crate::{Error, HeldSlot};

const _: () = assert!(sched::MOST_SCOPED == MOST_WATCHES);

/// An armed watch. It ends when this is dropped.
///
/// Out of memory: arming and reporting allocate, here and on the keeper. Both return an error if
/// there is too little memory, but an allocation may still fail in between, and that ends the
/// program as any other failed allocation does.
#[derive(Debug)]
#[must_use = "the watch ends when this is dropped"]
pub struct Watch {
    claimed: Claimed,
    losses: Losses,
    /// The process that armed it; a forked child has another number.
    process: u64,
    /// Whether the keeper has it.
    is_kept: bool,
}

impl WatchSpec {
    /// Arms the watch on all present and future threads, or on none.
    ///
    /// The host's handler of SIGTRAP, if it has one, still gets the traps that are its own. A
    /// handler that the host installs later must pass others on. If it does not, or if the host
    /// restores the default action, which ends the process at the next hit, the watch ends when a
    /// report detects it.
    ///
    /// The handler of hits runs on the alternate stack of threads that have one. Hits on a thread
    /// are lost, and counted, if that stack has less than 2 KiB below the kernel's frame, which
    /// takes 3 KiB with AVX-512.
    ///
    /// # Cost
    ///
    /// The thread waits for the keeper, which makes two system calls for each thread. While it is
    /// armed, each new thread starts some microseconds later.
    ///
    /// # Errors
    ///
    /// [`Error::NoRegister`] names the watches in the way, [`Error::Thread`] the thread for which
    /// the kernel refuses; the others name the obstacle to any watch here.
    pub fn arm(&self) -> Result<Watch, Error> {
        Watch::arm(self, None)
    }

    /// Arms the watch while tasks of this group run, and nowhere until one does: a task switch that
    /// supports groups calls [`sched_in`](crate::sched_in) and [`sched_out`](crate::sched_out). It
    /// is pinned, so it takes no turns. A task that runs already is armed at its thread's next
    /// switch, also after a rest; what it does before is missed, and not counted as unarmed. Also a
    /// watch that has had its [`Self::max_hits`] holds its registers until it is dropped.
    ///
    /// # Errors
    ///
    /// Those of [`Self::arm`], except those of single threads.
    pub fn arm_for_group(&self, group: u32) -> Result<Watch, Error> {
        Watch::arm(self, Some(group))
    }
}

impl Watch {
    fn arm(spec: &WatchSpec, group: Option<u32>) -> Result<Self, Error> {
        if let Some(why) = never() {
            return Err(why);
        }
        if environment::is_off() {
            return Err(KeeperError::Off.into());
        }
        if spec.access == Access::Execute && !WATCHES_STOP_BEHIND {
            return Err(Error::Processor);
        }
        let copy = take_signal()?;
        count_registers()?;
        // Without tables callers are found by frame pointers.
        let _no_tables = own::begin();
        let mut holders = holders::lock()?;
        let admitted = holders.admit(spec, group)?;
        let pieces = admitted.pieces.clone();
        let claimed = entry::claim(copy, |data| match group {
            Some(group) => Tally::new(spec.clone().in_group(group), pieces, data).following(),
            None => Tally::new(spec.clone(), pieces, data),
        });
        let claimed = claimed.ok_or(Error::TooManyWatches(MOST_WATCHES))?;
        let (number, tally) = (claimed.number(), &claimed.tally);
        holders.hold(number, &spec.name, admitted);
        let attrs = || (0..tally.pieces.len()).map(|piece| tally.attr(piece)).collect();
        let is_followed = group.is_none_or(|group| sched::begin(number, group, attrs()));
        drop(holders);
        // From here on its end is this guard's.
        let (losses, process) = (Losses::default(), identity::id());
        let mut watch = Self { claimed: claimed.clone(), losses, process, is_kept: false };
        if !is_followed {
            return Err(Error::Reentrant);
        }
        KEEPER.begin(move |duty| duty.take(claimed, group))??;
        watch.is_kept = true;
        Ok(watch)
    }

    /// The watch's number, unique among the present watches of the process.
    pub fn number(&self) -> u32 {
        self.claimed.number()
    }

    /// The result so far.
    ///
    /// # Cost
    ///
    /// On the keeper, for which this thread waits, a system call for each thread that was alive
    /// when the watch was armed; a few on this thread, unless a filter is in the way.
    pub fn report(&self) -> WatchReport {
        own::step();
        let number = self.number();
        let is_taken = is_signal_taken();
        // Before the kernel's count: no more hits are delivered than it has counted. It reads those
        // that are lost the other way round.
        let seen = self.seen();
        let answer = self.ask(move |duty| {
            duty.check_signal();
            duty.known(number)
        });
        self.report_of(answer, seen, is_taken)
    }

    /// The single hits since the last call. The first call turns the stream on: earlier hits are
    /// not in it. Up to a thousand hits are kept for the next call; further ones are dropped, and
    /// counted in [`Coverage::dropped`]. While one thread takes hits, another one gets none.
    pub fn take_hits(&self) -> Vec<WatchHit> {
        own::step();
        let mut hits = Vec::new();
        self.claimed.tally.take_hits(|hit| hits.push(hit));
        hits
    }

    /// Whether the watch is disarmed for good. If the keeper was killed, only [`Self::report`]
    /// detects that.
    pub fn is_over(&self) -> bool {
        self.claimed.tally.is_over() || !self.is_here()
    }

    /// Disarms the watch everywhere, and returns the last result. (After a drop, it is disarmed a
    /// moment later.)
    pub fn close(self) -> WatchReport {
        let number = self.number();
        if self.is_here() {
            self.end_following();
        }
        let answer = self.ask(move |duty| duty.leave(number, true));
        self.claimed.tally.set_over();
        self.report_of(answer, self.seen(), is_signal_taken())
    }

    /// Asks the keeper, unless this is a forked child, which has none of its watches.
    fn ask(&self, errand: impl FnOnce(&mut Duty) -> Option<Known> + Send + 'static) -> Answer {
        if self.is_here() { KEEPER.ask(errand) } else { Err(KeeperError::Forked) }
    }

    /// Disarms a watch of a group on all threads.
    fn end_following(&self) {
        if self.claimed.tally.is_following() {
            // The lock is given back before the rows are looked through.
            let ending = holders::lock().map(|_alone| sched::end(self.number()));
            drop(ending);
        }
    }

    /// The hits that handlers have counted so far: the places first, then the counts that include
    /// them.
    fn seen(&self) -> Seen {
        self.claimed.tally.follow_copies();
        let (sites, other_sites) = self.claimed.tally.sites.read();
        Seen { sites, other_sites, counts: self.claimed.tally.counts() }
    }

    /// Whether this is the process that armed it.
    fn is_here(&self) -> bool {
        self.process == identity::id()
    }

    fn report_of(&self, answer: Answer, seen: Seen, is_signal_taken: bool) -> WatchReport {
        let Tally { spec, last_known, .. } = &*self.claimed.tally;
        let Seen { sites, other_sites, counts } = seen;
        let (stale_because, is_gone) = stale_because(&answer);
        let known = answer.ok().flatten().unwrap_or_else(|| {
            let last = last_known.get();
            // No fewer than were delivered since.
            let delivered = last.delivered.max(counts.delivered);
            Known { hits: last.hits.max(delivered), delivered, ..last }
        });
        let state = match known.is_resting {
            _ if is_gone || self.is_over() => WatchState::Over,
            true => WatchState::Resting,
            false => WatchState::Armed,
        };
        let threads_alive = count_threads();
        let is_armed = known.is_armed && state == WatchState::Armed;
        let (hits, followed) = if self.claimed.tally.is_following() {
            // Descriptors of threads cannot be read by a caller with a table of its own.
            let hits = sched::hits(self.number()).saturating_sub(counts.again).max(counts.delivered);
            (if self.is_here() { hits } else { counts.delivered }, sched::covered(self.number()))
        } else {
            (known.hits, Covered { threads: if is_armed { threads_alive } else { 0 }, ..Covered::default() })
        };
        let missing = hits.saturating_sub(counts.delivered);
        let lost = if state == WatchState::Over {
            missing
        } else {
            let following = || self.claimed.tally.counts().delivered;
            let delivered = if self.claimed.tally.is_following() { following() } else { known.delivered };
            // Of how many threads is not known under a filter.
            let threads = if threads_alive == 0 { u64::MAX } else { u64::from(threads_alive) };
            let on_way = threads.saturating_mul(self.claimed.tally.pieces.len() as u64);
            // Its hits include those that it has counted twice since `seen` was read.
            let twice = self.claimed.tally.again().saturating_sub(counts.again);
            self.losses.look(hits.saturating_sub(twice), delivered, on_way, monotonic_ns());
            self.losses.of(missing)
        };
        WatchReport {
            name: spec.name.clone(),
            addr: spec.addr,
            len: spec.len,
            access: spec.access,
            hits,
            delivered: counts.delivered,
            passed: counts.passed,
            lost,
            sites,
            other_sites,
            state,
            coverage: Coverage {
                threads_armed: followed.threads,
                threads_alive,
                armed_ns: known.armed_ns,
                wall_ns: known.wall_ns,
                rests: known.rests,
                late: counts.late,
                unread: counts.unread,
                dropped: counts.dropped,
                unpassed: counts.unpassed,
                unarmed: followed.unarmed,
                unarmed_because: followed.reason,
                is_signal_taken,
                over_because: self.claimed.tally.over_because(),
                stale_because,
            },
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.is_here() {
            return;
        }
        let claimed = self.claimed.clone();
        let number = claimed.number();
        claimed.tally.set_over();
        // Before another watch may have the entry and the registers: its errand comes after the
        // end, and finds the registers free. A keeper that is not there has taken them with it.
        self.end_following();
        if self.is_kept {
            KEEPER.end(number);
        }
        let Ok(mut holders) = holders::lock() else { return };
        claimed.end();
        holders.release(number);
        drop(holders);
        // Flexible watches may have more registers now.
        KEEPER.wake();
    }
}

/// The keeper's answer. It does not know a watch that another keeper had, which was killed.
type Answer = Result<Option<Known>, KeeperError>;

/// Why figures are those of an earlier answer, and whether the watch is gone with its keeper.
fn stale_because(answer: &Answer) -> (Option<&'static str>, bool) {
    let (reason, is_gone) = match answer {
        Ok(Some(_)) => return (None, false),
        // It is armed as it was.
        Err(KeeperError::NoMemory) => ("there is no memory for reading the kernel's counts", false),
        Err(KeeperError::Busy) => ("the thread that reads the kernel's counts is busy", false),
        Err(KeeperError::Reentrant) => ("the kernel's counts cannot be read in a signal handler", false),
        Err(KeeperError::Forked) => ("this is a forked child's copy", true),
        Ok(None) | Err(_) => ("the thread that reads the kernel's counts was killed", true),
    };
    (Some(reason), is_gone)
}

/// The handlers' knowledge of a watch.
struct Seen {
    sites: Vec<WatchSite>,
    other_sites: u64,
    counts: Counts,
}

/// Whether SIGTRAP's action is not ours any more; no where a filter is in the way of the question.
fn is_signal_taken() -> bool {
    !perf::is_filtered() && !matches!(trap::disposition(), Ok(Disposition::Ours) | Err(_))
}

/// Makes SIGTRAP ours, once: the beginning of the data of this copy's events.
fn take_signal() -> Result<u64, Error> {
    let table = rendezvous::table()?;
    loader::pin_self().map_err(|error| Error::Signal(error.to_string()))?;
    let patching = table.patch.lock().map_err(|_| Error::Reentrant)?;
    let copy = trap::watch(keeper::on_trap);
    drop(patching);
    let copy = copy.map_err(|error| Error::Signal(error.to_string()))?;
    lost_signal().map_or(Ok(copy), Err)
}

/// Why SIGTRAP is not ours, which it was made; `None` if it is.
fn lost_signal() -> Option<Error> {
    let why = match trap::disposition() {
        Ok(Disposition::Ours) => return None,
        Ok(Disposition::Other(address)) => {
            let object = loader::object_of(address);
            format!("{object} has installed another one, at {address:#x}")
        }
        Ok(Disposition::Default | Disposition::Ignored) => {
            "the program has taken the signal back since".to_owned()
        }
        Err(error) => error.to_string(),
    };
    Some(Error::Signal(why))
}

/// Why a watch of this process would be refused before anything is armed: the processor or the
/// kernel cannot, there is a filter of system calls, or another handler has replaced dormouse's for
/// SIGTRAP.
/// `None` if no such reason is known.
pub fn refusal() -> Option<Error> {
    // The first watch takes the signal from anybody.
    never().or_else(|| trap::is_used().then(lost_signal).flatten()).or_else(too_old)
}

/// Why no watch of this process is possible.
fn never() -> Option<Error> {
    if !PASSES_WATCHES {
        return Some(Error::Processor);
    }
    perf::is_filtered().then_some(Error::Filtered)
}

/// The kernel's signals do not wait while a thread blocks them.
fn too_old() -> Option<Error> {
    let thread = || std::thread::current().name().unwrap_or_default().to_owned();
    perf::traps_refused().map(|source| Error::Thread { tid: identity::tid(), thread: thread(), source })
}

/// 0 under a filter, which may end the process for the question.
fn count_threads() -> u32 {
    if perf::is_filtered() {
        return 0;
    }
    let mut list = Vec::new();
    threads::list(&mut list).map_or(0, |_| list.len() as u32)
}

/// The debug registers of a thread that watch memory; 0: they cannot be counted here.
pub fn registers() -> u32 {
    if never().is_none() {
        let _uncounted = count_registers();
    }
    holders::registers()
}

/// Counts the registers where their number varies: those that the keeper's thread has free.
/// Something else may have some, so they are counted anew as long as no watch holds any. Not under
/// the lock of watches.
fn count_registers() -> Result<(), Error> {
    if WATCH_REGISTERS_VARY && holders::lock()?.list().is_empty() {
        let count = |_: &mut Duty| free_registers(identity::tid(), WATCH_REGISTERS);
        holders::set_registers(KEEPER.ask(count)??.unwrap_or(0));
    }
    Ok(())
}

/// The registers that watches of this process hold.
pub fn held() -> Vec<HeldSlot> {
    holders::lock().map_or(Vec::new(), |holders| holders.list())
}
