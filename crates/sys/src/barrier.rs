//! Barriers between threads, one side of which is light and the other heavy: `membarrier(2)`.
//!
//! # The pair
//!
//! ```text
//! a thread that passes often      a thread that passes seldom
//! 1  store A                      a  store B
//! 2  light()                      b  heavy()
//! 3  load B                       c  load A
//! ```
//!
//! At least one of the two loads sees the other thread's store. Without barriers both may miss it,
//! because a processor may delay a store past a later load. With two equal barriers each side would
//! need a full fence, which costs 5 to 20 ns. Here [`heavy`] has the kernel execute a full fence on
//! every processor that runs a thread of this process, between two instructions of that thread:
//!
//! - The fence comes after 1. Then A is visible before `heavy` returns, and c sees it.
//! - The fence comes before 1. Then 3 runs after the fence as well, and sees B, which was stored
//!   before `heavy` began.
//!
//! There is no third case as long as the compiler keeps 1 before 3, and [`light`] does no more than
//! that. A thread that is not running has passed a full fence when the kernel descheduled it, and
//! passes another one before it runs.
//!
//! # The kernel's promise
//!
//! `MEMBARRIER_CMD_PRIVATE_EXPEDITED` returns after each running thread of the process has executed
//! that fence, and is itself a full fence for its caller on both sides. `…_SYNC_CORE`
//! ([`sync_core`]) moreover has each thread execute an instruction that serialises the processor,
//! so no thread runs on instructions that it fetched before the call. A process registers for each
//! of the two; a forked child inherits that.
//!
//! # Where the kernel refuses
//!
//! A sandbox may have no `membarrier`. Then a wait takes its place.
//!
//! - In place of [`heavy`], a millisecond. A store leaves its processor's buffer in finite time,
//!   which is well below a microsecond: step 1 is visible to c after the wait. The buffer drains on
//!   while the thread is interrupted.
//! - In place of [`sync_core`], [`settle`]. On x86-64 it is as long. Instruction caches are
//!   coherent there: a store removes the line from them, so a fetch after it gets the new bytes. A
//!   processor has executed everything that it fetched earlier well before a microsecond has
//!   passed, and one that is interrupted fetches again.
//! - arm64 promises a new fetch only behind an event that synchronises the context, such as the
//!   return from an interrupt. There [`settle`] is longer than a tick of the slowest kernel
//!   ([`SETTLE_NS`]). A processor without a tick (`nohz_full`) may still run old instructions until
//!   its thread next enters the kernel.
//!
//! No manual states the first two times as numbers, so `membarrier` comes first. A signal to each
//! thread is no substitute: it would interrupt the host's sleeping calls, and would not reach a
//! thread that blocks all signals. A change of page permissions is none either, because it does not
//! interrupt every processor.
//!
//! # The callers
//!
//! | shared state | light | heavy |
//! |---|---|---|
//! | the event set of a context, and a thread's span | each switch (`dormouse-events`) | a change of event sets |
//! | machine code | none: a fetch has no barrier | [`sync_core`], once for each step of a batch (`dormouse-keys`) |
//!
//! Each caller names the accesses 1, 3, a and c beside its barrier. Loom has no `membarrier`; under
//! it the callers use a sequentially consistent fence on both sides.
//!
//! # References
//!
//! `membarrier(2)`; Linux `kernel/sched/membarrier.c`, scenarios A to E in its header. Intel SDM
//! vol. 3, "Self-Modifying Code".
//!
//! # Safety
//!
//! The unsafe code calls `clock_nanosleep` with a valid time.

#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{Ordering, compiler_fence, fence};

use rustix::thread::{MembarrierCommand, membarrier};

pub use crate::arch::SETTLE_NS;
use crate::clock;
use crate::errno::keeping_errno;

/// How long [`heavy`] waits in place of the kernel's fence.
const STORES_NS: u64 = 1_000_000;

/// The side that runs often: it keeps the compiler's order, and costs nothing else.
#[inline(always)]
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// The side that runs seldom: every thread of the process passes a full fence. Where the kernel
/// refuses that, the caller waits for a millisecond.
///
/// # Cost
///
/// Interrupts each processor that runs a thread of this process. The first call registers the
/// process, which in a process with threads waits for a grace period: several milliseconds.
pub fn heavy() {
    let pass = || membarrier(MembarrierCommand::PrivateExpedited).is_ok();
    let register = || membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
    if !(pass() || register() && pass()) {
        wait(STORES_NS);
    }
    // Pairs with `light` on the calling thread's own behalf, also where the kernel refuses.
    fence(Ordering::SeqCst);
}

/// Takes the place of [`sync_core`] where the kernel refuses it: it sleeps for [`SETTLE_NS`], after
/// which other processors have executed the instructions that they had fetched.
pub fn settle() {
    wait(SETTLE_NS);
}

fn wait(pause_ns: u64) {
    // b, the caller's own store, becomes visible before the wait begins.
    fence(Ordering::SeqCst);
    let now = || clock::ask_library(libc::CLOCK_MONOTONIC);
    let Some(begin) = now() else {
        // A filter refuses even the clock. Each turn takes some ten cycles.
        return (0..pause_ns).for_each(|_| std::hint::spin_loop());
    };
    while let Some(left) = now().and_then(|now| pause_ns.checked_sub(now.saturating_sub(begin)))
        && left > 0
    {
        let time = libc::timespec { tv_sec: 0, tv_nsec: left as libc::c_long };
        let none = std::ptr::null_mut::<libc::timespec>();
        // The loop reads the clock, because a signal may end the sleep early, and a filter may
        // refuse it. SAFETY: the kernel reads the time, and writes nothing.
        keeping_errno(|| unsafe {
            libc::syscall(libc::SYS_clock_nanosleep, libc::CLOCK_MONOTONIC, 0, &raw const time, none)
        });
    }
}

/// Registers the process for [`sync_core`]; the call returns at once if it is registered already.
///
/// # Cost
///
/// The first call in a process with threads waits for a grace period: several milliseconds.
///
/// # Errors
///
/// The kernel's error if it is older than Linux 4.16, or if a filter refuses the call.
pub fn register_sync_core() -> io::Result<()> {
    Ok(membarrier(MembarrierCommand::RegisterPrivateExpeditedSyncCore)?)
}

/// [`heavy`] for instructions: after it, no thread of the process runs instructions that it fetched
/// before.
///
/// # Errors
///
/// The kernel's error; `EPERM` if the process is not registered.
pub fn sync_core() -> io::Result<()> {
    Ok(membarrier(MembarrierCommand::PrivateExpeditedSyncCore)?)
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use std::time::{Duration, Instant};

    use dormouse_testkit::{Answer, Filter, in_child};

    use super::*;

    #[test]
    fn a_refused_sleep_is_waited_out() {
        in_child(|| {
            let assert_waits = || {
                for (wait, pause_ns) in [(heavy as fn(), STORES_NS), (settle, SETTLE_NS)] {
                    let begin = Instant::now();
                    wait();
                    assert!(begin.elapsed() >= Duration::from_nanos(pause_ns));
                }
            };
            Filter::answer(Answer::Errno(libc::ENOSYS), &[libc::SYS_membarrier]).install();
            assert_waits();
            Filter::refuse(&[libc::SYS_clock_nanosleep]).install();
            assert_waits();
        });
    }
}
