//! What a thread charges, and since which readings: where other threads can see it.
//!
//! A *stay* is the time for which a thread charges the same context. Its owner begins and ends it without a
//! barrier or a locked instruction. Two others look at it: a reader, who adds what has not been charged yet, and
//! whoever changes what is counted, who *settles* it: charges the part up to now in the owner's stead, and leaves
//! new readings from which the owner is to go on.
//!
//! # Invariants
//!
//! 1. `sequence` is odd while the owner changes the stay, else it is the stay's number, which is never used again. A
//!    signal handler over the owner may have stays of its own between any two instructions, but not while the number is
//!    odd.
//! 2. Each part of a stay is charged once. `settled` decides by whom: who moves it has the part. The owner need not look
//!    at it as long as the generation has not moved: whoever changes what is counted moves the generation, *then* has
//!    every thread pass a barrier, *then* looks. So either it sees that the owner is changing the stay, or the owner sees
//!    the new generation.
//! 3. `settled` holds the stay's number, how often it was settled, and whether its owner has claimed the rest. Of
//!    the two settlements the one in force has the parity of that count; the other one is written before `settled`
//!    moves. There is one settler at a time (the lock of [`crate::control`]).
//! 4. A stay whose number says that it is idle charges nothing, whatever else is there: that waits for the thread's next
//!    task, which mostly is of the same context and need not change it.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;

use crate::layout::{Layout, MAX_COUNTERS, NOTHING, Readings};
use crate::primitive::{AtomicPtr, AtomicU32, AtomicU64, const_fn, fence, light_barrier, zeros};

/// No generation: of a stay that began while nothing was counted anywhere.
pub(crate) const ASLEEP: u64 = 0;

/// All places are known.
const ALL: u32 = u32::MAX;

/// Of a stay's number: its owner is changing it.
const CHANGING: u64 = 1;
/// Of a stay's number: nothing is charged.
const IDLE: u64 = 2;
/// From one number to the next.
const NEXT: u64 = 4;

/// How often a stay is looked at whose owner is changing it.
#[cfg(not(all(test, loom)))]
const PATIENCE: usize = 1000;

/// Of `settled`: the owner has claimed the rest of the stay.
const CLAIMED: u64 = 1;
/// Of `settled`: once more.
const ONCE: u64 = 2;
const STAY_SHIFT: u32 = 8;

/// Of `context`: the task is not one of many.
const SPECIAL: u32 = 1 << 31;
/// Numbers of contexts are below.
pub(crate) const NUMBERS: u32 = SPECIAL;

/// From where a part of a stay is charged.
#[derive(Debug)]
struct From {
    layout: AtomicPtr<Layout>,
    /// The places whose readings are known.
    known: AtomicU32,
    /// The events that are the context's, too, where the task is special.
    shared: AtomicU64,
    readings: [AtomicU64; MAX_COUNTERS],
}

/// What one thread charges.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Stay {
    sequence: AtomicU64,
    /// The last number that `sequence` had outside of changes: for the owner.
    number: AtomicU64,
    /// The number of the context; with [`SPECIAL`] if the task has anything of its own.
    context: AtomicU32,
    /// The context whose task came on last. What it was charged by the way is kept here until another comes on: no
    /// locked instruction for polls of one context after another.
    owed_to: AtomicU32,
    /// How many tasks came on in it.
    entries: AtomicU64,
    /// Its CPU time in stays that are over.
    owed: AtomicU64,
    /// The generation that the owner has seen at its beginning.
    generation: AtomicU64,
    settled: AtomicU64,
    /// What a special task counts beside what its context does, and what it does not count.
    more: AtomicU64,
    less: AtomicU64,
    own: From,
    settlements: [From; 2],
    /// By settlement: what of its events settlers have charged in the owner's stead.
    taken: [[AtomicU64; MAX_COUNTERS]; 2],
}

/// A part of a stay that is to be charged.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) layout: &'static Layout,
    pub(crate) known: u32,
    /// The events that are charged to the context, and not to the task alone.
    pub(crate) shared: u64,
    pub(crate) readings: Readings,
    /// What settlers have charged to the context in the owner's stead, place by place, of events that are counted
    /// still. What else the owner charges of it is left to the owner.
    pub(crate) taken: Option<Readings>,
}

/// What is counted for a stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Nothing.
    Nothing,
    /// Task-clock alone.
    Clock {
        /// What it showed at the beginning.
        since: u64,
    },
    /// Something else, or it has changed since the beginning.
    Else,
}

