//! The ladder of tiers: the proofs that a thread has not been descheduled since its clock was last
//! synchronised.
//!
//! Each tier but the last is one file with the same five functions, those of [`Proof`]. The first
//! read in a process tests from the top down, or from the tier that was requested, until two tiers
//! have passed: the one to use, and one to fall to. A thread takes the first of them that it can
//! attach to; if it loses that later, it moves further down. No read after the first tests
//! anything, because it may be in a signal handler.
//!
//! # Locking
//!
//! No thread waits: while one thread tests, the others read the kernel's clock, and check again at
//! their next read.

mod gap;
mod page;
mod proof;
mod rseq;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use dormouse_sys::sync::OnceBox;
use dormouse_sys::{Capability, environment};

use self::proof::{Proof, sleep};
use crate::claim::Claim;
use crate::{arch, tsc};

/// How a thread's clock proves that its thread has not been descheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tier {
    /// The kernel clears the thread's `rseq_cs` when it deschedules it.
    Rseq,
    /// The kernel rewrites the page of a perf event when the thread comes back.
    Page,
    /// The last read was too short a time ago for another thread to have run in between.
    Gap,
    /// No proof: every read asks the kernel.
    Syscall,
}

impl Tier {
    /// From the best to the one that always works.
    const LADDER: [Self; 4] = [Self::Rseq, Self::Page, Self::Gap, Self::Syscall];

    /// The tier's name, as in `DORMOUSE_CLOCK`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rseq => "rseq",
            Self::Page => "page",
            Self::Gap => "gap",
            Self::Syscall => "syscall",
        }
    }

    fn at(rung: u8) -> Self {
        Self::LADDER.get(usize::from(rung)).copied().unwrap_or(Self::Syscall)
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The proofs of all tiers on one thread.
pub(crate) struct Proofs {
    rseq: rseq::Thread,
    page: page::Thread,
    gap: gap::Thread,
}

impl Proofs {
    /// `at_exit` is called at the end of a thread that has to give something back.
    pub(crate) const fn new(at_exit: fn()) -> Self {
        Self { rseq: rseq::Thread::new(), page: page::Thread::new(at_exit), gap: gap::Thread::new() }
    }

    /// `None` for the tier in which every read asks the kernel and no proof is needed.
    fn of(&self, tier: Tier) -> Option<&dyn Proof> {
        match tier {
            Tier::Rseq => Some(&self.rseq),
            Tier::Page => Some(&self.page),
            Tier::Gap => Some(&self.gap),
            Tier::Syscall => None,
        }
    }

    #[inline]
    pub(crate) fn arm(&self, tier: Tier) -> bool {
        self.of(tier).is_some_and(<dyn Proof>::arm)
    }

    /// The only one on the path of every read, and so without a call.
    #[inline(always)]
    pub(crate) fn holds(&self, tier: Tier, tsc: u64) -> bool {
        match tier {
            Tier::Rseq => self.rseq.holds(tsc),
            Tier::Page => self.page.holds(tsc),
            Tier::Gap => self.gap.holds(tsc),
            Tier::Syscall => false,
        }
    }

    /// The longest gap that is a proof, in ticks.
    pub(crate) fn longest_gap(&self) -> u64 {
        self.gap.longest()
    }

    pub(crate) fn detach(&self, tier: Tier) {
        if let Some(proof) = self.of(tier) {
            proof.detach();
        }
    }
}

/// The tier where threads begin, and the reason if it is not the best one.
struct Beginning {
    tier: Tier,
    asked: bool,
    /// The fault of `DORMOUSE_CLOCK`.
    config_error: Option<String>,
}

static VERDICTS: [OnceBox<Result<(), String>>; 4] = [const { OnceBox::new() }; 4];
static TESTING: Claim = Claim::new();
/// The tests of the first read have been made.
static TESTED: AtomicBool = AtomicBool::new(false);
/// All first questions were asked: new threads ask the kernel for their time alone.
static PREPARED: AtomicBool = AtomicBool::new(false);
static ENVIRONMENT: OnceBox<Beginning> = OnceBox::new();
/// The rung that the program has asked for.
static FORCED: AtomicU8 = AtomicU8::new(UNFORCED);
const UNFORCED: u8 = u8::MAX;
/// The requests of the program, plus one.
static GENERATION: AtomicU32 = AtomicU32::new(1);
/// How often a thread could not attach to a tier that had passed its test.
static REFUSED: AtomicU32 = AtomicU32::new(0);

/// A number that moves when threads are to begin again.
#[inline]
pub(crate) fn generation() -> u32 {
    // Pairs with the increment in `begin_at`.
    GENERATION.load(Ordering::Acquire)
}

/// The first tier below `above` that this thread can have; `None` while another thread tests.
pub(crate) fn climb_down(proofs: &Proofs, above: Option<Tier>) -> Option<Tier> {
    // Pairs with the stores below and in `begin_at`: the verdicts are there.
    if !TESTED.load(Ordering::Acquire) {
        let testing = TESTING.take()?;
        test_from(begin(), proofs);
        TESTED.store(true, Ordering::Release);
        TESTING.give_up(testing);
    }
    let first = above.map_or_else(begin, |tier| Tier::at(tier as u8 + 1));
    let passed = |tier: &Tier| matches!(verdict(*tier), Some(Ok(())));
    let mut rungs = Tier::LADDER[first as usize..].iter().filter(|tier| passed(tier));
    Some(rungs.find(|tier| attach(**tier, proofs)).copied().unwrap_or(Tier::Syscall))
}

fn attach(tier: Tier, proofs: &Proofs) -> bool {
    // A thread forbids the counter to itself alone, so each is asked; not after `prepared`, when
    // filters may come.
    let may_read = || PREPARED.load(Ordering::Relaxed) || !arch::tsc_faults();
    let has_counter = || !tsc::is_broken() && may_read();
    let attached = proofs.of(tier).is_none_or(|proof| has_counter() && proof.attach().is_ok());
    if !attached {
        REFUSED.fetch_add(1, Ordering::Relaxed);
    }
    attached
}

/// The verdict of the test of `tier`, if there was one.
fn verdict(tier: Tier) -> Option<&'static Result<(), String>> {
    VERDICTS[tier as usize].get()
}

