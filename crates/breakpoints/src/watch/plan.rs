//! The keeper's next steps, as a pure function, so that every order of hits, rests and turns can be
//! tested.
//!
//! | state | storm | rest is over | `max_hits` passed | its turn begins | its turn ends |
//! |---|---|---|---|---|---|
//! | armed | resting | | over | | waiting |
//! | waiting | | | over | armed | |
//! | resting | | armed or waiting | over | | |
//! | over | | | | | |
//!
//! A watch before which a thread is stuck has a storm, whatever its rate. A pinned watch never
//! waits. Hits may arrive late, after the change that was to end them, so a watch that waits or
//! rests can end, too.
//!
//! # Invariants
//!
//! 1. A change is returned once, and changes that free registers come before those that take them.
//! 2. Between two steps the plan has nothing to do unless a time that it has returned has come, or
//!    a watch has had more hits than its alarm allows.

use super::rate::{Allowance, Throttle};
use super::share::Share;
use super::turns::Turns;

/// The state of a planned watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Armed,
    Waiting,
    Resting,
    Over,
}

/// A request for a place in the plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) number: u32,
    /// The registers that a flexible watch takes in its turn; none: pinned.
    pub(crate) flexible: Option<u32>,
    /// Hits a second.
    pub(crate) rate: u32,
    /// The hits that pass the filters, until it is over.
    pub(crate) max_hits: Option<u64>,
}

/// The hits of a watch so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HitCounts {
    /// All that threads were interrupted for.
    pub(crate) all: u64,
    /// Those that passed the filters.
    pub(crate) passed: u64,
    /// A thread cannot go on before the watch is disarmed.
    pub(crate) is_stuck: bool,
}

/// An order to the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Disarm it, or give its registers to the next one in turn.
    Disarm(u32),
    /// Arm it; if it is flexible, in registers that are free now.
    Arm(u32),
    /// Make a step when this watch has had more hits than this.
    Alarm(u32, u64),
}

/// All watches.
#[derive(Debug)]
pub(crate) struct Plan {
    watches: Vec<Planned>,
    turns: Turns,
    /// When the next slice begins.
    deal_at: Option<u64>,
    /// A watch in turns has come, gone, rested or returned, or registers have.
    deal_now: bool,
}

#[derive(Debug)]
struct Planned {
    request: Request,
    throttle: Throttle,
    share: Share,
    stage: Stage,
}

impl Plan {
    /// No watches. Any `seed` will do that differs from run to run.
    pub(crate) fn new(seed: u64) -> Self {
        Self { watches: Vec::new(), turns: Turns::new(seed), deal_at: None, deal_now: false }
    }

    /// A watch that was made just now: a pinned one is armed already, a flexible one waits for the
    /// next step.
    pub(crate) fn join(&mut self, now: u64, request: Request) {
        let mut share = Share::new(now);
        let stage = match request.flexible {
            Some(weight) => {
                self.turns.join(request.number, weight);
                // Where turns are taken it waits for the next one.
                self.deal_now |= self.deal_at.is_none();
                Stage::Waiting
            }
            None => Stage::Armed,
        };
        share.set_armed(now, stage == Stage::Armed);
        self.watches.push(Planned { request, throttle: Throttle::new(request.rate, now), share, stage });
    }

    /// A watch has gone, and its registers with it.
    pub(crate) fn leave(&mut self, number: u32) {
        self.watches.retain(|watch| watch.request.number != number);
        self.turns.leave(number);
        self.deal_now = true;
    }

    /// The kernel has refused what a flexible watch needs in its turn, which is over with that. Say
    /// then how many registers there are.
    pub(crate) fn refuse(&mut self, now: u64, number: u32) {
        let watch = self.watches.iter_mut().find(|watch| watch.request.number == number);
        if let Some(watch) = watch.filter(|watch| watch.stage == Stage::Armed) {
            debug_assert!(watch.request.flexible.is_some(), "watch {number} has registers of its own");
            watch.stage = Stage::Waiting;
            watch.share.set_armed(now, false);
        }
    }

    /// A watch cannot go on: its registers are free.
    pub(crate) fn end(&mut self, now: u64, number: u32) {
        let Some(watch) = self.watches.iter_mut().find(|watch| watch.request.number == number) else {
            return;
        };
        // The caller has disarmed it.
        watch.enter(now, Stage::Over, &mut Vec::new(), &mut Vec::new());
        self.turns.leave(number);
        self.deal_now = true;
    }

