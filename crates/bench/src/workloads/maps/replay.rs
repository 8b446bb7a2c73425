//! Carries a trace out: changes untimed, look-ups between two changes timed together.
//!
//! The time stamp counter is read around each run of look-ups, fenced, so that what belongs to the changes stays
//! outside; what an empty pair of reads costs is found first and taken off. Runs are short where programs
//! start (a handful of faults between two mappings), and what the changes have pushed out of the
//! processor's caches is paid by the look-ups after them, as it is in the kernel.
//!
//! The counter runs on while the thread does not. So a sample carries the trace out [`TIMES`] times and takes of each
//! run of look-ups the least: a run that was interrupted every time would be needed to spoil it.

use std::hint::black_box;

use super::PAGE_BITS;
use super::schemes::Scheme;
use crate::trace::Op;

/// How often a sample carries the trace out.
const TIMES: usize = 3;

/// A trace, cut into runs.
#[derive(Debug)]
pub(super) struct Script {
    steps: Vec<Step>,
    /// Thread and address.
    faults: Vec<(u32, u64)>,
}

#[derive(Debug)]
enum Step {
    Change(Op),
    /// So many faults.
    Faults(usize),
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
                        Some(Step::Faults(count)) => *count += 1,
                        _ => script.steps.push(Step::Faults(1)),
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
        let mut least = vec![u64::MAX; self.steps.len()];
        let mut replayed = Replayed { hits: 0, cycles: 0, answers: 0 };
        for _ in 0..TIMES {
            replayed = self.once::<S>(&mut least);
        }
        replayed.cycles = least.iter().filter(|&&cycles| cycles != u64::MAX).sum();
        replayed
    }

    fn once<S: Scheme>(&self, least: &mut [u64]) -> Replayed {
        let mut scheme = S::new();
        let empty = empty_pair();
        let (mut answers, mut mapped, mut at) = (0, 0, 0);
        for (step, least) in self.steps.iter().zip(least) {
            match *step {
                Step::Faults(count) => {
                    let faults = &self.faults[at..at + count];
                    at += count;
                    let begin = counter();
                    answers = look_up(&mut scheme, faults, answers);
                    *least = (*least).min((counter() - begin).saturating_sub(empty));
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

fn addresses(page: u64, pages: u64) -> (u64, u64) {
    let start = page << PAGE_BITS;
    (start, start + ((pages << PAGE_BITS) - 1))
}

#[inline(never)]
fn look_up<S: Scheme>(scheme: &mut S, faults: &[(u32, u64)], mut answers: u64) -> u64 {
    for &(thread, addr) in faults {
        let value = scheme.find(thread, addr).unwrap_or(u64::MAX);
        answers = answers.rotate_left(5) ^ value;
    }
    black_box(answers)
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
        assert_eq!(script.replay::<Single>().hits, 0);
        assert_eq!(script.replay::<Vmacache>().hits, 18);
        assert_eq!(script.replay::<Dormouse>().hits, 18);
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
        let answers = script.replay::<Single>().answers;
        assert_eq!(script.replay::<Vmacache>().answers, answers);
        assert_eq!(script.replay::<Dormouse>().answers, answers);
    }
}