/// What a stay was when somebody looked.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    stay: u64,
    settled: u64,
    pub(crate) context: u32,
    /// The events that its task counts beside those of its context, and those that it does not count.
    pub(crate) more: u64,
    pub(crate) less: u64,
    /// To which context these tasks and this CPU time are owed.
    pub(crate) owed_to: u32,
    pub(crate) entries: u64,
    pub(crate) owed: u64,
    pub(crate) generation: u64,
    pub(crate) part: Part,
}

impl Seen {
    /// Whether nothing was counted when the stay began, nor since. Then it is the thread's block that says whether there is
    /// a task.
    pub(crate) fn is_empty(&self) -> bool {
        self.generation == ASLEEP && self.part.layout.is_empty()
    }
}

impl From {
    const_fn! {
        fn new() -> Self {
            Self {
                layout: AtomicPtr::new((&raw const NOTHING).cast_mut()),
                known: AtomicU32::new(0),
                shared: AtomicU64::new(0),
                readings: zeros!(),
            }
        }
    }

    #[inline]
    fn set(&self, layout: &'static Layout, known: u32, readings: &Readings) {
        for (place, reading) in self.readings.iter().zip(readings).take(layout.len()) {
            place.store(*reading, Relaxed);
        }
        self.known.store(known, Relaxed);
        // Pairs with the load in `Layout::behind`: who sees the pointer sees what it points to.
        self.layout.store(std::ptr::from_ref(layout).cast_mut(), Release);
    }

    fn part(&self, is_special: bool) -> Part {
        let layout = Layout::behind(&self.layout);
        let mut readings = Readings::default();
        for (reading, place) in readings.iter_mut().zip(&self.readings).take(layout.len()) {
            *reading = place.load(Relaxed);
        }
        let shared = if is_special { self.shared.load(Relaxed) } else { u64::MAX };
        Part { layout, known: self.known.load(Relaxed), shared, readings, taken: None }
    }
}

impl Part {
    const NOTHING: Self =
        Self { layout: &NOTHING, known: 0, shared: 0, readings: [0; MAX_COUNTERS], taken: None };

    /// What was counted from here until the places `known` of `readings`: number of the event and count.
    pub(crate) fn until(&self, readings: &Readings, known: u32) -> impl Iterator<Item = (usize, u64)> {
        let known = self.known & known;
        let differences = self.readings.iter().zip(*readings);
        self.layout
            .accounts()
            .zip(differences)
            .enumerate()
            .filter(move |(place, _)| known & 1 << place != 0)
            // Saturating: in a fork child the counters of its thread begin again, and the owner's clock may be a
            // little ahead of the kernel's.
            .map(|(_, (account, (from, to)))| (account, to.saturating_sub(*from)))
    }

    /// Whether event number `account` is charged to the context.
    pub(crate) fn is_shared(&self, account: usize) -> bool {
        self.shared & 1 << account != 0
    }
}

/// For the owner.
impl Stay {
    const_fn! {
        pub(crate) fn new() -> Self {
            Self {
                sequence: AtomicU64::new(IDLE),
                number: AtomicU64::new(IDLE),
                context: AtomicU32::new(0),
                owed_to: AtomicU32::new(0),
                entries: AtomicU64::new(0),
                owed: AtomicU64::new(0),
                generation: AtomicU64::new(ASLEEP),
                settled: AtomicU64::new(0),
                more: AtomicU64::new(0),
                less: AtomicU64::new(0),
                own: From::new(),
                settlements: [From::new(), From::new()],
                taken: [zeros!(), zeros!()],
            }
        }
    }

    /// Whether the thread is in the middle of a change: then a signal handler has interrupted it.
    #[inline]
    pub(crate) fn is_changing(&self) -> bool {
        self.sequence.load(Relaxed) & CHANGING != 0
    }

