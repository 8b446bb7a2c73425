//! The handler of SIGTRAP: it resumes a thread that ran into a breakpoint instruction of ours, for
//! the int3 protocol of `dormouse-keys`, and reports hits of `dormouse-breakpoints`' watches.
//!
//! One handler, installed at the first use, serves all copies of dormouse in the process
//! ([`crate::trap`]). After a trap at an address that a copy's resolver has, the thread continues
//! where the resolver returns; if the `int3` there has gone meanwhile, the instruction is tried
//! again. Traps of debug registers go to [`debug_trap`]. All other signals are passed on to the
//! action that the signal had before.
//!
//! # Passing on
//!
//! They are passed on as the kernel would have delivered them:
//!
//! - A handler runs on the stack, with the arguments and with the mask that the kernel would have
//!   given it ([`passing`]). Ours has its `SA_RESTART`, too. `SA_RESETHAND` is respected: the
//!   second trap gets the default action.
//! - The default action ends the process by SIGTRAP: it is restored, and the same signal is sent
//!   again, with the same information, to the same thread, which takes it where it was interrupted.
//!   So the core dump shows that place, not ours.
//! - An ignored signal is ignored if a process sent it; a trap of the thread itself is not, as in
//!   the kernel.
//!
//! A handler that is installed after ours may or may not pass on to ours; there is no way to find
//! out. So we never take the signal back; [`crate::trap::disposition`] returns the handler, and a
//! batch that needs ours is refused.
//!
//! # Taking the signal
//!
//! Another thread of the host may install a handler at the same time. The call that installs ours
//! returns the action that it has replaced, and we pass on to that one, not to the one that was
//! read before:
//!
//! 1. read the present action, and make it the one to pass on to;
//! 2. install ours, with `SA_RESTART` if the present one has it; the kernel returns the action that
//!    was replaced;
//! 3. if that is another one, it was installed after step 1, and its installer could not know of
//!    ours: make it the one to pass on to. If it differs in `SA_RESTART`, install ours once more.
//!    If the action that this replaces is not ours, another thread has taken the signal from us
//!    meanwhile: it gets the signal back, and keeps it.
//!
//! Between 2 and 3, for the time of a few instructions, a trap that is not ours goes to the action
//! read in step 1.
//!
//! # Async-signal-safety
//!
//! The handler takes no lock, allocates nothing and touches no thread-local but `errno`, which it
//! leaves as it was: it may come at any instruction, on a thread that dormouse has never seen. For
//! an `int3` of ours it makes no system call; to pass a trap on to a handler it makes those of
//! [`passing`]. (That handler may do anything.) A hit on an alternate stack with less than [`ROOM`]
//! below the kernel's frame is counted, and lost; it uses no stack.
//!
//! # Safety
//!
//! The unsafe code is `sigaction` and the access to the structures that the kernel passes to a
//! handler.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};

use crate::arch;
use crate::debug_trap::{self, MOST_COPIES, SharedWatcher};
use crate::passing::{self, SignalFrame};
use crate::signals;

/// The finding of a resolver at the address of an `int3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Ours: the thread continues at this address.
    Resume(usize),
    /// One of ours was there before. If it has gone meanwhile, the thread executes the instruction
    /// that is there now.
    Late,
    /// Not ours.
    Foreign,
}

/// Called with the address of an `int3`; must not allocate, lock or unwind.
pub type Resolver = fn(address: usize) -> Verdict;

/// The form in which copies call one another's resolvers: [`FOREIGN`], [`LATE`], or the address
/// where the thread continues.
pub(crate) type SharedResolver = extern "C" fn(address: usize) -> usize;

pub(crate) const FOREIGN: usize = 0;
pub(crate) const LATE: usize = 1;

/// The instruction `int3`.
pub const INT3: u8 = 0xcc;

/// The resolvers of all copies that this one leads, its own among them: filled from the front,
/// never taken out.
static RESOLVERS: [AtomicPtr<()>; MOST_COPIES] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST_COPIES];
/// The action that the signal had before us: leaked, written before the handler can run, and once
/// more if another thread replaced it before that.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());
/// Whether the action before us was for one signal (`SA_RESETHAND`), and has had it.
static SPENT: AtomicBool = AtomicBool::new(false);

/// The rounds of `int3`s that were laid down.
static ROUND: AtomicUsize = AtomicUsize::new(0);

pub(crate) extern "C" fn begin_round_here() {
    // Pairs with the loads in `handle`: a thread that meets an `int3` of this round sees the
    // number, and with it the addresses that the resolver was given before. The acquiring half
    // keeps the writes of the `int3`s behind it.
    ROUND.fetch_add(1, Ordering::AcqRel);
}

