//! One watch as its hits see it: the values to compare with, and the counters.
//!
//! # Async-signal-safety
//!
//! [`Tally::hit`] runs in a signal handler: it allocates nothing and takes no lock. Its system
//! calls are `gettid`, `prctl`, `getpid` and `process_vm_readv` (one for the value, some more for a
//! stack).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use dormouse_sys::clock::monotonic_ns;
use dormouse_sys::perf::{Access, Attr, Breakpoint};
use dormouse_sys::process::identity;
use dormouse_sys::sync::{OnceBox, Queue};
use dormouse_sys::trap::{Passing, PerfTrap};
use dormouse_sys::{peek, thread};
use dormouse_unwind::{CopyEnd, MAY_LACK_ROOM, own};

use super::hook;
use super::known::LastKnown;
use super::report::WatchHit;
use super::sched;
use super::sites::{Hit, Sites};
use super::spec::{Filter, WatchSpec};
use super::split::{Piece, WIDEST};
use super::stack::{self, Walked};
use super::stream::{HitCopy, SingleHit};
use crate::MOST_SLOTS;

/// Single hits that wait for the reader.
const HITS: usize = 1024;
/// Copies of stacks that wait for the reader.
const COPIES: usize = 8;
/// The threads before an access that cannot be made which are told apart. A hit of a further one
/// passes for a repetition.
const MOST_STUCK: usize = 8;

#[derive(Debug)]
pub(super) struct Tally {
    pub(super) spec: WatchSpec,
    pub(super) pieces: Vec<Piece>,
    /// The beginning of the data of its events; the number of the piece is behind it.
    data: u64,
    /// The value that a hit of each piece has ([`Tally::bytes`]), at the last hit, or when the
    /// watch was armed. Of a value that all pieces share, the first.
    last: [AtomicU64; MOST_SLOTS as usize],
    delivered: AtomicU64,
    passed: AtomicU64,
    late: AtomicU64,
    unread: AtomicU64,
    /// Hits that the kernel has counted, of accesses that had one already.
    again: AtomicU64,
    /// Hits of accesses that the handler could not make.
    unpassed: AtomicU64,
    /// The threads that are before such an access, until the watch is disarmed: from the front, 0
    /// for none.
    stuck: [AtomicU32; MOST_STUCK],
    /// The keeper is woken when more hits were delivered.
    alarm: AtomicU64,
    pub(super) sites: Sites,
    queue: OnceBox<Queue<SingleHit>>,
    /// Where handlers may lack the room for a walk.
    copies: OnceBox<Queue<HitCopy>>,
    /// Whether a thread reads the queue of hits.
    is_read: AtomicBool,
    /// Whether a thread follows the copies.
    are_followed: AtomicBool,
    /// Since when its lines are armed on every thread; `u64::MAX`: they are not.
    armed_since: AtomicU64,
    /// The keeper's last answer about it.
    pub(super) last_known: LastKnown,
    /// Set by the keeper when the watch is disarmed for good.
    is_over: AtomicBool,
    /// The reason, if it was not its end.
    over_because: OnceBox<&'static str>,
    /// It is a group's, whose tasks it follows.
    is_following: bool,
}

/// Counts of a watch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    pub(super) delivered: u64,
    pub(super) passed: u64,
    pub(super) late: u64,
    pub(super) unread: u64,
    pub(super) again: u64,
    pub(super) unpassed: u64,
    pub(super) dropped: u64,
}

impl Tally {
    pub(super) fn new(spec: WatchSpec, pieces: Vec<Piece>, data: u64) -> Self {
        let tally = Self {
            spec,
            pieces,
            data,
            last: [const { AtomicU64::new(0) }; MOST_SLOTS as usize],
            delivered: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            late: AtomicU64::new(0),
            unread: AtomicU64::new(0),
            again: AtomicU64::new(0),
            unpassed: AtomicU64::new(0),
            stuck: [const { AtomicU32::new(0) }; MOST_STUCK],
            alarm: AtomicU64::new(u64::MAX),
            sites: Sites::new(),
            queue: OnceBox::new(),
            copies: OnceBox::new(),
            is_read: AtomicBool::new(false),
            are_followed: AtomicBool::new(false),
            armed_since: AtomicU64::new(u64::MAX),
            last_known: LastKnown::default(),
            is_over: AtomicBool::new(false),
            over_because: OnceBox::new(),
            is_following: false,
        };
        // The clock finds its function here, by `dlsym`, which a handler must not call.
        monotonic_ns();
        if MAY_LACK_ROOM {
            let _no_memory = tally.copies.get_or_try_init(|| Queue::map(COPIES).map(Box::new));
        }
        tally.look();
        tally
    }

