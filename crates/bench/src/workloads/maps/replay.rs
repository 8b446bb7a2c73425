//! Carries a trace out: changes untimed, look-ups between two changes timed together, or each apart.
//!
//! The time stamp counter is read around each run of look-ups, fenced, so that what belongs to the changes stays
//! outside; what an empty pair of reads costs is found first and taken off. Runs are short where programs
//! start (a handful of faults between two mappings), and what the changes have pushed out of the
//! processor's caches is paid by the look-ups after them, as it is in the kernel.
//!
//! The counter runs on while the thread does not. So a sample carries the trace out [`TIMES`] times and takes of each
//! run of look-ups the least: a run that was interrupted every time would be needed to spoil it.
//!
//! In a run look-ups follow one another at once, which those of a kernel never do: between two faults a program runs.
//! *Apart*, one of [`EVERY`] is timed alone, and before it the first-level cache is swept.

use std::hint::black_box;

use dormouse_maps::faults::Op;

use super::PAGE_BITS;
use super::schemes::Scheme;

/// How often a sample carries the trace out.
const TIMES: usize = 3;
/// Of so many look-ups one is timed apart, because sweeping takes longer than all of them.
const EVERY: usize = 4;
/// Bytes that are written to before it: more than a first-level cache has.
const SWEPT: usize = 64 << 10;

/// A thread, and an address that it looks up.
pub(super) type Fault = (u32, u64);

/// A trace, cut into runs.
#[derive(Debug)]
pub(super) struct Script {
    steps: Vec<Step>,
    faults: Vec<Fault>,
}

#[derive(Debug)]
enum Step {
    Change(Op),
    /// So many faults.
    Run(usize),
}

/// What carrying it out came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Replayed {
    pub(super) hits: u64,
    /// TSC cycles of all look-ups.
    pub(super) cycles: u64,
    /// Equal for schemes that gave the same answers.
    pub(super) answers: u64,
}

impl Script {
    pub(super) fn of(ops: &[Op]) -> Self {
        let mut script = Self { steps: Vec::new(), faults: Vec::new() };
        for &op in ops {
            match (op, script.steps.last_mut()) {
                (Op::Fault { thread, page }, last) => {
                    script.faults.push((thread, page << PAGE_BITS));
                    match last {
                        Some(Step::Run(faults)) => *faults += 1,
                        _ => script.steps.push(Step::Run(1)),
                    }
                }
                (change, _) => script.steps.push(Step::Change(change)),
            }
        }
        script
    }

    pub(super) fn lookups(&self) -> u64 {
        self.faults.len() as u64
    }

    /// Has a new `S` answer every look-up, [`TIMES`] times.
    pub(super) fn replay<S: Scheme>(&self) -> Replayed {
        let empty = empty_pair();
        let mut least = vec![u64::MAX; self.steps.len()];
        let mut replayed = Replayed { hits: 0, cycles: 0, answers: 0 };
        for _ in 0..TIMES {
            let mut runs = least.iter_mut();
            replayed = self.carry_out::<S>(|scheme, faults, answers| {
                let begin = counter();
                let answers = look_up(scheme, faults, answers);
                let cycles = (counter() - begin).saturating_sub(empty);
                if let Some(least) = runs.next() {
                    *least = cycles.min(*least);
                }
                answers
            });
        }
        replayed.cycles = least.iter().filter(|&&cycles| cycles != u64::MAX).sum();
        replayed
    }

    /// Has a new `S` answer every look-up, [`TIMES`] times, some of them apart: their cycles as if all had been.
    pub(super) fn replay_apart<S: Scheme>(&self) -> Replayed {
        let empty = empty_pair();
        let mut swept = vec![0_u8; SWEPT];
        let mut least = vec![u64::MAX; self.faults.len().div_ceil(EVERY)];
        let mut replayed = Replayed { hits: 0, cycles: 0, answers: 0 };
        for _ in 0..TIMES {
            let mut number = 0;
            replayed = self.carry_out::<S>(|scheme, faults, mut answers| {
                for fault in faults.chunks(1) {
                    if number % EVERY == 0 {
                        swept.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
                        black_box(&mut swept);
                    }
                    let begin = counter();
                    answers = look_up(scheme, fault, answers);
                    let cycles = (counter() - begin).saturating_sub(empty);
                    if number % EVERY == 0 {
                        least[number / EVERY] = cycles.min(least[number / EVERY]);
                    }
                    number += 1;
                }
                answers
            });
        }
        replayed.cycles = least.iter().sum::<u64>() * self.lookups() / least.len().max(1) as u64;
        replayed
    }