    /// Whether nothing is charged.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.sequence.load(Relaxed) & IDLE != 0
    }

    /// Whether the stay goes on with a task of context number `context` that asks for nothing of its own.
    #[inline]
    pub(crate) fn goes_on(&self, context: u32, generation: u64) -> bool {
        self.generation.load(Relaxed) == generation
            && self.context.load(Relaxed) == context
            && self.sequence.load(Relaxed) & (IDLE | CHANGING) == 0
    }

    /// One more task has come on.
    #[inline]
    pub(crate) fn count_entry(&self) {
        // One writer.
        self.entries.store(self.entries.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Begins a change, which ends the stay; gives its number.
    #[inline]
    pub(crate) fn begin(&self) -> u64 {
        let mut stay = self.number.load(Relaxed);
        self.sequence.store(stay | CHANGING, Relaxed);
        compiler_fence(SeqCst);
        // From here on no handler changes it any more. One that came before the store has used up the number, and a reader
        // who took the odd one for one change may be wrong by what it has paid.
        let now = self.number.load(Relaxed);
        if now != stay {
            stay = now;
            self.sequence.store(stay | CHANGING, Relaxed);
        }
        // Pairs with the acquire fence of `is_still`: who sees a new field sees the odd number.
        fence(Release);
        // Its other side is in `control`: see invariant 2.
        light_barrier();
        stay
    }

    /// Takes back that a change of stay `stay` has begun: nothing of it has changed.
    #[inline]
    pub(crate) fn cancel(&self, stay: u64) {
        // Pairs with the first load of `look`.
        self.sequence.store(stay, Release);
    }

    /// What is counted for the stay `stay`, where that is soon said.
    #[inline]
    pub(crate) fn counted(&self, stay: u64, generation: u64) -> Counted {
        if self.generation.load(Relaxed) != generation {
            return Counted::Else;
        }
        let layout = Layout::behind(&self.own.layout);
        if stay & IDLE != 0 || layout.is_empty() {
            Counted::Nothing
        } else if layout.is_clock() {
            Counted::Clock { since: self.first() }
        } else {
            Counted::Else
        }
    }

    /// What the first counter showed at the beginning.
    #[inline]
    pub(crate) fn first(&self) -> u64 {
        self.own.readings[0].load(Relaxed)
    }

    /// Keeps CPU time of the context that it is owed to.
    #[inline]
    pub(crate) fn owe(&self, ns: u64) {
        self.owed.store(self.owed.load(Relaxed).wrapping_add(ns), Relaxed);
    }

    /// Whether it is owed to context number `context`.
    #[inline]
    pub(crate) fn is_owed_to(&self, context: u32) -> bool {
        self.owed_to.load(Relaxed) == context
    }

    /// How many tasks came on, and the CPU time; they are the caller's to charge. From now on it is owed to `context`.
    #[inline]
    pub(crate) fn pay(&self, context: u32) -> (u64, u64) {
        let paid = (self.entries.load(Relaxed), self.owed.load(Relaxed));
        self.entries.store(0, Relaxed);
        self.owed.store(0, Relaxed);
        // Pairs with the load in `owing`: what was owed to another is not taken to be owed to this one.
        self.owed_to.store(context, Release);
        paid
    }

    /// To which context it is owed, how many tasks came on, and the CPU time; also in the middle of a change.
    fn owing(&self) -> (u32, u64, u64) {
        // Pairs with the store in `pay`.
        (self.owed_to.load(Acquire), self.entries.load(Relaxed), self.owed.load(Relaxed))
    }

    /// What is left to charge of stay `stay`, whose owner has seen `generation` now. The owner has it, nobody else.
    #[inline]
    pub(crate) fn rest(&self, stay: u64, generation: u64) -> Part {
        if stay & IDLE != 0 {
            return Part::NOTHING;
        }
        if self.generation.load(Relaxed) == generation {
            return self.own.part(self.is_special());
        }
        self.claim(stay)
    }

    #[cold]
    fn claim(&self, stay: u64) -> Part {
        // Acquire and release pair with the exchange in `settle`.
        let claimed = self.settled.fetch_update(AcqRel, Acquire, |settled| {
            let settled = if settled >> STAY_SHIFT == stay { settled } else { stay << STAY_SHIFT };
            Some(settled | CLAIMED)
        });
        match claimed {
            Ok(settled) if settled >> STAY_SHIFT == stay && settled & !(stay << STAY_SHIFT) != 0 => {
                self.settled_part(settled, self.is_special())
            }
            _ if self.generation.load(Relaxed) == ASLEEP => Part::NOTHING,
            _ => self.own.part(self.is_special()),
        }
    }

    fn is_special(&self) -> bool {
        self.context.load(Relaxed) & SPECIAL != 0
    }

    /// The events of the stay that are charged to its context.
    #[inline]
    pub(crate) fn shared(&self) -> u64 {
        if self.is_special() { self.own.shared.load(Relaxed) } else { u64::MAX }
    }

    /// Says that of what the thread charges from now on, for a special task, its context gets `mask`.
    #[cold]
    pub(crate) fn share(&self, mask: u64) {
        self.own.shared.store(mask, Relaxed);
    }

    /// Says that the thread charges what `layout` has from `readings` on.
    #[inline]
    pub(crate) fn set(&self, generation: u64, layout: &'static Layout, readings: &Readings) {
        self.generation.store(generation, Relaxed);
        self.own.set(layout, ALL, readings);
    }

    /// As [`Stay::set`], for a layout of one place at most and the generation that the stay has.
    #[inline]
    pub(crate) fn set_one(&self, layout: &'static Layout, reading: u64) {
        self.set_first(reading);
        // Known since `set`. The rest is as in `From::set`.
        self.own.layout.store(std::ptr::from_ref(layout).cast_mut(), Release);
    }

    /// The same, for the layout that the stay has.
    #[inline]
    pub(crate) fn set_first(&self, reading: u64) {
        self.own.readings[0].store(reading, Relaxed);
    }

    /// Whether nothing was counted anywhere when the stay began.
    #[inline]
    pub(crate) fn is_asleep(&self) -> bool {
        self.generation.load(Relaxed) == ASLEEP
    }

    /// Whether stay `stay`, which its owner ends, has nothing to charge: it is asleep, and nobody has begun to count for it.
    #[inline]
    pub(crate) fn is_empty(&self, stay: u64) -> bool {
        self.is_asleep() && self.settled.load(Relaxed) >> STAY_SHIFT != stay
    }

    /// Says that nothing is counted anywhere.
    #[inline]
    pub(crate) fn set_asleep(&self) {
        self.generation.store(ASLEEP, Relaxed);
    }

    /// Says for which context the thread works.
    #[inline]
    pub(crate) fn set_context(&self, context: u32) {
        self.context.store(context, Relaxed);
    }

    /// The same, for a task with anything of its own: `more` events than its context counts, and less `less`.
    #[cold]
    pub(crate) fn set_special(&self, context: u32, (more, less): (u64, u64)) {
        self.context.store(context | SPECIAL, Relaxed);
        self.more.store(more, Relaxed);
        self.less.store(less, Relaxed);
    }

    /// Ends the change that [`Stay::begin`] began at `stay`, and begins the next stay.
    #[inline]
    pub(crate) fn end(&self, stay: u64) {
        self.become_number((stay & !IDLE) + NEXT);
    }

    /// The same, of one that is idle.
    #[inline]
    pub(crate) fn end_idle(&self, stay: u64) {
        self.become_number((stay | IDLE) + NEXT);
    }

    /// The same, of one that is idle if the last one was.
    pub(crate) fn end_alike(&self, stay: u64) {
        self.become_number(stay + NEXT);
    }

    #[inline]
    fn become_number(&self, stay: u64) {
        self.number.store(stay, Relaxed);
        compiler_fence(SeqCst);
        // Pairs with the first load of `look`.
        self.sequence.store(stay, Release);
    }
}

impl Part {
    /// What settlers have charged: number of the event and count.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (usize, u64)> {
        self.taken.into_iter().flat_map(|taken| self.layout.accounts().zip(taken))
    }

    /// This part comes after `last`, of which `counts` are charged now.
    pub(crate) fn take(&mut self, last: &Self, counts: &[(usize, u64)]) {
        let mut taken = Readings::default();
        for (place, account) in self.layout.accounts().enumerate() {
            let of = |(there, n): (usize, u64)| (there == account).then_some(n);
            taken[place] =
                last.taken().filter_map(of).sum::<u64>() + counts.iter().copied().filter_map(of).sum::<u64>();
        }
        self.taken = Some(taken);
    }

    /// Takes the readings of events that `layout` has too, of its places `known`.
    pub(crate) fn take_over(&mut self, layout: &Layout, readings: &Readings, known: u32) {
        for (place, account) in self.layout.accounts().enumerate() {
            let there = layout.accounts().position(|there| there == account);
            if let Some(there) = there.filter(|there| known & 1 << there != 0) {
                self.readings[place] = readings[there];
                self.known |= 1 << place;
            }
        }
    }
}

