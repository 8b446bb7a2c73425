//! Which proof of "not descheduled since" this process relies on, and why.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dormouse_sys::Capability;
use dormouse_sys::rseq::Flag;

use crate::{arch, kernel, tsc};

/// How a thread's clock knows that its thread has not been descheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tier {
    /// The kernel clears the thread's `rseq_cs` when it deschedules it.
    Rseq,
    /// It does not: every read asks the kernel.
    Syscall,
}

/// What the process decided at its first read.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) tier: Tier,
    /// Why not a better one.
    reason: Option<String>,
    /// What was wrong with `DORMOUSE_CLOCK`.
    complaint: Option<String>,
}

static CHOICE: OnceLock<Choice> = OnceLock::new();
static DECIDING: AtomicBool = AtomicBool::new(false);

/// The process's choice, made at the first call; `None` while another thread is about to make it.
///
/// # Cost
///
/// The first call sleeps three times for 50 µs (the self-test) and calibrates the counter for 1 ms.
pub(crate) fn choice() -> Option<&'static Choice> {
    // Nobody waits: who comes meanwhile has the kernel to ask.
    if CHOICE.get().is_none() && !DECIDING.swap(true, Ordering::Relaxed) {
        let _ = CHOICE.set(decide(std::env::var("DORMOUSE_CLOCK").ok().as_deref()));
    }
    CHOICE.get()
}

/// In a fork child nobody decides any more who did in the parent.
pub(crate) fn forget() {
    DECIDING.store(CHOICE.get().is_some(), Ordering::Relaxed);
}

fn decide(wish: Option<&str>) -> Choice {
    let mut complaint = None;
    match wish {
        None | Some("" | "auto" | "rseq") => {}
        Some("syscall") => {
            let reason = Some("DORMOUSE_CLOCK=syscall asks for it".to_owned());
            return Choice { tier: Tier::Syscall, reason, complaint };
        }
        Some(other) => {
            complaint = Some(format!("DORMOUSE_CLOCK={other} is no tier: use rseq, syscall or auto"));
        }
    }
    match self_test() {
        Ok(()) => Choice { tier: Tier::Rseq, reason: None, complaint },
        Err(reason) => Choice { tier: Tier::Syscall, reason: Some(reason), complaint },
    }
}

/// Whether the flag falls when the thread blocks, and stays up when it does not. Kernels from 6.19 on leave
/// it up across a blocking call, and a clock that trusted them would count sleep as CPU time.
fn self_test() -> Result<(), String> {
    arch::tsc_readable()?;
    if !tsc::calibrate() {
        return Err("the TSC does not advance against the kernel's clock".into());
    }
    let flag = Flag::of_this_thread()?;
    for _ in 0..3 {
        flag.arm();
        std::thread::sleep(Duration::from_micros(50));
        if flag.is_armed() {
            flag.disarm();
            return Err("this kernel keeps rseq_cs when a thread blocks (Linux 6.19 or later)".into());
        }
    }
    // Preemption may take the flag down now and then, not every time.
    let kept = (0..100)
        .filter(|_| {
            flag.arm();
            kernel::thread_ns();
            flag.is_armed()
        })
        .count();
    flag.disarm();
    if kept < 50 {
        return Err(format!(
            "this kernel clears rseq_cs at system calls that do not block ({kept} of 100 kept)"
        ));
    }
    Ok(())
}

/// What `dormouse doctor` says of the clock.
pub fn capability() -> Vec<Capability> {
    let Some(choice) = choice() else {
        return vec![Capability::limited("clock.thread", "the tier is being chosen: ask again")];
    };
    let mut report = Vec::new();
    report.push(match (choice.tier, &choice.reason) {
        (Tier::Rseq, _) if tsc::is_broken() => {
            Capability::limited("clock.thread", "tier syscall: the TSC has changed its rate")
        }
        (Tier::Rseq, _) => Capability::ok("clock.thread", "tier rseq: reads without a system call"),
        (Tier::Syscall, reason) => {
            let reason = reason.as_deref().unwrap_or("no reason recorded");
            Capability::limited("clock.thread", format!("tier syscall: {reason}"))
        }
    });
    if let Some(complaint) = &choice.complaint {
        report.push(Capability::limited("clock.setting", complaint.clone()).with_fix("unset DORMOUSE_CLOCK"));
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_can_ask_for_the_syscall_tier() {
        assert_eq!(decide(Some("syscall")).tier, Tier::Syscall);
    }

    #[test]
    fn a_tier_that_is_none_is_complained_about_and_changes_nothing() {
        let wrong = decide(Some("sundial"));
        assert_eq!(wrong.tier, decide(None).tier);
        assert!(wrong.complaint.unwrap().contains("sundial"));
    }
}