    /// Has a new `S` make all changes and `look_up` do each run, going on from the answers before it.
    fn carry_out<S: Scheme>(&self, mut look_up: impl FnMut(&mut S, &[Fault], u64) -> u64) -> Replayed {
        let mut scheme = S::new();
        let (mut answers, mut mapped, mut faults) = (0, 0, self.faults.as_slice());
        for step in &self.steps {
            match *step {
                Step::Run(count) => {
                    let (run, rest) = faults.split_at(count);
                    faults = rest;
                    answers = look_up(&mut scheme, run, answers);
                }
                Step::Change(Op::Process { parent }) => scheme.process(parent),
                Step::Change(Op::Thread { process }) => scheme.thread(process),
                Step::Change(Op::Exit { process }) => scheme.exit(process),
                Step::Change(Op::Map { process, page, pages }) => {
                    mapped += 1;
                    let (start, last) = addresses(page, pages);
                    scheme.map(process, start, last, mapped);
                }
                Step::Change(Op::Grow { process, page, pages }) => {
                    let (start, last) = addresses(page, pages);
                    scheme.grow(process, start, last);
                }
                Step::Change(Op::Fault { .. }) => {}
            }
        }
        Replayed { hits: scheme.hits(), cycles: 0, answers }
    }
}

#[inline(never)]
fn look_up<S: Scheme>(scheme: &mut S, faults: &[Fault], answers: u64) -> u64 {
    black_box(scheme.look_up(faults, answers))
}

/// Looks up what `faults` say; what came of it in one number, which differs if an answer does. What `current` says of a
/// thread is asked for when another one comes, as a thread knows its map and its cache in life.
#[inline(always)]
pub(super) fn each<C: Copy>(
    faults: &[Fault],
    mut answers: u64,
    current: impl Fn(u32) -> C,
    mut find: impl FnMut(C, u64) -> Option<u64>,
) -> u64 {
    let Some(&(mut running, _)) = faults.first() else { return answers };
    let mut context = current(running);
    for &(thread, addr) in faults {
        if thread != running {
            running = thread;
            context = current(thread);
        }
        answers = answers.rotate_left(5) ^ find(context, addr).unwrap_or(u64::MAX);
    }
    answers
}

fn addresses(page: u64, pages: u64) -> (u64, u64) {
    let start = page << PAGE_BITS;
    (start, start + ((pages << PAGE_BITS) - 1))
}

/// The counter, with everything before it done and nothing after it begun.
#[inline(always)]
fn counter() -> u64 {
    fence();
    let now = dormouse::clock::rdtsc();
    fence();
    now
}

#[inline(always)]
fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 belongs to the architecture.
    #[allow(unsafe_code)]
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
}

/// What two reads of the counter cost with nothing in between.
fn empty_pair() -> u64 {
    let mut pairs: Vec<u64> = (0..255)
        .map(|_| {
            let begin = counter();
            counter() - begin
        })
        .collect();
    pairs.sort_unstable();
    pairs[pairs.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::super::schemes::{Dormouse, Single, Vmacache};
    use super::*;

    fn script(faults: &[(u32, u64)]) -> Script {
        let mut ops = vec![Op::Process { parent: None }];
        ops.extend([Op::Thread { process: 0 }, Op::Thread { process: 0 }]);
        ops.extend((0..8).map(|n| Op::Map { process: 0, page: 100 + 2 * n, pages: 1 }));
        ops.extend(faults.iter().map(|&(thread, page)| Op::Fault { thread, page }));
        Script::of(&ops)
    }

    #[test]
    fn hits_are_counted_as_each_scheme_defines_them() {
        // Two threads in turn, each in a mapping of its own.
        let turns: Vec<(u32, u64)> = (0..20).map(|n| (n % 2, 100 + 2 * u64::from(n % 2))).collect();
        let script = script(&turns);
        assert_eq!(script.replay::<Single<false>>().hits, 0);
        assert_eq!(script.replay::<Vmacache<false>>().hits, 18);
        assert_eq!(script.replay::<Dormouse<true>>().hits, 18);
        assert_eq!(script.replay_apart::<Dormouse<true>>().hits, 18);
    }

    #[test]
    fn all_schemes_give_the_same_answers_whatever_changes_in_between() {
        let mut ops = vec![Op::Process { parent: None }, Op::Thread { process: 0 }];
        let mut random = 7_u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        for n in 0..5000 {
            ops.push(match below(10) {
                0 => Op::Map { process: 0, page: below(64), pages: 1 + below(8) },
                _ => Op::Fault { thread: 0, page: below(70) },
            });
            if n == 3000 {
                ops.extend([Op::Process { parent: Some(0) }, Op::Thread { process: 1 }]);
                ops.extend((0..70).map(|page| Op::Fault { thread: 1, page }));
            }
        }
        let script = Script::of(&ops);
        let answers = script.replay::<Single<false>>().answers;
        assert_eq!(script.replay::<Single<true>>().answers, answers);
        assert_eq!(script.replay::<Vmacache<false>>().answers, answers);
        assert_eq!(script.replay::<Vmacache<true>>().answers, answers);
        assert_eq!(script.replay::<Dormouse<true>>().answers, answers);
        assert_eq!(script.replay::<Dormouse<false>>().answers, answers);
        assert_eq!(script.replay_apart::<Dormouse<true>>().answers, answers);
    }
}
