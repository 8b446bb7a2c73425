//! Barriers between threads of which one side is light and the other heavy: `membarrier(2)`.
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
//! because a processor may hold a store back behind a later load. With two equal barriers each side
//! would need a full fence, which costs 5 to 20 ns. Here [`heavy`] has the kernel execute a full
//! fence on every processor that runs a thread of this process, between two instructions of that
//! thread:
//!
//! - The fence comes after 1. Then A is visible before `heavy` returns, and c sees it.
//! - The fence comes before 1. Then 3 runs after the fence as well, and sees B, which was stored
//!   before `heavy` began.
//!
//! There is no third case as long as the compiler leaves 1 before 3, and that is all that [`light`]
//! asks for. A thread that is not running has passed a full fence when the kernel descheduled it,
//! and passes another one before it runs.
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
//! A sandbox may have no `membarrier`. Then [`wait`] takes its place: a millisecond, hundreds of
//! times what a processor needs for either promise.
//!
//! - A store leaves its processor's buffer in finite time, which is well below a microsecond: step
//!   1 is visible to c after the wait. The buffer drains on while the thread is interrupted.
//! - Instruction caches are coherent on x86: a store removes the line from them, so a fetch after
//!   it gets the new bytes. A processor runs out of what it has fetched before well below a
//!   microsecond, and one that is interrupted fetches anew.
//!
//! No manual gives either time as a number, so `membarrier` comes first. A signal to each thread is
//! no substitute: it would interrupt the host's sleeping calls, and not reach a thread that blocks
//! all signals. Nor is a change of page permissions: not every processor is interrupted by it.
//!
//! # The callers
//!
//! | shared state | light | heavy |
//! |---|---|---|
//! | the event set of a context, and a thread's span | each switch (`dormouse-events`) | a change of event sets |
//! | machine code | none: a fetch has no barrier | [`sync_core`], once for each step of a batch (`dormouse-keys`) |
//!
//! Each caller names the accesses 1, 3, a and c beside its barrier. Under loom, which knows no
//! `membarrier`, the callers put a sequentially consistent fence in the place of either side.
//!
//! # References
//!
//! `membarrier(2)`; Linux `kernel/sched/membarrier.c`, scenarios A to E in its header. Intel SDM
//! vol. 3, "Self-Modifying Code".
//!
//! # Safety
//!
//! The unsafe code is `clock_nanosleep`, with a valid time.

#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{Ordering, compiler_fence, fence};

use rustix::thread::{MembarrierCommand, membarrier};

use crate::clock;
use crate::errno::keeping_errno;

/// The length of [`wait`].
const PAUSE_NS: u64 = 1_000_000;

/// The side that is passed often: keeps the compiler's order, and costs nothing else.
#[inline(always)]
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// The side that is passed seldom: every thread of the process passes a full fence. Where the
/// kernel refuses, the caller waits ([`wait`]).
///
/// # Cost
///
/// An interrupt of each processor that runs a thread of this process. The first call registers the
/// process, which in a process with threads waits for a grace period: several milliseconds.
pub fn heavy() {
    let pass = || membarrier(MembarrierCommand::PrivateExpedited).is_ok();
    let register = || membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
    if !(pass() || register() && pass()) {
        wait();
    }
    // Pairs with `light` on the calling thread's own behalf, also where the kernel refuses.
    fence(Ordering::SeqCst);
}

/// Takes the place of [`heavy`] and [`sync_core`] where the kernel refuses them: a millisecond, in
/// which what other processors have stored becomes visible, and what they have fetched runs out.
pub fn wait() {
    // b, the caller's own store, becomes visible before the millisecond begins.
    fence(Ordering::SeqCst);
    let now = || clock::ask_library(libc::CLOCK_MONOTONIC);
    let Some(begin) = now() else {
        // A filter refuses even the clock. Each turn takes some ten cycles.
        return (0..PAUSE_NS).for_each(|_| std::hint::spin_loop());
    };
    while let Some(left) = now().and_then(|now| PAUSE_NS.checked_sub(now.saturating_sub(begin)))
        && left > 0
    {
        let time = libc::timespec { tv_sec: 0, tv_nsec: left as libc::c_long };
        let none = std::ptr::null_mut::<libc::timespec>();
        // The loop asks the clock, because a signal may end the sleep, and a filter refuse it.
        // SAFETY: the kernel reads the time, and writes nothing.
        keeping_errno(|| unsafe {
            libc::syscall(libc::SYS_clock_nanosleep, libc::CLOCK_MONOTONIC, 0, &raw const time, none)
        });
    }
}

/// Registers the process for [`sync_core`]; the kernel answers at once if it is registered already.
///
/// # Cost
///
/// The first call in a process with threads waits for a grace period: several milliseconds.
///
/// # Errors
///
/// The kernel's: it is older than Linux 4.16, or a filter refuses the call.
pub fn register_sync_core() -> io::Result<()> {
    Ok(membarrier(MembarrierCommand::RegisterPrivateExpeditedSyncCore)?)
}

/// [`heavy`] for instructions: after it, no thread of the process runs on instructions that it
/// fetched before.
///
/// # Errors
///
/// The kernel's; `EPERM` if the process is not registered.
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
                let begin = Instant::now();
                heavy();
                assert!(begin.elapsed() >= Duration::from_nanos(PAUSE_NS));
            };
            Filter::answer(Answer::Errno(libc::ENOSYS), &[libc::SYS_membarrier]).install();
            assert_waits();
            Filter::refuse(&[libc::SYS_clock_nanosleep]).install();
            assert_waits();
        });
    }
}