/// Whether that is so.
pub(crate) fn is_prepared() -> bool {
    PREPARED.load(Ordering::Relaxed)
}

/// From now on threads that begin to read make no call but `clock_gettime`.
pub(crate) fn prepared() {
    PREPARED.store(true, Ordering::Relaxed);
}

/// Tests from `first` down, until two have passed; one thread at a time.
fn test_from(first: Tier, proofs: &Proofs) {
    let mut passed = 0;
    for &tier in &Tier::LADDER[first as usize..] {
        if tier == Tier::Page && !page::is_safe() {
            continue;
        }
        if verdict(tier).is_none() {
            let said = proofs.of(tier).map_or(Ok(()), |proof| tsc::test().and_then(|()| proof.test()));
            let _first = VERDICTS[tier as usize].get_or_init(|| Box::new(said));
        }
        passed += u32::from(matches!(verdict(tier), Some(Ok(()))));
        if passed == 2 {
            break;
        }
    }
}

/// Makes all threads begin at `tier`, or with `None` at the top or at the tier of `DORMOUSE_CLOCK`;
/// else the reason why that tier cannot be had.
pub(crate) fn begin_at(tier: Option<Tier>, proofs: &Proofs) -> Result<(), String> {
    let first = tier.unwrap_or_else(|| beginning().tier);
    page::ask(first == Tier::Page);
    let testing = loop {
        match TESTING.take() {
            Some(testing) => break testing,
            None => sleep(Duration::from_micros(100)),
        }
    };
    test_from(first, proofs);
    // Pairs with the load in `climb_down`.
    TESTED.store(true, Ordering::Release);
    TESTING.give_up(testing);
    if let Some(tier) = tier {
        if let Some(Err(reason)) = verdict(tier) {
            return Err(reason.clone());
        }
        if tier != Tier::Syscall && tsc::is_broken() {
            return Err("the TSC has changed its rate".into());
        }
    }
    FORCED.store(tier.map_or(UNFORCED, |tier| tier as u8), Ordering::Relaxed);
    // Pairs with the load in `generation`.
    GENERATION.fetch_add(1, Ordering::Release);
    Ok(())
}