/// Asks all copies.
fn resolve_for_all(address: usize) -> Verdict {
    let mut verdict = Verdict::Foreign;
    for resolver in &RESOLVERS {
        // Pairs with the exchange in `install_here`.
        let resolver = resolver.load(Ordering::Acquire);
        if resolver.is_null() {
            break;
        }
        // SAFETY: only `install_here` stores there, a `SharedResolver` of an object that stays.
        match unsafe { std::mem::transmute::<*mut (), SharedResolver>(resolver) }(address) {
            FOREIGN => {}
            LATE => verdict = Verdict::Late,
            target => return Verdict::Resume(target),
        }
    }
    verdict
}

/// [`crate::trap::install`], by the copy that leads; an error number, or 0. Under the patch lock,
/// so one copy at a time.
pub(crate) extern "C" fn install_here(resolver: SharedResolver) -> libc::c_int {
    let resolver = resolver as *mut ();
    let is_known = RESOLVERS.iter().any(|place| {
        // Pairs with the load in `resolve_for_all`.
        match place.compare_exchange(std::ptr::null_mut(), resolver, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => true,
            Err(other) => other == resolver,
        }
    });
    if !is_known {
        return libc::ENOSPC;
    }
    install_handler().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EINVAL))
}

/// [`crate::trap::watch`], by the copy that leads; an error number, or 0 and the place. Under the
/// patch lock, so one copy at a time.
pub(crate) extern "C" fn install_watcher_here(watcher: SharedWatcher, place: &mut u32) -> libc::c_int {
    let Some(found) = debug_trap::add(watcher) else { return libc::ENOSPC };
    *place = found;
    install_handler().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EINVAL))
}

fn install_handler() -> io::Result<()> {
    // Relaxed: the patch lock keeps installers apart.
    if !PREVIOUS.load(Ordering::Relaxed).is_null() {
        return Ok(());
    }
    // Step 1.
    let seen = present()?;
    let kept = pass_on_to(&seen);
    // Step 2.
    let ours = in_place_of(&seen);
    let replaced = match exchange(&ours) {
        Ok(replaced) => replaced,
        Err(error) => {
            PREVIOUS.store(std::ptr::null_mut(), Ordering::Relaxed);
            // SAFETY: made above; no handler was installed that could have read it.
            drop(unsafe { Box::from_raw(kept) });
            return Err(error);
        }
    };
    // Step 3.
    if are_alike(&replaced, &seen) {
        return Ok(());
    }
    // The action of the reading stays in memory: a handler may be reading it.
    pass_on_to(&replaced);
    let needed = in_place_of(&replaced);
    if are_alike(&needed, &ours) {
        return Ok(());
    }
    let there = exchange(&needed)?;
    if there.sa_sigaction != needed.sa_sigaction {
        exchange(&there)?;
    }
    Ok(())
}

/// Makes an action the one that is passed on to.
fn pass_on_to(action: &libc::sigaction) -> *mut libc::sigaction {
    let kept = Box::into_raw(Box::new(*action));
    // Pairs with the load in `pass_on`.
    PREVIOUS.store(kept, Ordering::Release);
    kept
}

/// Our action, which takes the place of another, and restarts calls if that one does.
fn in_place_of(before: &libc::sigaction) -> libc::sigaction {
    let mut action = *before;
    action.sa_sigaction = handle as *const () as usize;
    let restart = if is_handler(before) { before.sa_flags & libc::SA_RESTART } else { libc::SA_RESTART };
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | restart;
    action.sa_mask = signals::all_but_faults();
    action
}