/// For the others.
impl Stay {
    fn settled_part(&self, settled: u64, is_special: bool) -> Part {
        let settlement = (settled / ONCE % 2) as usize;
        let mut part = self.settlements[settlement].part(is_special);
        let mut taken = Readings::default();
        for (taken, place) in taken.iter_mut().zip(&self.taken[settlement]).take(part.layout.len()) {
            *taken = place.load(Relaxed);
        }
        part.taken = Some(taken);
        part
    }

    /// What the stay is; `None` while its owner changes it.
    pub(crate) fn look(&self) -> Option<Seen> {
        // Pairs with the stores of `become_number` and `cancel`.
        let stay = self.sequence.load(Acquire);
        if stay & CHANGING != 0 {
            return None;
        }
        // Pairs with the exchange in `settle`: who sees the count sees the settlement.
        let settled = self.settled.load(Acquire);
        let generation = self.generation.load(Relaxed);
        let context = if stay & IDLE == 0 { self.context.load(Relaxed) } else { 0 };
        let is_special = context & SPECIAL != 0;
        let part = match settled {
            _ if stay & IDLE != 0 => Part::NOTHING,
            _ if settled >> STAY_SHIFT == stay && settled & !(stay << STAY_SHIFT) != 0 => {
                self.settled_part(settled, is_special)
            }
            _ if generation == ASLEEP => Part::NOTHING,
            _ => self.own.part(is_special),
        };
        let (owed_to, entries, owed) = self.owing();
        let context = context & !SPECIAL;
        let (more, less) =
            if is_special { (self.more.load(Relaxed), self.less.load(Relaxed)) } else { (0, 0) };
        let seen = Seen { stay, settled, context, more, less, owed_to, entries, owed, generation, part };
        self.is_still(&seen).then_some(seen)
    }