fn begin() -> Tier {
    match FORCED.load(Ordering::Relaxed) {
        UNFORCED => beginning().tier,
        rung => Tier::at(rung),
    }
}

fn beginning() -> &'static Beginning {
    ENVIRONMENT.get_or_init(|| {
        // Two threads read the same.
        let choice = environment::variables().clock.as_ref().map(|choice| choice.to_string_lossy());
        let beginning = Beginning::from(choice.as_deref());
        page::ask(beginning.tier == Tier::Page);
        Box::new(beginning)
    })
}

impl Beginning {
    fn from(choice: Option<&str>) -> Self {
        let auto = Self { tier: Tier::Rseq, asked: false, config_error: None };
        match choice {
            None | Some("" | "auto") => auto,
            Some(name) => match Tier::LADDER.into_iter().find(|tier| tier.name() == name) {
                Some(tier) => Self { tier, asked: true, config_error: None },
                None => Self {
                    config_error: Some(format!(
                        "DORMOUSE_CLOCK={name} is no tier: use rseq, page, gap, syscall or auto"
                    )),
                    ..auto
                },
            },
        }
    }
}

/// The fault in the value of `DORMOUSE_CLOCK`, or `None`. If it is wrong, the library chooses.
pub fn config_error() -> Option<&'static str> {
    beginning().config_error.as_deref()
}

/// In a fork child: a thread that was testing is in the parent.
pub(crate) fn forget() {
    TESTING.forget();
    page::forget();
}

/// The lines of `dormouse doctor` on the clock of a thread that has the tier `own`.
pub(crate) fn report(own: Tier) -> Vec<Capability> {
    let beginning = beginning();
    let begin = begin();
    let cheap = match own {
        Tier::Rseq | Tier::Page => ": reads without a system call",
        Tier::Gap => {
            ": reads without a system call if they are close together; a poll in which its thread lost the \
             processor may be charged what the thread used outside of polls in the 10 ms before"
        }
        Tier::Syscall => "",
    };
    let mut detail = vec![format!("tier {own}{cheap}")];
    if FORCED.load(Ordering::Relaxed) != UNFORCED {
        detail.push(format!("the program asks for {begin}"));
    } else if beginning.asked {
        detail.push(format!("DORMOUSE_CLOCK asks for {begin}"));
    }
    for tier in Tier::LADDER.iter().take(own as usize).skip(begin as usize) {
        match verdict(*tier) {
            Some(Err(reason)) => detail.push(format!("{tier}: {reason}")),
            None if *tier == Tier::Page && !page::is_safe() => {
                detail.push(format!("page: not tried, {}", page::UNSAFE));
            }
            Some(Ok(())) | None => {}
        }
    }
    if tsc::is_broken() {
        detail.push("the TSC has changed its rate".into());
    }
    let refused = REFUSED.load(Ordering::Relaxed);
    if refused > 0 {
        detail.push(format!("{refused} times a thread could not have a tier and took the next"));
    }
    let detail = detail.join("; ");
    let mut report = vec![match own {
        Tier::Rseq | Tier::Page => Capability::ok("clock.thread", detail),
        Tier::Gap | Tier::Syscall => Capability::limited("clock.thread", detail),
    }];
    if let Some(config_error) = config_error() {
        report.push(Capability::limited("clock.setting", config_error).with_fix("unset DORMOUSE_CLOCK"));
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_the_first_tier() {
        for tier in Tier::LADDER {
            let beginning = Beginning::from(Some(tier.name()));
            assert_eq!((beginning.tier, beginning.config_error), (tier, None));
        }
        assert!(!Beginning::from(Some("auto")).asked);
    }

    #[test]
    fn an_unknown_tier_is_refused_by_name() {
        let wrong = Beginning::from(Some("sundial"));
        assert_eq!(wrong.tier, Beginning::from(None).tier);
        assert!(wrong.config_error.unwrap().contains("sundial"));
    }
}
