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
//! `membarrier(2)`; Linux `kernel/sched/membarrier.c`, scenarios A to E in its header.

use std::io;
use std::sync::atomic::{Ordering, compiler_fence, fence};

use rustix::thread::{MembarrierCommand, membarrier};

/// The side that is passed often: keeps the compiler's order, and costs nothing else.
#[inline(always)]
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// The side that is passed seldom: every thread of the process passes a full fence. False if the
/// kernel refuses; then the calling thread alone has passed one, and the pair orders nothing.
///
/// # Cost
///
/// An interrupt of each processor that runs a thread of this process. The first call registers the
/// process, which in a process with threads waits for a grace period: several milliseconds.
pub fn heavy() -> bool {
    let pass = || membarrier(MembarrierCommand::PrivateExpedited).is_ok();
    let register = || membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
    let is_passed = pass() || register() && pass();
    // Pairs with `light` on the calling thread's own behalf, also where the kernel refuses.
    fence(Ordering::SeqCst);
    is_passed
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