    /// As [`Stay::look`]. A change takes nanoseconds; one whose owner was descheduled in the middle is not waited for:
    /// then it is said what is owed, and nothing else.
    #[cfg(not(all(test, loom)))]
    pub(crate) fn watch(&self) -> Seen {
        for _ in 0..PATIENCE {
            if let Some(seen) = self.look() {
                return seen;
            }
            std::hint::spin_loop();
        }
        // In one change the owner pays once, so what is owed goes with whom it is owed to.
        let stay = self.sequence.load(Acquire);
        let (owed_to, entries, owed) = self.owing();
        // As in `is_still`.
        fence(Acquire);
        let is_one = self.sequence.load(Relaxed) == stay;
        let (owed_to, entries, owed) = if is_one { (owed_to, entries, owed) } else { (0, 0, 0) };
        let (generation, part) = (ASLEEP, Part::NOTHING);
        Seen { stay, settled: 0, context: 0, more: 0, less: 0, owed_to, entries, owed, generation, part }
    }

    /// Whether the stay is what it was, so that what was read since then belongs to it.
    pub(crate) fn is_still(&self, seen: &Seen) -> bool {
        // Pairs with the release fence of `begin`, and keeps what the caller has read before these loads.
        fence(Acquire);
        self.sequence.load(Relaxed) == seen.stay && self.settled.load(Relaxed) == seen.settled
    }

    /// Takes what was to be charged until now of the stay that was `seen` from its owner; from now on it
    /// is to be charged from `part`. False if the owner was faster.
    pub(crate) fn settle(&self, seen: &Seen, part: &Part) -> bool {
        let before =
            if seen.settled >> STAY_SHIFT == seen.stay { seen.settled } else { seen.stay << STAY_SHIFT };
        if before & CLAIMED != 0 {
            return false;
        }
        // The count wraps inside of its bits; its parity and that it differs from the last one are what matters.
        let count = match (before + ONCE) & ((1 << STAY_SHIFT) - 1) {
            0 => 2 * ONCE,
            count => count,
        };
        let after = seen.stay << STAY_SHIFT | count;
        let settlement = (after / ONCE % 2) as usize;
        for (place, taken) in self.taken[settlement].iter().zip(part.taken.unwrap_or_default()) {
            place.store(taken, Relaxed);
        }
        let settlement = &self.settlements[settlement];
        settlement.shared.store(part.shared, Relaxed);
        settlement.set(part.layout, part.known, &part.readings);
        // Release pairs with the loads of `claim` and `look`; acquire with the claim of an earlier stay, whose
        // reading of this settlement comes before we wrote it.
        self.settled.compare_exchange(seen.settled, after, AcqRel, Acquire).is_ok()
    }
}

#[cfg(all(test, loom))]
mod interleavings;
