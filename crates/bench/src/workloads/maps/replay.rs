//! Executes a trace: changes untimed, look-ups between two changes timed together, or each
//! separately.
//!
//! The time stamp counter is read around each run of look-ups, fenced, so that the work of the
//! changes stays outside; the cost of an empty pair of reads is found first and taken off. Runs are
//! short where programs start (a handful of faults between two mappings), and the look-ups after a
//! change pay for the lines that the change has pushed out of the processor's caches, as they do in
//! the kernel.
//!
//! The counter runs on while the thread is descheduled. So a sample executes the trace [`TIMES`]
//! times and takes the minimum for each run of look-ups: only a run that was interrupted every time
//! is spoilt.
//!
//! In a run look-ups follow one another at once, which those of a kernel never do: between two
//! faults a program runs, whose memory takes the place of the map's in the processor's caches.
//! *Evicted* means that some look-ups are timed alone, each after other memory was written to
//! ([`Evicted`] has its size). The others run as before: what they leave in the caches is swept
//! with the rest.

use std::hint::black_box;

use dormouse_lab::faults::FaultOp as Op;

use super::lookups::{Fault, PAGE_BITS};
use super::schemes::Scheme;

/// How often a sample carries the trace out.
const TIMES: usize = 3;
/// Look-ups that are timed alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Evicted {
    /// The bytes that are written to before each of them.
    pub(super) bytes: usize,
    /// About how many they are, spread evenly over the trace.
    pub(super) timed: usize,
}

/// A trace, cut into runs.
#[derive(Debug)]
pub(super) struct Script {
    steps: Vec<Step>,
    faults: Vec<Fault>,
}

#[derive(Debug)]
enum Step {
    Change(Op),
    /// A number of faults.
    Run(usize),
}

/// The result of carrying a trace out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
        let mut least = Vec::new();
        let mut replayed = Replayed::default();
        for _ in 0..TIMES {
            let mut number = 0;
            replayed = self.carry_out::<S>(|scheme, faults, answers| {
                let (cycles, answers) = timed(scheme, faults, answers, empty);
                keep_least(&mut least, number, cycles);
                number += 1;
                answers
            });
        }
        replayed.cycles = least.iter().sum();
        replayed
    }

    /// Does what [`Script::replay`] does, but times some look-ups alone. The cycles are those of
    /// all look-ups if each had been.
    pub(super) fn replay_evicted<S: Scheme>(&self, evicted: Evicted) -> Replayed {
        let every = self.faults.len().div_ceil(evicted.timed).max(1);
        let empty = empty_pair();
        let mut other = vec![0_u8; evicted.bytes];
        let mut least = Vec::new();
        let mut replayed = Replayed::default();
        for _ in 0..TIMES {
            let (mut number, mut untimed) = (0, 0);
            replayed = self.carry_out::<S>(|scheme, mut faults, mut answers| {
                while !faults.is_empty() {
                    let (now, rest) =
                        faults.split_at(if untimed > 0 { untimed.min(faults.len()) } else { 1 });
                    faults = rest;
                    if untimed > 0 {
                        untimed -= now.len();
                        answers = look_up(scheme, now, answers);
                        continue;
                    }
                    untimed = every - 1;
                    other.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
                    black_box(&mut other);
                    let cycles;
                    (cycles, answers) = timed(scheme, now, answers, empty);
                    keep_least(&mut least, number, cycles);
                    number += 1;
                }
                answers
            });
        }
        let cycles: u64 = least.iter().sum();
        replayed.cycles = cycles * self.lookups() / least.len().max(1) as u64;
        replayed
    }

    /// Has a new `S` make all changes and `look_up` do each run, going on from the answers before
    /// it.
    fn carry_out<S: Scheme>(&self, mut look_up: impl FnMut(&mut S, &[Fault], u64) -> u64) -> Replayed {
        let mut scheme = S::default();
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

/// The cycles of these look-ups, and their answers.
fn timed<S: Scheme>(scheme: &mut S, faults: &[Fault], answers: u64, empty: u64) -> (u64, u64) {
    let begin = counter();
    let answers = look_up(scheme, faults, answers);
    ((counter() - begin).saturating_sub(empty), answers)
}

/// Takes in the cycles with a number, if they are fewer than those before.
fn keep_least(least: &mut Vec<u64>, number: usize, cycles: u64) {
    match least.get_mut(number) {
        Some(least) => *least = cycles.min(*least),
        None => least.push(cycles),
    }
}

#[inline(never)]
fn look_up<S: Scheme>(scheme: &mut S, faults: &[Fault], answers: u64) -> u64 {
    black_box(scheme.look_up(faults, answers))
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

/// The cost of two reads of the counter with nothing in between.
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

    const EVICTED: Evicted = Evicted { bytes: 4096, timed: 7 };

    fn script(faults: &[(u32, u64)]) -> Script {
        let mut ops = vec![Op::Process { parent: None }];
        ops.extend([Op::Thread { process: 0 }, Op::Thread { process: 0 }]);
        ops.extend((0..8).map(|n| Op::Map { process: 0, page: 100 + 2 * n, pages: 1 }));
        ops.extend(faults.iter().map(|&(thread, page)| Op::Fault { thread, page }));
        Script::of(&ops)
    }

    #[test]
    fn hits_are_counted_by_scheme() {
        // Two threads in turn, each in another mapping.
        let turns: Vec<(u32, u64)> = (0..20).map(|n| (n % 2, 100 + 2 * u64::from(n % 2))).collect();
        let script = script(&turns);
        assert_eq!(script.replay::<Single<false>>().hits, 0);
        assert_eq!(script.replay::<Vmacache<false>>().hits, 18);
        assert_eq!(script.replay::<Dormouse<true>>().hits, 18);
        assert_eq!(script.replay_evicted::<Dormouse<true>>(EVICTED).hits, 18);
    }

    #[test]
    fn all_schemes_answer_alike_over_all_changes() {
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
        assert_eq!(script.replay_evicted::<Dormouse<true>>(EVICTED).answers, answers);
    }
}