    /// The tally of a watch that follows a group's tasks.
    pub(super) fn following(self) -> Self {
        Self { is_following: true, ..self }
    }

    pub(super) fn is_following(&self) -> bool {
        self.is_following
    }

    /// The watch's number, as its entry gives it.
    fn number(&self) -> u32 {
        (self.data >> MOST_SLOTS.ilog2()) as u32
    }

    /// Before it is armed: looks at the values, which a hit that comes next changes. No thread is
    /// stuck yet.
    pub(super) fn look(&self) {
        self.stuck.iter().for_each(|tid| tid.store(0, Ordering::Relaxed));
        if self.spec.access == Access::Execute {
            return;
        }
        for (addr, len, last) in (0..self.pieces.len()).filter_map(|piece| self.bytes(piece)) {
            if let Some(value) = peek::value(addr, len) {
                last.store(value, Ordering::Relaxed);
            }
        }
    }

    /// The bytes whose value a hit of a piece has, by address and length, and their last value.
    fn bytes(&self, piece: usize) -> Option<(usize, usize, &AtomicU64)> {
        let WatchSpec { addr: first, len: all, .. } = self.spec;
        let (addr, len) = self.pieces.get(piece)?.shown(first, all);
        let last = self.last.get(if all <= WIDEST { 0 } else { piece })?;
        Some((addr, len, last))
    }

    /// The event of one piece.
    pub(super) fn attr(&self, piece: usize) -> Attr {
        let Piece { addr, len, .. } = self.pieces[piece];
        // A piece is aligned, so this has no error.
        let breakpoint =
            Breakpoint::watch(addr, len, self.spec.access).unwrap_or_else(|_| Breakpoint::execute(addr));
        Attr::breakpoint(breakpoint).trapping(self.data | piece as u64)
    }

    /// From now on the keeper is woken when there were more hits than this.
    pub(super) fn set_alarm(&self, hits: u64) {
        self.alarm.store(hits, Ordering::Relaxed);
    }

    pub(super) fn set_armed(&self, is_armed: bool) {
        self.armed_since.store(if is_armed { monotonic_ns() } else { u64::MAX }, Ordering::Relaxed);
    }

