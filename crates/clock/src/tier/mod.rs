//! The ladder of tiers: what makes a thread's clock certain that its thread has not been descheduled.
//!
//! Each tier is one file with the same five functions, those of [`Proof`]. The first read in a process
//! tests from the top down, or from where it was told to begin, until two tiers have passed: the one to
//! take, and one to fall to. A thread takes the first of them that has what it needs on this thread; a rung
//! that fails it later sends it further down. No read after the first tests anything, because it may be in
//! a signal handler.
//!
//! # Locking
//!
//! Nobody waits: while one thread tests, the others ask the kernel, and look again at their next read.

mod gap;
mod page;
mod rseq;
mod syscall;

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use dormouse_sys::Capability;

use crate::error::Error;
use crate::{arch, kernel, tsc};

/// How a thread's clock knows that its thread has not been descheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tier {
    /// The kernel clears the thread's `rseq_cs` when it deschedules it.
    Rseq,
    /// The kernel rewrites the page of a perf event when the thread comes back.
    Page,
    /// The last read was so short a time ago that nobody can have run in between.
    Gap,
    /// It does not: every read asks the kernel.
    Syscall,
}

impl Tier {
    /// From the best to the one that always works.
    const LADDER: [Self; 4] = [Self::Rseq, Self::Page, Self::Gap, Self::Syscall];

    /// Its name, as `DORMOUSE_CLOCK` has it.
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

/// What a tier has on one thread. Its functions are called on that thread alone.
trait Proof {
    /// Whether it can be relied on in this process. Once, and not in a signal handler.
    fn test(&self) -> Result<(), String>;

    /// Gets what this thread needs for it.
    ///
    /// # Async-signal-safety
    ///
    /// System calls and atomics only, as in `arm` and `holds`.
    fn attach(&self) -> Result<(), &'static str>;

    /// From now on the thread runs; false: the tier is not to be had on this thread any more.
    fn arm(&self) -> bool;

    /// Whether the thread has run all the time from `arm` to now, when the counter stands at `tsc`.
    fn holds(&self, tsc: u64) -> bool;

    /// Gives back what `attach` got. Not while a read may be under way: never in a signal handler.
    fn detach(&self);
}

/// What the tiers have on one thread.
pub(crate) struct Proofs {
    rseq: rseq::Thread,
    page: page::Thread,
    gap: gap::Thread,
}

impl Proofs {
    pub(crate) const fn new() -> Self {
        Self { rseq: rseq::Thread::new(), page: page::Thread::new(), gap: gap::Thread::new() }
    }

    fn of(&self, tier: Tier) -> &dyn Proof {
        match tier {
            Tier::Rseq => &self.rseq,
            Tier::Page => &self.page,
            Tier::Gap => &self.gap,
            Tier::Syscall => &syscall::Thread,
        }
    }

    #[inline]
    pub(crate) fn arm(&self, tier: Tier) -> bool {
        self.of(tier).arm()
    }

    /// The only one on the path of every read, and so without a call.
    #[inline(always)]
    pub(crate) fn holds(&self, tier: Tier, tsc: u64) -> bool {
        match tier {
            Tier::Rseq => self.rseq.holds(tsc),
            Tier::Page => self.page.holds(tsc),
            Tier::Gap => self.gap.holds(tsc),
            Tier::Syscall => syscall::Thread.holds(tsc),
        }
    }

