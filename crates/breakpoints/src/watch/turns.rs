//! Turns: more flexible watches than registers share what the pinned ones leave.
//!
//! Time is divided into slices. At the beginning of each, the watches with the least armed time so
//! far are armed, as many as fit. So all get the same share, and a watch that has waited long
//! enough is first. The lengths of slices are random, from half of the requested length to one and
//! a half: the turns drift through every phase of a program that repeats itself, and cannot keep
//! step with it.
//!
//! A watch of several pieces takes several registers, all of them or none. Smaller ones may fill
//! what it leaves, or pass it where it does not fit, until it is first.
//!
//! # Invariants
//!
//! 1. There are never more registers in use than there are.
//! 2. The armed times of ready watches of one register differ by at most one and a half slices: a
//!    watch that is added, or comes back, gets the least armed time of the others.
//! 3. Where all that are ready fit, all are armed, and there is no next slice.
//!
//! Time is an argument: nanoseconds of one clock, which never goes back.

/// Watches in turns.
#[derive(Debug, Clone)]
pub(crate) struct Turns {
    registers: u32,
    watches: Vec<Turn>,
    /// When the last slice began.
    dealt_at: u64,
    /// The state of xorshift, never 0.
    random: u64,
}

/// One of them.
#[derive(Debug, Clone)]
struct Turn {
    number: u32,
    /// How many registers it takes.
    weight: u32,
    /// How long it was armed, by invariant 2.
    armed_ns: u64,
    is_ready: bool,
    is_armed: bool,
}

impl Turns {
    /// No watches, no registers. Any `seed` will do that differs from run to run.
    pub(crate) fn new(seed: u64) -> Self {
        Self { registers: 0, watches: Vec::new(), dealt_at: 0, random: seed | 1 }
    }

    /// Sets the number of registers that are shared from the next slice on.
    pub(crate) fn set_registers(&mut self, registers: u32) {
        self.registers = registers;
    }

    /// A watch that takes `weight` registers joins, ready, from the next slice on.
    pub(crate) fn join(&mut self, number: u32, weight: u32) {
        debug_assert!(self.place(number).is_none(), "watch {number} takes part twice");
        self.watches.push(Turn { number, weight, armed_ns: 0, is_ready: false, is_armed: false });
        self.set_ready(number, true);
    }

    /// A watch leaves; its registers are free from now on.
    pub(crate) fn leave(&mut self, number: u32) {
        self.watches.retain(|turn| turn.number != number);
    }

    /// Whether a watch wants turns; one that rests does not.
    pub(crate) fn set_ready(&mut self, number: u32, is_ready: bool) {
        let Some(place) = self.place(number).filter(|place| self.watches[*place].is_ready != is_ready) else {
            return;
        };
        let least = self.ready().map(|turn| turn.armed_ns).min();
        let turn = &mut self.watches[place];
        turn.is_ready = is_ready;
        // A watch that comes back does not get the time that it has missed.
        turn.armed_ns = turn.armed_ns.max(least.unwrap_or(0));
    }

    /// Begins a slice of about `slice` nanoseconds. The answer is when the next one is to begin;
    /// none if there is nothing to change until a watch comes, goes, rests or returns.
    pub(crate) fn deal(&mut self, now: u64, slice: u64) -> Option<u64> {
        let took = now.saturating_sub(self.dealt_at);
        self.dealt_at = now;
        let mut order = Vec::with_capacity(self.watches.len());
        for place in 0..self.watches.len() {
            let tie = self.random();
            let turn = &mut self.watches[place];
            turn.armed_ns += if turn.is_armed { took } else { 0 };
            turn.is_armed = false;
            if turn.is_ready {
                order.push((turn.armed_ns, tie, place));
            }
        }
        order.sort_unstable();
        let mut left = self.registers;
        let mut waits = false;
        for (_, _, place) in order {
            let turn = &mut self.watches[place];
            if let Some(rest) = left.checked_sub(turn.weight) {
                left = rest;
                turn.is_armed = true;
            } else {
                // One that will never fit waits for registers, not for a turn.
                waits |= turn.weight <= self.registers;
            }
        }
        let length = slice / 2 + self.random() % slice.max(1);
        waits.then(|| now.saturating_add(length))
    }

    /// Whether it is this watch's turn.
    pub(crate) fn is_armed(&self, number: u32) -> bool {
        self.place(number).is_some_and(|place| self.watches[place].is_armed)
    }

    fn ready(&self) -> impl Iterator<Item = &Turn> {
        self.watches.iter().filter(|turn| turn.is_ready)
    }

    fn place(&self, number: u32) -> Option<usize> {
        self.watches.iter().position(|turn| turn.number == number)
    }

    /// Marsaglia's xorshift: 13, 7, 17.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SLICE: u64 = 20_000_000;

    fn of(weights: &[u32], registers: u32, seed: u64) -> Turns {
        let mut turns = Turns::new(seed);
        turns.set_registers(registers);
        for (number, weight) in (0..).zip(weights) {
            turns.join(number, *weight);
        }
        turns
    }

    fn armed(turns: &Turns) -> Vec<u32> {
        turns.watches.iter().filter(|turn| turn.is_armed).map(|turn| turn.number).collect()
    }