    /// Sets the number of registers that flexible watches share from the next step on.
    pub(crate) fn set_registers(&mut self, registers: u32) {
        self.turns.set_registers(registers);
        self.deal_now = true;
    }

    /// Looks at all watches, with slices of about `slice` nanoseconds. Gives the orders, and when
    /// to look again at the latest; none: when there is an alarm.
    pub(crate) fn step(
        &mut self,
        now: u64,
        slice: u64,
        counts: impl Fn(u32) -> HitCounts,
    ) -> (Vec<Order>, Option<u64>) {
        let (mut orders, mut takes) = (Vec::new(), Vec::new());
        let mut wake_at: Option<u64> = None;
        for watch in self.watches.iter_mut().filter(|watch| watch.stage != Stage::Over) {
            let number = watch.request.number;
            let counts = counts(number);
            let is_over = watch.request.max_hits.is_some_and(|max| counts.passed >= max);
            let next = match watch.look(now, counts) {
                _ if is_over => Stage::Over,
                Allowance::RestUntil(until) => {
                    wake_at = Some(wake_at.map_or(until, |at| at.min(until)));
                    Stage::Resting
                }
                Allowance::Hits(alarm) => {
                    takes.push(Order::Alarm(number, alarm));
                    match (watch.stage, watch.request.flexible) {
                        (Stage::Resting, None) => Stage::Armed,
                        (Stage::Resting, Some(_)) => Stage::Waiting,
                        (stage, _) => stage,
                    }
                }
            };
            if next == watch.stage {
                continue;
            }
            if watch.request.flexible.is_some() {
                // The registers are dealt below.
                self.turns.set_ready(number, next == Stage::Waiting);
                self.deal_now = true;
            }
            watch.enter(now, next, &mut orders, &mut takes);
        }
        if self.deal_now || self.deal_at.is_some_and(|at| at <= now) {
            self.deal_at = self.turns.deal(now, slice);
            self.deal_now = false;
            for watch in &mut self.watches {
                let next = match (watch.stage, self.turns.is_armed(watch.request.number)) {
                    (Stage::Waiting, true) => Stage::Armed,
                    (Stage::Armed, false) if watch.request.flexible.is_some() => Stage::Waiting,
                    _ => continue,
                };
                watch.enter(now, next, &mut orders, &mut takes);
            }
        }
        orders.append(&mut takes);
        (orders, wake_at.into_iter().chain(self.deal_at).min())
    }

    /// Looks at one watch without allocating: sets it to rest if it is in a storm or has had all
    /// its hits. The next step arms it again, or ends it.
    pub(crate) fn rest(&mut self, number: u32, now: u64, counts: HitCounts) -> Option<Order> {
        let watch = self.watches.iter_mut().find(|watch| watch.request.number == number)?;
        if watch.stage != Stage::Armed {
            return None;
        }
        let is_over = watch.request.max_hits.is_some_and(|max| counts.passed >= max);
        match watch.look(now, counts) {
            Allowance::Hits(alarm) if !is_over => return Some(Order::Alarm(number, alarm)),
            _ => {}
        }
        watch.stage = Stage::Resting;
        watch.share.set_armed(now, false);
        if watch.request.flexible.is_some() {
            self.turns.set_ready(number, false);
            self.deal_now = true;
        }
        Some(Order::Disarm(number))
    }

    /// The state of a watch, how long it was armed of how long it has lived, and its rests.
    pub(crate) fn look(&self, number: u32, now: u64) -> Option<(Stage, u64, u64, u32)> {
        let watch = self.watches.iter().find(|watch| watch.request.number == number)?;
        let share = &watch.share;
        Some((watch.stage, share.armed_ns(now), share.wall_ns(now), watch.throttle.rests()))
    }
}

impl Planned {
    fn look(&mut self, now: u64, counts: HitCounts) -> Allowance {
        if counts.is_stuck && self.stage == Stage::Armed {
            return self.throttle.rest_now(now, counts.all);
        }
        self.throttle.look(now, counts.all)
    }

