//! SIGTRAPs of debug registers. Hits go to the watcher of the copy whose event it is; exceptions
//! without a cause are dropped.
//!
//! # Hits in the handler
//!
//! The handler may itself touch watched memory, even `errno`. It blocks SIGTRAP, so such a hit
//! arrives late, when the handler returns.
//!
//! # Exceptions without a cause
//!
//! The processor sets a bit in DR6 for the register that has trapped. If that bit is lost, the
//! kernel finds no cause, takes the exception for the instruction `int1`, and sends a SIGTRAP that
//! no program expects; or it finds a register that it has released meanwhile. (Seen under KVM, with
//! threads that start, end and hit all the time; the hypervisor is the likely cause.) By default
//! that ends the process. So from the first watch on such a signal is swallowed, unless there is an
//! `int1`. The kernel has not counted the hit; [`unexplained`] counts it.
//!
//! One case stays fatal: the kernel forces this signal, so if a thread blocks SIGTRAP at that
//! moment, its process ends. No handler can prevent that.
//!
//! # Watches that stop before the access
//!
//! Where the processor does so (arm64), the handler makes the access, and the thread goes on behind
//! it. So the rest is as on processors that stop behind it. The access hits the watch again; as the
//! handler blocks SIGTRAP, the kernel's single step gets it past that, and leaves a second signal,
//! which the handler takes at once. The access may be to `errno`: it is made after one part of the
//! handler that keeps `errno` as it was, and before the next one.
//!
//! # Async-signal-safety
//!
//! No lock, no allocation, no thread-local but `errno`, which stays as it was. A hit makes the
//! system calls of its watcher; an exception without a cause makes those of [`peek`]. A handler
//! that makes the access also makes those, and `rt_sigtimedwait`, which does not wait; under a
//! filter it makes neither.
//!
//! # References
//!
//! `arch/arm64/kernel/hw_breakpoint.c`: `watchpoint_handler`; `arch/x86/kernel/traps.c`:
//! `exc_debug_user`; `arch/x86/kernel/hw_breakpoint.c`:
//! `hw_breakpoint_handler`; `kernel/signal.c`: `send_sig_perf`.
//!
//! # Safety
//!
//! The unsafe code reads the structure that the kernel passes to a handler, and calls functions
//! through the pointers that [`add`] has stored.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::arch;
use crate::errno::keeping_errno;
use crate::peek;
use crate::perf::is_filtered;
use crate::stack::{CallFrame, interrupted, lowest};
pub use crate::trap_types::{Passing, PerfTrap, Watcher};

/// How many copies of dormouse can use SIGTRAP in one process.
pub(crate) const MOST_COPIES: usize = 16;

/// The form in which copies pass watchers to one another.
pub(crate) type SharedWatcher = extern "C" fn(&PerfTrap);

/// The first 12 bits of data that is dormouse's: no address begins so. The next four name the
/// watcher.
pub(crate) const OF_WATCHERS: u64 = 0xd0a << 52;
const WATCHER_SHIFT: u32 = 48;

/// The watchers of all copies that this one leads, its own among them: filled from the front, never
/// taken out. A watcher's place is in its events' data.
static WATCHERS: [AtomicPtr<()>; MOST_COPIES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST_COPIES];

/// Exceptions without a cause, if this copy leads.
static UNEXPLAINED: AtomicU64 = AtomicU64::new(0);

/// Hits and samples for which an alternate stack had no room, if this copy leads.
pub(crate) static CRAMPED: AtomicU64 = AtomicU64::new(0);

/// The kernel's code for an event.
pub(crate) const TRAP_PERF: libc::c_int = 6;

/// The kernel's type of events that are breakpoints and watches (`PERF_TYPE_BREAKPOINT`).
pub(crate) const BREAKPOINT: u32 = 5;

/// Number of hits and samples for which the alternate stack of their thread had no room, if this
/// copy leads: nobody was told of them.
pub fn cramped() -> u64 {
    CRAMPED.load(Ordering::Relaxed)
}

/// Number of exceptions without a cause since the first watch, if this copy leads: hits that the
/// kernel has not counted.
pub fn unexplained() -> u64 {
    UNEXPLAINED.load(Ordering::Relaxed)
}

/// The beginning of the data of a watcher's events.
pub(crate) fn data_of(place: u32) -> u64 {
    OF_WATCHERS | u64::from(place) << WATCHER_SHIFT
}

/// Adds a watcher, which is called for its events. Returns its place, or `None` if there are too
/// many.
pub(crate) fn add(watcher: SharedWatcher) -> Option<u32> {
    let watcher = watcher as *mut ();
    let found = WATCHERS.iter().position(|place| {
        // Pairs with the load in `tell`.
        match place.compare_exchange(std::ptr::null_mut(), watcher, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => true,
            Err(other) => other == watcher,
        }
    });
    found.map(|place| place as u32)
}