    #[test]
    fn where_all_fit_there_are_no_turns() {
        let mut turns = of(&[1, 2], 3, 1);
        assert_eq!((turns.deal(0, SLICE), armed(&turns)), (None, vec![0, 1]));
        turns.join(2, 1);
        assert!(turns.deal(10, SLICE).is_some());
        turns.leave(1);
        assert_eq!((turns.deal(20, SLICE), armed(&turns)), (None, vec![0, 2]));
    }

    #[test]
    fn a_resting_watch_leaves_its_turn() {
        let mut turns = of(&[1, 1], 1, 1);
        turns.set_ready(0, false);
        assert_eq!((turns.deal(0, SLICE), armed(&turns)), (None, vec![1]));
        turns.set_ready(0, true);
        turns.deal(100 * SLICE, SLICE);
        assert_eq!(armed(&turns), [0], "it was armed least");
        turns.deal(101 * SLICE, SLICE);
        assert_eq!(armed(&turns), [0]);
    }

    #[test]
    fn a_newcomer_has_no_claim_to_the_past() {
        let mut turns = of(&[1, 1], 1, 1);
        let mut now = 0;
        while now < 100 * SLICE {
            now = turns.deal(now, SLICE).unwrap();
        }
        turns.join(2, 1);
        let begun: Vec<_> = turns.watches.iter().map(|turn| turn.armed_ns).collect();
        assert!(begun[2] >= begun[0].min(begun[1]), "{begun:?}");
    }

    #[test]
    fn without_registers_all_wait_for_nothing() {
        let mut turns = of(&[1, 2], 0, 1);
        assert_eq!((turns.deal(0, SLICE), armed(&turns)), (None, vec![]));
        turns.set_registers(1);
        assert_eq!((turns.deal(0, SLICE), armed(&turns)), (None, vec![0]), "the other is too wide");
    }

    /// A program that makes a hit at each multiple of its period.
    #[test]
    fn no_period_keeps_step_with_turns() {
        for period in [SLICE / 3, SLICE / 2, SLICE, 2 * SLICE, 3 * SLICE, 4 * SLICE, 6 * SLICE] {
            let mut turns = of(&[1, 1], 1, 0x9e37_79b9_7f4a_7c15);
            let (mut now, mut seen) = (0, [0_u64; 2]);
            while now < 20_000 * period {
                let next = turns.deal(now, SLICE).unwrap();
                seen[armed(&turns)[0] as usize] += next / period - now / period;
                now = next;
            }
            let [one, other] = seen;
            assert!(one.abs_diff(other) < 2_000, "{one} and {other} of {period} ns");
        }
    }

    proptest! {
        #[test]
        fn shares_are_fair_and_turns_come_soon(watches in 1_usize..12, registers in 1_u32..5, seed: u64) {
            let mut turns = of(&vec![1; watches], registers, seed);
            let (mut now, mut waited) = (0, vec![0; watches]);
            let mut armed_ns = vec![0; watches];
            for _ in 0..200 {
                let Some(next) = turns.deal(now, SLICE) else {
                    prop_assert!(watches <= registers as usize && armed(&turns).len() == watches);
                    return Ok(());
                };
                prop_assert!(next - now >= SLICE / 2 && next - now < SLICE * 3 / 2);
                prop_assert_eq!(armed(&turns).len(), watches.min(registers as usize));
                for number in 0..watches {
                    let is_armed = turns.is_armed(number as u32);
                    waited[number] = if is_armed { 0 } else { waited[number] + 1 };
                    armed_ns[number] += if is_armed { next - now } else { 0 };
                    prop_assert!(waited[number] <= 4 * watches / registers as usize + 1);
                }
                let spread = armed_ns.iter().max().unwrap() - armed_ns.iter().min().unwrap();
                prop_assert!(spread <= SLICE * 3 / 2, "{armed_ns:?}");
                now = next;
            }
        }

        #[test]
        fn registers_suffice_whatever_comes_and_goes(
            steps in prop::collection::vec((0_u32..5, 0_u32..6, 1_u32..4, 0_u32..5), 1..100),
            seed: u64,
        ) {
            let mut turns = of(&[], 2, seed);
            let mut weights = std::collections::BTreeMap::new();
            let mut registers = 2;
            for (now, (what, number, weight, new)) in (0..).zip(steps) {
                match what {
                    0 if !weights.contains_key(&number) => {
                        turns.join(number, weight);
                        weights.insert(number, weight);
                    }
                    1 => {
                        turns.leave(number);
                        weights.remove(&number);
                    }
                    2 => turns.set_ready(number, weight > 1),
                    3 => {
                        turns.set_registers(new);
                        registers = new;
                    }
                    _ => {}
                }
                turns.deal(now * SLICE, SLICE);
                let used: u32 = armed(&turns).iter().map(|number| weights[number]).sum();
                prop_assert!(used <= registers);
                // The first that fits is never passed over for nothing.
                let least = turns.ready().map(|turn| turn.weight).min();
                prop_assert!(used > 0 || least.is_none_or(|least| least > registers));
            }
        }

        #[test]
        fn a_wide_watch_is_not_passed_for_ever(narrow in 1_usize..8, seed: u64) {
            let mut weights = vec![1; narrow];
            weights.push(3);
            let mut turns = of(&weights, 3, seed);
            let (mut now, mut waited) = (0, 0);
            for _ in 0..200 {
                now = turns.deal(now, SLICE).unwrap();
                waited = if turns.is_armed(narrow as u32) { 0 } else { waited + 1 };
                prop_assert!(waited <= 4 * narrow + 1, "{waited}");
            }
        }
    }
}