/// Sets an action; gives the one that it has replaced.
fn exchange(action: &libc::sigaction) -> io::Result<libc::sigaction> {
    let mut replaced = MaybeUninit::zeroed();
    // SAFETY: a whole action, whose handler is ours, which keeps the rules above, or one that was
    // installed already. The answer goes to a fresh place.
    unsafe {
        if libc::sigaction(libc::SIGTRAP, action, replaced.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(replaced.assume_init())
    }
}

/// Whether two actions do the same.
fn are_alike(one: &libc::sigaction, other: &libc::sigaction) -> bool {
    /// Set by the C library for each handler, to return from it.
    const SA_RESTORER: libc::c_int = 0x0400_0000;
    let flags = |action: &libc::sigaction| action.sa_flags & !SA_RESTORER;
    // SAFETY: whole sets.
    let blocks =
        |action: &libc::sigaction, signal| unsafe { libc::sigismember(&raw const action.sa_mask, signal) };
    one.sa_sigaction == other.sa_sigaction
        && flags(one) == flags(other)
        && (1..=64).all(|signal| blocks(one, signal) == blocks(other, signal))
}

/// The action that the signal has now.
pub(crate) fn present() -> io::Result<libc::sigaction> {
    let mut present = MaybeUninit::zeroed();
    // SAFETY: reads the present action into a fresh place.
    unsafe {
        if libc::sigaction(libc::SIGTRAP, std::ptr::null(), present.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(present.assume_init())
    }
}

fn is_handler(action: &libc::sigaction) -> bool {
    !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
}

/// The bytes of an alternate stack that a hit takes below the frame of the kernel. Builds without
/// optimisation take more.
const ROOM: usize = if cfg!(debug_assertions) { 4736 } else { 3072 };

crate::entry_with_room!(pub(crate) fn handle: ROOM => go_on, else count_cramped);
crate::entry!(fn go_on => choose);

// Counts a trap of an event of ours, for which there is no room. All others go on as they can.
arch::counting_entry!(
    fn count_cramped: std::mem::offset_of!(debug_trap::PerfInfo, code), debug_trap::TRAP_PERF;
    std::mem::offset_of!(debug_trap::PerfInfo, data), debug_trap::OF_WATCHERS >> 52;
    debug_trap::CRAMPED, else go_on
);

/// Where the handler goes on; 0: it returns.
unsafe extern "C-unwind" fn choose(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
    frame: *mut SignalFrame,
) -> usize {
    // SAFETY: the kernel passes valid pointers to a handler with SA_SIGINFO.
    let (code, registers) =
        unsafe { ((*info).si_code, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext) };
    if let Some(address) = arch::breakpoint(code, arch::interrupted(registers).instruction) {
        loop {
            // Pairs with `begin_round_here`: the resolvers have the addresses of this round.
            let round = ROUND.load(Ordering::Acquire);
            match resolve_for_all(address) {
                Verdict::Resume(target) => {
                    arch::go_on_at(registers, target);
                    return 0;
                }
                Verdict::Late => {}
                Verdict::Foreign => break,
            }
            // SAFETY: the thread has just executed the byte there.
            let byte = unsafe { std::ptr::read_volatile(address as *const u8) };
            // Pairs with the write of the `int3` behind `begin_round_here`: the next load of the
            // round is no older than the byte.
            fence(Ordering::Acquire);
            if byte != INT3 {
                // Taken while it was there, delivered after it had gone.
                arch::go_on_at(registers, address);
                return 0;
            }
            // No round is at this site, so the `int3` is foreign, unless another round has just
            // laid it down. Relaxed: the next turn of the loop loads it again.
            if ROUND.load(Ordering::Relaxed) == round {
                break;
            }
        }
    }
    // SAFETY: as above.
    if unsafe { debug_trap::take(info, context) } {
        return 0;
    }
    // SAFETY: the arguments are the kernel's.
    unsafe { pass_on(signal, info, context, frame) }
}

/// Does what the signal's earlier action would have done; where that goes on, or 0.
unsafe fn pass_on(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
    frame: *mut SignalFrame,
) -> usize {
    // Pairs with the store in `pass_on_to`.
    // SAFETY: set before the handler was installed, never freed after that.
    let previous = unsafe { &*PREVIOUS.load(Ordering::Acquire) };
    // SAFETY: the kernel's own.
    let was_sent = unsafe { (*info).si_code } <= 0;
    let is_spent = || previous.sa_flags & libc::SA_RESETHAND != 0 && SPENT.swap(true, Ordering::Relaxed);
    if previous.sa_sigaction == libc::SIG_IGN && was_sent {
        return 0;
    }
    if !is_handler(previous) || is_spent() {
        // SAFETY: as this function's caller.
        unsafe { end(signal, info) };
        return 0;
    }
    // SAFETY: as this function's caller.
    unsafe { passing::pass_on(previous, signal, info, context, frame) }
}

/// Ends the process by the default action: the signal is blocked until the handler returns, and is
/// then taken where the thread was interrupted. (It is blocked already, unless another handler has
/// passed it on to ours.)
unsafe fn end(signal: libc::c_int, info: *mut libc::siginfo_t) {
    // SAFETY: plain calls; `info` is the kernel's, for a signal of this very thread.
    unsafe {
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        let mut only = std::mem::zeroed();
        libc::sigemptyset(&raw mut only);
        libc::sigaddset(&raw mut only, signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const only, std::ptr::null_mut());
        let is_default = libc::sigaction(signal, &raw const default, std::ptr::null_mut()) == 0;
        let (pid, tid) = (libc::getpid(), libc::gettid());
        let is_sent = is_default && libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info) == 0;
        if !is_sent && (!is_default || libc::raise(signal) != 0) {
            // A filter of system calls is in the way, and the process must end all the same.
            libc::abort();
        }
    }
}