    pub(crate) fn detach(&self, tier: Tier) {
        self.of(tier).detach();
    }
}

/// The rung where threads begin, and why it is not the top one.
struct Beginning {
    tier: Tier,
    asked: bool,
    /// What was wrong with `DORMOUSE_CLOCK`.
    complaint: Option<String>,
}

static VERDICTS: [OnceLock<Result<(), String>>; 4] = [const { OnceLock::new() }; 4];
static TESTING: AtomicBool = AtomicBool::new(false);
/// The tests of the first read have been made.
static TESTED: AtomicBool = AtomicBool::new(false);
static ENVIRONMENT: OnceLock<Beginning> = OnceLock::new();
/// The rung that the program has asked for.
static FORCED: AtomicU8 = AtomicU8::new(UNFORCED);
const UNFORCED: u8 = u8::MAX;
/// How often it was asked, plus one.
static GENERATION: AtomicU32 = AtomicU32::new(1);
/// How often a thread found that a tier that had passed its test was not to be had on it.
static REFUSED: AtomicU32 = AtomicU32::new(0);

/// A number that moves when threads are to begin again.
#[inline]
pub(crate) fn generation() -> u32 {
    // Pairs with the increment in `begin_at`.
    GENERATION.load(Ordering::Acquire)
}

/// The first tier below `above` that this thread can have; `None` while another thread tests.
pub(crate) fn climb_down(proofs: &Proofs, above: Option<Tier>) -> Option<Tier> {
    // Pairs with the store below: the verdicts are there.
    if !TESTED.load(Ordering::Acquire) {
        if TESTING.swap(true, Ordering::Relaxed) {
            return None;
        }
        test_from(begin(), proofs);
        TESTED.store(true, Ordering::Release);
        TESTING.store(false, Ordering::Relaxed);
    }
    let first = above.map_or_else(begin, |tier| Tier::at(tier as u8 + 1));
    let passed = |tier: &Tier| matches!(verdict(*tier), Some(Ok(())));
    let mut rungs = Tier::LADDER[first as usize..].iter().filter(|tier| passed(tier));
    Some(rungs.find(|tier| attach(**tier, proofs)).copied().unwrap_or(Tier::Syscall))
}

fn attach(tier: Tier, proofs: &Proofs) -> bool {
    let has_counter = || !tsc::is_broken() && !arch::tsc_faults();
    // Forbidding the counter is a thread's own matter, so each is asked.
    let attached = tier == Tier::Syscall || (has_counter() && proofs.of(tier).attach().is_ok());
    if !attached {
        REFUSED.fetch_add(1, Ordering::Relaxed);
    }
    attached
}

/// What the test of `tier` has said, if there was one.
fn verdict(tier: Tier) -> Option<&'static Result<(), String>> {
    VERDICTS[tier as usize].get()
}

/// Tests from `first` down, until two have passed; one thread at a time.
fn test_from(first: Tier, proofs: &Proofs) {
    let mut passed = 0;
    for &tier in &Tier::LADDER[first as usize..] {
        if tier == Tier::Page && !page::is_safe() {
            continue;
        }
        if verdict(tier).is_none() {
            let counter = if tier == Tier::Syscall { Ok(()) } else { tsc::test() };
            // Not made in the cell's own function: a fork in the middle would leave it locked.
            let _only_we_test = VERDICTS[tier as usize].set(counter.and_then(|()| proofs.of(tier).test()));
        }
        passed += u32::from(matches!(verdict(tier), Some(Ok(()))));
        if passed == 2 {
            break;
        }
    }
}

/// Makes all threads begin at `tier`, or with `None` at the top or where `DORMOUSE_CLOCK` says.
pub(crate) fn begin_at(tier: Option<Tier>, proofs: &Proofs) -> Result<(), Error> {
    let first = tier.unwrap_or_else(|| environment().tier);
    page::ask(first == Tier::Page);
    while TESTING.swap(true, Ordering::Relaxed) {
        std::thread::sleep(Duration::from_micros(100));
    }
    test_from(first, proofs);
    TESTED.store(true, Ordering::Release);
    TESTING.store(false, Ordering::Relaxed);
    if let Some(tier) = tier {
        if let Some(Err(reason)) = verdict(tier) {
            return Err(Error::Tier { tier, reason: reason.clone() });
        }
        if tier != Tier::Syscall && tsc::is_broken() {
            return Err(Error::Tier { tier, reason: "the TSC has changed its rate".into() });
        }
    }
    FORCED.store(tier.map_or(UNFORCED, |tier| tier as u8), Ordering::Relaxed);
    // Pairs with `generation`.
    GENERATION.fetch_add(1, Ordering::Release);
    Ok(())
}

fn begin() -> Tier {
    match FORCED.load(Ordering::Relaxed) {
        UNFORCED => environment().tier,
        rung => Tier::at(rung),
    }
}

fn environment() -> &'static Beginning {
    loop {
        if let Some(known) = ENVIRONMENT.get() {
            return known;
        }
        // Two threads read the same.
        let beginning = Beginning::from(std::env::var("DORMOUSE_CLOCK").ok().as_deref());
        page::ask(beginning.tier == Tier::Page);
        let _first = ENVIRONMENT.set(beginning);
    }
}

impl Beginning {
    fn from(wish: Option<&str>) -> Self {
        let auto = Self { tier: Tier::Rseq, asked: false, complaint: None };
        match wish {
            None | Some("" | "auto") => auto,
            Some(name) => match Tier::LADDER.into_iter().find(|tier| tier.name() == name) {
                Some(tier) => Self { tier, asked: true, complaint: None },
                None => Self {
                    complaint: Some(format!(
                        "DORMOUSE_CLOCK={name} is no tier: use rseq, page, gap, syscall or auto"
                    )),
                    ..auto
                },
            },
        }
    }
}