    fn enter(&mut self, now: u64, next: Stage, frees: &mut Vec<Order>, takes: &mut Vec<Order>) {
        let number = self.request.number;
        match (self.share.is_armed(), next == Stage::Armed) {
            (true, false) => frees.push(Order::Disarm(number)),
            (false, true) => takes.push(Order::Arm(number)),
            _ => {}
        }
        self.stage = next;
        self.share.set_armed(now, next == Stage::Armed);
        if next == Stage::Over {
            self.share.end(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;
    const SLICE: u64 = 20 * MS;

    fn pinned(number: u32) -> Request {
        Request { number, flexible: None, rate: 10_000, max_hits: None }
    }

    fn none(_: u32) -> HitCounts {
        HitCounts::default()
    }

    #[test]
    fn without_hits_the_plan_never_wakes() {
        let mut plan = Plan::new(1);
        plan.join(0, pinned(1));
        plan.join(0, Request { flexible: Some(1), ..pinned(2) });
        plan.set_registers(1);
        let (orders, wake_at) = plan.step(0, SLICE, none);
        assert_eq!(orders, [Order::Alarm(1, 100), Order::Alarm(2, 100), Order::Arm(2)]);
        assert_eq!(wake_at, None);
    }

    #[test]
    fn a_storm_rests_and_comes_back() {
        let mut plan = Plan::new(1);
        plan.join(0, pinned(1));
        let storm = |_| HitCounts { all: 110, passed: 0, is_stuck: false };
        assert_eq!(plan.step(0, SLICE, storm), (vec![Order::Disarm(1)], Some(20 * MS)));
        assert_eq!(plan.step(5 * MS, SLICE, storm), (vec![], Some(20 * MS)));
        assert_eq!(plan.look(1, 10 * MS), Some((Stage::Resting, 0, 10 * MS, 1)));
        assert_eq!(plan.step(20 * MS, SLICE, storm), (vec![Order::Alarm(1, 210), Order::Arm(1)], None));
        assert_eq!(plan.look(1, 30 * MS), Some((Stage::Armed, 10 * MS, 30 * MS, 1)));
    }

    #[test]
    fn a_watch_rests_for_a_stuck_thread() {
        let mut plan = Plan::new(1);
        plan.join(0, pinned(1));
        let stuck = |_| HitCounts { all: 1, passed: 1, is_stuck: true };
        assert_eq!(plan.step(0, SLICE, stuck), (vec![Order::Disarm(1)], Some(20 * MS)));
        // It has gone on.
        let later = |_| HitCounts { is_stuck: false, ..stuck(1) };
        assert_eq!(plan.step(20 * MS, SLICE, later), (vec![Order::Alarm(1, 101), Order::Arm(1)], None));
        assert_eq!(plan.rest(1, 21 * MS, stuck(1)), Some(Order::Disarm(1)));
        assert_eq!(plan.look(1, 21 * MS), Some((Stage::Resting, MS, 21 * MS, 2)));
    }

    #[test]
    fn max_hits_end_a_resting_watch_too() {
        let mut plan = Plan::new(1);
        plan.join(0, Request { max_hits: Some(105), ..pinned(1) });
        let hits = |all, passed| move |_| HitCounts { all, passed, is_stuck: false };
        plan.step(0, SLICE, hits(110, 104));
        assert_eq!(plan.step(MS, SLICE, hits(111, 105)), (vec![], None));
        assert_eq!(plan.look(1, 9 * MS), Some((Stage::Over, 0, MS, 1)));
        assert_eq!(plan.step(99 * MS, SLICE, hits(500, 500)), (vec![], None));
    }

    #[test]
    fn the_next_in_turn_takes_a_freed_register() {
        let mut plan = Plan::new(1);
        plan.set_registers(1);
        plan.join(0, Request { flexible: Some(1), ..pinned(1) });
        plan.step(0, SLICE, none);
        plan.join(MS, Request { flexible: Some(1), ..pinned(2) });
        let storm = |number| HitCounts { all: if number == 1 { 1_000 } else { 0 }, ..none(number) };
        let (orders, wake_at) = plan.step(MS, SLICE, storm);
        assert_eq!(orders, [Order::Disarm(1), Order::Alarm(2, 100), Order::Arm(2)]);
        assert_eq!(wake_at, Some(100 * MS), "no turns, only the end of the rest");
    }

    #[test]
    fn a_storm_without_memory_rests_too() {
        let mut plan = Plan::new(1);
        plan.join(0, pinned(1));
        plan.join(0, Request { max_hits: Some(50), ..pinned(2) });
        let counts = |all| HitCounts { all, passed: all, is_stuck: false };
        assert_eq!(plan.rest(1, 0, counts(20)), Some(Order::Alarm(1, 100)));
        assert_eq!(plan.rest(1, MS, counts(210)), Some(Order::Disarm(1)));
        assert_eq!(plan.rest(1, 2 * MS, counts(210)), None, "it rests");
        assert_eq!(plan.rest(2, MS, counts(50)), Some(Order::Disarm(2)), "it has had all its hits");
        let (orders, _) = plan.step(60 * MS, SLICE, |number| counts(if number == 1 { 210 } else { 50 }));
        assert!(orders.contains(&Order::Arm(1)) && !orders.contains(&Order::Arm(2)), "{orders:?}");
        assert_eq!(plan.look(2, 60 * MS).map(|(stage, ..)| stage), Some(Stage::Over));
    }

    #[test]
    fn a_refused_turn_comes_again() {
        let mut plan = Plan::new(1);
        plan.set_registers(2);
        plan.join(0, Request { flexible: Some(1), ..pinned(1) });
        plan.step(0, SLICE, none);
        plan.refuse(MS, 1);
        plan.set_registers(0);
        assert_eq!(plan.step(MS, SLICE, none), (vec![Order::Alarm(1, 100)], None));
        plan.set_registers(1);
        assert_eq!(plan.step(2 * MS, SLICE, none).0, [Order::Alarm(1, 100), Order::Arm(1)]);
        assert_eq!(plan.look(1, 4 * MS), Some((Stage::Armed, 3 * MS, 4 * MS, 0)));
    }

    proptest! {
        /// Any order of arrivals, departures, hits and waits: orders fit the state that they meet.
        #[test]
        fn orders_fit_what_they_meet(
            steps in prop::collection::vec((0_u32..6, 0_u32..6, 1_u32..3, 0_u64..300), 1..200),
            registers in 0_u32..4,
            seed: u64,
        ) {
            let mut plan = Plan::new(seed);
            plan.set_registers(registers);
            let mut weights = BTreeMap::new();
            let mut hits: BTreeMap<u32, u64> = BTreeMap::new();
            let mut armed = BTreeSet::new();
            let mut now = 0;
            for (what, number, weight, amount) in steps {
                match what {
                    0 | 1 if !weights.contains_key(&number) => {
                        let flexible = (what == 0).then_some(weight);
                        weights.insert(number, flexible);
                        plan.join(now, Request { flexible, max_hits: Some(5_000), ..pinned(number) });
                        if flexible.is_none() {
                            armed.insert(number);
                        }
                    }
                    2 => {
                        weights.remove(&number);
                        hits.remove(&number);
                        armed.remove(&number);
                        plan.leave(number);
                    }
                    3 if armed.contains(&number) => *hits.entry(number).or_default() += amount,
                    4 if weights.contains_key(&number) => {
                        let all = hits.get(&number).copied().unwrap_or(0);
                        match plan.rest(number, now, HitCounts { all, passed: all, is_stuck: false }) {
                            Some(Order::Disarm(_)) => prop_assert!(armed.remove(&number)),
                            Some(Order::Alarm(_, alarm)) => prop_assert!(alarm >= all),
                            _ => prop_assert!(!armed.contains(&number)),
                        }
                    }
                    _ => now += amount * MS,
                }
                let count = |number: u32| {
                    let all = hits.get(&number).copied().unwrap_or(0);
                    HitCounts { all, passed: all, is_stuck: false }
                };
                let (orders, wake_at) = plan.step(now, SLICE, count);
                prop_assert!(wake_at.is_none_or(|at| at > now));
                for order in orders {
                    match order {
                        Order::Arm(number) => {
                            prop_assert!(armed.insert(number), "{number} is armed");
                            let used: u32 = armed.iter().filter_map(|number| weights[number]).sum();
                            prop_assert!(used <= registers, "{armed:?}");
                        }
                        Order::Disarm(number) => prop_assert!(armed.remove(&number), "{number} is not armed"),
                        Order::Alarm(number, alarm) => prop_assert!(alarm >= count(number).all),
                    }
                }
                for number in weights.keys() {
                    let (stage, armed_ns, wall_ns, _) = plan.look(*number, now).unwrap();
                    prop_assert_eq!(stage == Stage::Armed, armed.contains(number));
                    prop_assert_eq!(stage == Stage::Over, count(*number).passed >= 5_000);
                    prop_assert!(armed_ns <= wall_ns);
                }
            }
        }
    }
}