    /// Whether a thread cannot go on before the watch is disarmed.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck[0].load(Ordering::Relaxed) != 0
    }

    /// A thread is stuck; whether that is new.
    fn sticks(&self, tid: u32) -> bool {
        let found = self.stuck.iter().find_map(|place| {
            match place.compare_exchange(0, tid, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => Some(true),
                Err(other) => (other == tid).then_some(false),
            }
        });
        found.unwrap_or(false)
    }

    /// The kernel has counted an access twice.
    pub(super) fn count_again(&self) {
        // Pairs with the load in `again`: the kernel has counted before.
        self.again.fetch_add(1, Ordering::Release);
    }

    /// How many hits the kernel has counted twice. Read it before the kernel's count.
    pub(super) fn again(&self) -> u64 {
        self.again.load(Ordering::Acquire)
    }

    /// Whether the kernel has counted an access of this byte, also if it has told another watch.
    pub(super) fn has_counted(&self, at: usize, is_store: bool, came: u64) -> bool {
        let is_in = |piece: &Piece| (piece.addr..piece.addr + piece.len as usize).contains(&at);
        let counts = is_store || self.spec.access == Access::ReadWrite;
        counts && self.armed_since.load(Ordering::Relaxed) < came && self.pieces.iter().any(is_in)
    }

    /// Whether a hit of the address can be one of this piece; 0: unknown.
    pub(super) fn is_of(&self, piece: usize, addr: usize) -> bool {
        addr == 0 || self.pieces.get(piece).is_none_or(|piece| piece.addr == addr)
    }

    /// The piece that begins at the address.
    pub(super) fn piece_at(&self, addr: usize) -> Option<usize> {
        self.pieces.iter().position(|piece| piece.addr == addr)
    }

    /// The piece with this number, and the accesses that hit it.
    pub(super) fn place(&self, number: usize) -> Option<(Piece, Access)> {
        Some((*self.pieces.get(number)?, self.spec.access))
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed_since.load(Ordering::Relaxed) != u64::MAX
    }

    /// The number of the piece that has the same bytes, and is hit by the same accesses, if it was
    /// armed on every thread when the hit came.
    pub(super) fn also_hit(&self, (piece, access): (Piece, Access), came: u64) -> Option<usize> {
        let is_same = |own: &Piece| (own.addr, own.len) == (piece.addr, piece.len);
        let found = self.pieces.iter().position(is_same)?;
        // One that was armed after the hit has not counted it.
        (self.spec.access == access && self.armed_since.load(Ordering::Relaxed) < came).then_some(found)
    }

    pub(super) fn set_over(&self) {
        // Pairs with the load in `is_over`: the last counts come before it.
        self.is_over.store(true, Ordering::Release);
    }

    /// Disarmed for good, for this reason.
    pub(super) fn end_for(&self, reason: &'static str) {
        let _first = self.over_because.get_or_init(|| Box::new(reason));
        self.set_over();
    }

    /// The reason why it has ended before its time.
    pub(super) fn over_because(&self) -> Option<&'static str> {
        self.over_because.get().copied()
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    pub(super) fn counts(&self) -> Counts {
        // First, so that there are no more than are delivered. Pairs with the addition in `hit`.
        let passed = self.passed.load(Ordering::Acquire).min(self.spec.max_hits);
        Counts {
            delivered: self.delivered.load(Ordering::Acquire),
            passed,
            late: self.late.load(Ordering::Relaxed),
            unread: self.unread.load(Ordering::Relaxed),
            again: self.again(),
            unpassed: self.unpassed.load(Ordering::Relaxed),
            dropped: self.queue.get().map_or(0, Queue::dropped),
        }
    }

    /// Takes the single hits that wait; the first call turns the stream on. None while another
    /// thread takes them, and where there is no memory for the queue.
    pub(super) fn take_hits(&self, mut take: impl FnMut(WatchHit)) {
        let queue = self.queue.get_or_try_init(|| Queue::map(HITS).map(Box::new));
        if let Ok(queue) = queue {
            alone(&self.is_read, || queue.drain(|hit| take(WatchHit::from(&*hit))));
        }
    }

    /// Finds the callers in copies of stacks.
    pub(super) fn follow_copies(&self) {
        let Some(copies) = self.copies.get() else { return };
        let mut functions = Vec::new();
        alone(&self.are_followed, || {
            copies.drain(|copy| {
                let end = own::follow(copy.registers, copy.bytes(), &mut functions);
                // Else nothing is known, and a later hit leaves its stack.
                if functions.len() > 1 || end == CopyEnd::Outermost {
                    let (walked, callers) = Walked::of_copy(&functions, end);
                    let kept = walked.depth.min(callers.len());
                    self.sites.set_stack(copy.ip, copy.group, &callers[..kept], walked);
                }
                copy.wipe();
            });
        });
    }

    /// Counts a hit of a piece, on the thread that made it, which came to the handler at this time.
    /// Returns whether the keeper must look at the watch now.
    #[must_use]
    pub(super) fn hit(&self, number: usize, trap: &PerfTrap, came: u64) -> bool {
        let (is_ahead, tid) = (trap.passing() == Passing::Ahead, identity::tid());
        if is_ahead && !self.is_following && !self.sticks(tid) {
            // It has come back before the watch was disarmed.
            self.count_again();
            return true;
        }
        let is_late = trap.is_late != 0;
        let delivered = self.delivered.fetch_add(1, Ordering::Relaxed) + 1;
        let alarm = self.alarm.load(Ordering::Relaxed);
        // One hit takes the alarm; the keeper sets the next one.
        let is_alarm = delivered > alarm
            && self.alarm.compare_exchange(alarm, u64::MAX, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_late {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        let values = if is_ahead {
            self.unpassed.fetch_add(1, Ordering::Relaxed);
            Some(None)
        } else {
            self.values(number)
        };
        // The keeper disarms a watch for a thread that cannot go on.
        let is_alarm = is_alarm || is_ahead;
        let current = thread::find(tid).map(thread::ThreadBlock::own_current).unwrap_or_default();
        let is_of = |group| current.task != 0 && group == current.group;
        let in_group = self.spec.filter.group.is_none_or(is_of);
        if self.is_following {
            sched::on_hit(self.number(), in_group);
            if is_ahead {
                // Until the thread's next switch.
                sched::sched_out(self.number());
            }
        }
        let Some(seen) = values.filter(|_| in_group) else { return is_alarm };
        // Pairs with the load in `counts`: it is delivered.
        let nth = self.passed.fetch_add(1, Ordering::Release) + 1;
        if nth > self.spec.max_hits {
            return true;
        }
        let hit = Hit {
            ip: if is_late { 0 } else { trap.ip },
            group: current.group,
            tid,
            task: current.task,
            mono_ns: came,
            old: seen.map_or(0, |(old, _)| old),
            new: seen.map_or(0, |(_, new)| new),
            has_values: seen.is_some(),
        };
        // A late signal comes at another place.
        let walk = |put: &mut dyn FnMut(usize, usize)| {
            if is_late { None } else { stack::walk(tid, trap, put) }
        };
        self.sites.add(&hit, |put| {
            let walked = walk(put);
            if walked.is_none()
                && !is_late
                && let Some(copies) = self.copies.get()
            {
                HitCopy::push(copies, &hit, stack::registers(trap));
            }
            walked
        });
        if let Some(queue) = self.queue.get() {
            SingleHit::push(queue, &hit, walk);
        }
        if let Some(event) = self.spec.event {
            hook::hit(event);
        }
        is_alarm || nth == self.spec.max_hits
    }

    /// The values before and after the hit of a piece, if they pass the filters. Executions have
    /// none, and a value that cannot be read passes.
    #[expect(clippy::option_option, reason = "passes, and with values")]
    fn values(&self, number: usize) -> Option<Option<(u64, u64)>> {
        let (piece, (addr, len, last)) = (self.pieces.get(number)?, self.bytes(number)?);
        if self.spec.access == Access::Execute {
            return Some(None);
        }
        let Some(new) = peek::value(addr, len) else {
            self.unread.fetch_add(1, Ordering::Relaxed);
            return Some(None);
        };
        let old = last.swap(new, Ordering::Relaxed);
        passes(self.spec.filter, piece.is_wide(), len, old, new).then_some(Some((old, new)))
    }
}

/// Reads a queue, unless another thread does so.
fn alone(is_read: &AtomicBool, read: impl FnOnce()) {
    // Acquire: pairs with the store below.
    if !is_read.swap(true, Ordering::Acquire) {
        read();
        is_read.store(false, Ordering::Release);
    }
}

/// Whether a change of a value of `len` bytes is to be reported.
fn passes(filter: Filter, is_wide: bool, len: usize, old: u64, new: u64) -> bool {
    let whole = u64::MAX >> (u64::BITS - 8 * len as u32);
    let mask = filter.mask.unwrap_or(u64::MAX) & whole;
    // A piece that is wider than the range is hit by stores beside it, which change nothing of it.
    (!is_wide || old != new)
        && (!filter.changed || (old ^ new) & mask != 0)
        && filter.equals.is_none_or(|value| (value ^ new) & mask == 0)
}

#[cfg(test)]
mod tests {
    use dormouse_sys::perf::WatchLen;

    use super::*;

    #[test]
    fn each_thread_that_is_stuck_is_a_hit() {
        static VALUE: AtomicU64 = AtomicU64::new(0);
        let addr = VALUE.as_ptr().addr();
        let piece = Piece { addr, len: WatchLen::Eight, watched: u64::MAX };
        let tally = Tally::new(WatchSpec::new(addr, 8, Access::Write), vec![piece], 0);
        let trap = PerfTrap { ip: 0x1000, addr, passing: Passing::Ahead as usize, ..PerfTrap::default() };
        let counts = || {
            let Counts { delivered, unpassed, again, .. } = tally.counts();
            (delivered, unpassed, again, tally.is_stuck())
        };
        let hit_twice = || (0..2).for_each(|_| assert!(tally.hit(0, &trap, 1), "the keeper must come"));
        hit_twice();
        assert_eq!(counts(), (1, 1, 1, true));
        std::thread::scope(|scope| scope.spawn(hit_twice).join().unwrap());
        assert_eq!(counts(), (2, 2, 2, true));
        tally.look();
        tally.set_armed(true);
        assert!(!tally.is_stuck());
        hit_twice();
        // The lines of all threads are armed only now, and one is stuck already.
        tally.set_armed(true);
        hit_twice();
        assert_eq!(counts(), (3, 3, 5, true));
    }

    #[test]
    fn filters_compare_masked_bits_alone() {
        let all = Filter::default();
        let changed = Filter { changed: true, ..all };
        let equals = Filter { equals: Some(0x12ff), mask: Some(0xff00), ..all };
        let negative = Filter { equals: Some(u64::MAX), ..all };
        for (filter, is_wide, len, old, new, expected) in [
            (all, false, 2, 1, 1, true),
            (changed, false, 2, 1, 1, false),
            (changed, false, 2, 1, 2, true),
            (Filter { mask: Some(0xff00), ..changed }, false, 2, 1, 2, false),
            (all, true, 1, 1, 1, false),
            (all, true, 1, 1, 2, true),
            (equals, false, 2, 0, 0x1234, true),
            (equals, true, 2, 0x1233, 0x1234, true),
            (equals, false, 2, 0, 0x1334, false),
            (negative, false, 2, 0, 0xffff, true),
            (negative, false, 8, 0, 0xffff, false),
        ] {
            let passes = passes(filter, is_wide, len, old, new);
            assert_eq!(passes, expected, "{filter:?} {is_wide} {len} {old} {new}");
        }
    }
}