/// What is wrong with `DORMOUSE_CLOCK`, if anything; then the library chooses.
pub fn complaint() -> Option<&'static str> {
    environment().complaint.as_deref()
}

/// In a fork child nobody goes on testing who did in the parent.
pub(crate) fn forget() {
    TESTING.store(false, Ordering::Relaxed);
    page::forget();
}

/// What `test` of a tier that raises a flag does: whether it falls when the thread blocks, and stays up
/// when it does not. A clock that trusted one that stays up would count sleep as CPU time.
fn falls_on_blocking_alone(proof: &dyn Proof, name: &str) -> Result<(), String> {
    let still_up = |call: &dyn Fn()| {
        proof.arm();
        call();
        proof.holds(0)
    };
    let sleep = || std::thread::sleep(Duration::from_micros(50));
    // One may find its time over before it has begun, where a hypervisor takes the processor away just then.
    if (0..5).filter(|_| still_up(&sleep)).count() > 1 {
        return Err(format!("this kernel keeps {name} when a thread blocks"));
    }
    // Preemption may take the flag down now and then, not every time.
    let plain = || _ = kernel::thread_ns();
    let kept = (0..100).filter(|_| still_up(&plain)).count();
    if kept < 50 {
        return Err(format!(
            "this kernel changes {name} at system calls that do not block ({kept} of 100 kept)"
        ));
    }
    Ok(())
}

/// What `dormouse doctor` says of the clock of a thread that has the tier `own`.
pub(crate) fn report(own: Tier) -> Vec<Capability> {
    let environment = environment();
    let begin = begin();
    let mut reasons: Vec<String> = Vec::new();
    if FORCED.load(Ordering::Relaxed) != UNFORCED {
        reasons.push(format!("the program asks for {begin}"));
    } else if environment.asked {
        reasons.push(format!("DORMOUSE_CLOCK asks for {begin}"));
    }
    for tier in Tier::LADDER.iter().take(own as usize).skip(begin as usize) {
        match verdict(*tier) {
            Some(Err(reason)) => reasons.push(format!("{tier}: {reason}")),
            None if *tier == Tier::Page && !page::is_safe() => {
                reasons.push(format!("page: not tried, {}", page::UNSAFE));
            }
            Some(Ok(())) | None => {}
        }
    }
    if tsc::is_broken() {
        reasons.push("the TSC has changed its rate".into());
    }
    let refused = REFUSED.load(Ordering::Relaxed);
    if refused > 0 {
        reasons.push(format!("{refused} times a thread could not have a tier and took the next"));
    }
    let mut detail = format!("tier {own}");
    if own != Tier::Syscall {
        detail += ": reads without a system call";
    }
    for reason in reasons {
        detail += "; ";
        detail += &reason;
    }
    let mut report = vec![match own {
        Tier::Rseq | Tier::Page => Capability::ok("clock.thread", detail),
        Tier::Gap | Tier::Syscall => Capability::limited("clock.thread", detail),
    }];
    if let Some(complaint) = complaint() {
        report.push(Capability::limited("clock.setting", complaint).with_fix("unset DORMOUSE_CLOCK"));
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_where_to_begin() {
        for tier in Tier::LADDER {
            let beginning = Beginning::from(Some(tier.name()));
            assert_eq!((beginning.tier, beginning.complaint), (tier, None));
        }
        assert!(!Beginning::from(Some("auto")).asked);
    }

    #[test]
    fn a_tier_that_is_none_is_complained_about_and_changes_nothing() {
        let wrong = Beginning::from(Some("sundial"));
        assert_eq!(wrong.tier, Beginning::from(None).tier);
        assert!(wrong.complaint.unwrap().contains("sundial"));
    }

    #[test]
    fn a_flag_that_stays_up_over_sleep_or_falls_at_every_call_is_refused() {
        struct Stuck(bool);
        impl Proof for Stuck {
            fn test(&self) -> Result<(), String> {
                falls_on_blocking_alone(self, "the flag")
            }
            fn attach(&self) -> Result<(), &'static str> {
                Ok(())
            }
            fn arm(&self) -> bool {
                true
            }
            fn holds(&self, _tsc: u64) -> bool {
                self.0
            }
            fn detach(&self) {}
        }
        assert!(Stuck(true).test().unwrap_err().contains("keeps the flag when a thread blocks"));
        assert!(Stuck(false).test().unwrap_err().contains("0 of 100 kept"));
    }
}