/// Whether a signal was of a debug register, and is done with.
///
/// # Safety
///
/// The arguments are those of a handler with `SA_SIGINFO`.
pub(crate) unsafe fn take(info: *const libc::siginfo_t, context: *const c_void) -> bool {
    // SAFETY: the caller's promise.
    let (registers, lowest) = unsafe { (interrupted(context), lowest(context)) };
    let CallFrame { instruction: ip, frame, stack, link } = registers;
    // SAFETY: the kernel has filled it in.
    match unsafe { (*info).si_code } {
        TRAP_PERF => {
            // SAFETY: the kernel has filled it in for this code.
            let PerfInfo { addr, data, flags, kind, .. } = unsafe { info.cast::<PerfInfo>().read() };
            let is_late = flags & 1;
            if !is_ours(data) {
                return false;
            }
            let (passing, made_at) = if arch::WATCHES_STOP_BEHIND || kind != BREAKPOINT {
                (Passing::Behind, 0)
            } else {
                // SAFETY: the caller's promise, and the thread is at an access.
                unsafe { pass(is_late != 0, context.cast_mut()) }
            };
            let passing = passing as usize;
            let trap = PerfTrap { data, ip, frame, stack, is_late, addr, link, lowest, passing, made_at };
            keeping_errno(|| tell(&trap))
        }
        code if arch::may_be_unexplained(code) => keeping_errno(|| is_unexplained(ip)),
        _ => false,
    }
}

/// Whether no instruction of the program asked for the debug exception behind which it stands.
fn is_unexplained(ip: usize) -> bool {
    const INT1: u64 = 0xf1;
    // Relaxed: only whether there is one.
    let is_watched = !WATCHERS[0].load(Ordering::Relaxed).is_null();
    // Behind it; hypervisors that emulate it may stay before it.
    let is_int1 = |at| peek::value(at, 1) == Some(INT1);
    let is_unexplained = is_watched && !is_int1(ip.wrapping_sub(1)) && !is_int1(ip);
    UNEXPLAINED.fetch_add(is_unexplained.into(), Ordering::Relaxed);
    is_unexplained
}

/// Gets a thread past the access before which a watch has stopped it. Returns the address of the
/// access, if it was made here. `errno` changes only if the access itself stores to it.
///
/// # Safety
///
/// The context is that of a handler of SIGTRAP, which blocks the signal.
unsafe fn pass(is_late: bool, context: *mut c_void) -> (Passing, usize) {
    if is_late {
        // Under a filter ours is not taken below, and nothing tells it from one that is late.
        return (if keeping_errno(is_filtered) { Passing::Repeated } else { Passing::Behind }, 0);
    }
    // SAFETY: the caller's promise.
    let Some(made) = (unsafe { arch::make_access(context) }) else { return (Passing::Ahead, 0) };
    let passing = match keeping_errno(|| !is_filtered() && take_own()) {
        false => Passing::Made,
        true if made.is_store => Passing::MadeStore,
        true => Passing::MadeLoad,
    };
    (passing, made.address)
}

/// Takes the signal that an access of the handler's has left. Whether there was one.
fn take_own() -> bool {
    let only = 1_u64 << (libc::SIGTRAP - 1);
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: an information that is all zeros is whole.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads a set of 64 bits and a time, and writes the information.
    let taken = unsafe {
        libc::syscall(libc::SYS_rt_sigtimedwait, &raw const only, &raw mut info, &raw const at_once, 8)
    };
    if taken != libc::c_long::from(libc::SIGTRAP) {
        return false;
    }
    // SAFETY: the kernel has filled it in.
    let is_hit =
        info.si_code == TRAP_PERF && is_ours(unsafe { (&raw const info).cast::<PerfInfo>().read().data });
    if !is_hit {
        // Somebody's, who was first: ours was dropped for it.
        // SAFETY: a signal for this thread, with the information that it had.
        unsafe {
            let (pid, tid) = (libc::getpid(), libc::gettid());
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, libc::SIGTRAP, &raw const info);
        }
    }
    true
}

/// Whether an event with this data is dormouse's.
fn is_ours(data: u64) -> bool {
    data >> 52 == OF_WATCHERS >> 52
}

/// Tells the watcher of a hit; false if there is none.
fn tell(trap: &PerfTrap) -> bool {
    // Pairs with the exchange in `add`.
    let watcher = WATCHERS[(trap.data >> WATCHER_SHIFT) as usize % MOST_COPIES].load(Ordering::Acquire);
    if watcher.is_null() {
        return false;
    }
    // SAFETY: only `add` stores there, a `SharedWatcher` of an object that stays.
    let watcher = unsafe { std::mem::transmute::<*mut (), SharedWatcher>(watcher) };
    watcher(trap);
    true
}

/// `siginfo_t` of a `TRAP_PERF`, as far as it is needed.
#[repr(C)]
pub(crate) struct PerfInfo {
    number: libc::c_int,
    errno: libc::c_int,
    pub(crate) code: libc::c_int,
    addr: usize,
    pub(crate) data: u64,
    pub(crate) kind: u32,
    /// Bit 0: the thread blocked the signal.
    flags: u32,
}

const _: () = assert!(
    std::mem::offset_of!(PerfInfo, addr) == 16
        && std::mem::offset_of!(PerfInfo, data) == 24
        && std::mem::offset_of!(PerfInfo, flags) == 36
);
