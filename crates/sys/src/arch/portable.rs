//! All other processors, and checkers that run no machine code: what needs an instruction is not
//! there.
//!
//! # Safety
//!
//! The unsafe functions do nothing, or pass on what the kernel has called them with.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use crate::stack::CallFrame;
use crate::trap_types::Made;

/// This processor's code is not here.
pub(crate) const IS_KNOWN: bool = false;

/// No restartable sequences.
pub const RSEQ_SIGNATURE: u32 = 0;

/// No register of the performance unit can be read.
pub(crate) const READS_COUNTERS: bool = false;

/// No registers with samples.
pub(crate) const UNWIND_REGISTERS: u64 = 0;

/// No registers with samples.
pub(crate) const REGISTER_PLACES: &[usize] = &[];

/// The number of registers that watch memory; where it varies, the most that there are. The kernel
/// refuses what is too much.
pub const WATCH_REGISTERS: u32 = 16;

/// Whether processors of this kind have different numbers of them, which must be counted.
pub const WATCH_REGISTERS_VARY: bool = true;

/// Whether watches of memory and of instructions take the same registers.
pub const WATCHES_SHARE_REGISTERS: bool = false;

/// The end of the address space of programs.
pub const USER_END: usize = usize::MAX;

/// No calls that only this processor has.
pub(crate) const OLD_CALLS: &[(libc::c_long, &str)] = &[];

/// No code is patched here.
pub const SETTLE_NS: u64 = 1_000_000;

/// Whether a thread has passed the access when a watch stops it.
pub const WATCHES_STOP_BEHIND: bool = false;

/// Whether a thread gets past the access at which a watch of its own process stops it.
pub const PASSES_WATCHES: bool = false;

/// Makes the access before which code was interrupted. `None`: no
/// instruction is known.
///
/// # Safety
///
/// None is needed.
pub(crate) unsafe fn make_access(_: *mut std::ffi::c_void) -> Option<Made> {
    None
}

/// A word of a stack.
///
/// # Safety
///
/// The word can be read, and is aligned.
#[inline(always)]
pub unsafe fn stack_word(at: usize) -> usize {
    // SAFETY: the caller's promise. Volatile: other code wrote it.
    unsafe { std::ptr::with_exposed_provenance::<usize>(at).read_volatile() }
}

/// Whether the loader adds a permission to the code of an object with these properties (the note
/// `NT_GNU_PROPERTY_TYPE_0`). No code is patched here.
pub(crate) fn is_guarded(_: &[u8]) -> bool {
    false
}

/// 0: the thread control block cannot be found.
pub fn thread_pointer() -> u64 {
    0
}

/// Likewise.
pub(crate) fn control_block() -> Option<std::ops::Range<usize>> {
    None
}

/// Zeros: a walk from there finds nothing.
pub(crate) fn registers() -> CallFrame {
    CallFrame { instruction: 0, stack: 0, frame: 0, link: 0 }
}

/// Zeros, as for [`registers`].
pub(crate) fn interrupted(_: &libc::mcontext_t) -> CallFrame {
    registers()
}

/// Interrupted code goes on where it was.
pub(crate) fn go_on_at(_: &mut libc::mcontext_t, _: usize) {}

/// No breakpoint instruction is ours.
pub(crate) fn breakpoint(_: libc::c_int, _: usize) -> Option<usize> {
    None
}

/// Each trap has a cause.
pub(crate) fn may_be_unexplained(_: libc::c_int) -> bool {
    false
}

/// Nothing is read. No code is patched here, so nobody has to know whether it could be.
pub(crate) fn refused_mask(_: usize) -> isize {
    0
}

/// There is no such hint.
pub(crate) fn prefetch(_: *const u8) {}

/// There is no such hint.
pub(crate) fn prefetch_for_write(_: *const u8) {}

/// Adds to a word of the calling thread's own: a signal handler of the thread comes before it or
/// after it.
#[inline(always)]
pub fn add_here(word: &AtomicU64, n: u64) {
    word.fetch_add(n, Ordering::Relaxed);
}

/// No register can be read.
///
/// # Safety
///
/// None is needed.
pub(crate) unsafe fn counter(_: u32) -> u64 {
    0
}

/// Defines a handler for the kernel to call, which calls `$choose` with the kernel's arguments.
#[macro_export]
macro_rules! entry {
    ($(#[$doc:meta])* $visible:vis fn $name:ident => $choose:path) => {
        $(#[$doc])*
        $visible unsafe extern "C-unwind" fn $name(
            signal: libc::c_int,
            info: *mut libc::siginfo_t,
            context: *mut std::ffi::c_void,
        ) {
            // SAFETY: the arguments are the kernel's. It goes on nowhere else: without a known
            // frame a handler of the host's is called in place.
            unsafe { $choose(signal, info, context, std::ptr::null_mut()) };
        }
    };
}

/// Defines a handler for the kernel to call that goes on as `$roomy`.
#[macro_export]
macro_rules! entry_with_room {
    ($(#[$doc:meta])* $visible:vis fn $name:ident: $room:expr => $roomy:path, else $cramped:path) => {
        $(#[$doc])*
        $visible unsafe extern "C-unwind" fn $name(
            signal: libc::c_int,
            info: *mut libc::siginfo_t,
            context: *mut std::ffi::c_void,
        ) {
            let _room: usize = $room;
            let _cramped: $crate::passing::Handler = $cramped;
            // SAFETY: the arguments are the kernel's.
            unsafe { $roomy(signal, info, context) }
        }
    };
}

/// Defines a handler that counts nothing, and goes on as `$go_on`.
macro_rules! counting_entry {
    (fn $name:ident: $code:expr, $event:expr; $data:expr, $ours:expr; $count:path, else $go_on:path) => {
        unsafe extern "C-unwind" fn $name(
            signal: libc::c_int,
            info: *mut libc::siginfo_t,
            context: *mut std::ffi::c_void,
        ) {
            let _what = ($code, $event, $data, $ours, &$count);
            // SAFETY: the arguments are the kernel's.
            unsafe { $go_on(signal, info, context) }
        }
    };
}
pub(crate) use counting_entry;

/// The memory that the kernel writes on the stack for a handler: nothing is known of it.
#[derive(Debug)]
pub(crate) struct KernelFrame;

impl KernelFrame {
    /// Whether the layout is known.
    pub(crate) const IS_KNOWN: bool = false;
    pub(crate) const CONTEXT: usize = 0;
    pub(crate) const INFO: usize = 0;

    /// # Safety
    ///
    /// None is needed.
    pub(crate) unsafe fn must_stay(_: *mut Self) -> bool {
        true
    }

    /// # Safety
    ///
    /// None is needed: nothing calls it where the layout is not known.
    pub(crate) unsafe fn go_on_below(_: *mut Self, _: usize, _: libc::c_int, _: u64) {}
}

/// Null: no thread-local symbol can be found.
macro_rules! address_of_thread_local {
    ($symbol:expr) => {
        std::ptr::null()
    };
}
pub(crate) use address_of_thread_local;
