//! Breakpoint instructions of our own: who resumes a thread that ran into one.
//!
//! One handler for SIGTRAP, installed at the first use, for all copies of dormouse in the process
//! ([`crate::rendezvous`]). A trap at an address that a copy's resolver knows goes on where the resolver says; a late
//! one, whose `int3` has gone meanwhile, is tried again; everything else is passed on to whoever had the signal before.
//!
//! # Passing on
//!
//! As the kernel would have done without us, as far as a handler can:
//!
//! - A handler gets the signal with the arguments that its `SA_SIGINFO` asks for. Ours is installed with its
//!   `sa_mask`, its `SA_NODEFER` and its `SA_RESTART`, so the kernel has blocked for ours what it would have
//!   blocked for it. `SA_RESETHAND` is kept count of: the second trap finds the default action.
//! - The default action ends the process by SIGTRAP: it is put back, and the same signal sent again, with the same
//!   description, to the same thread, which takes it where it was interrupted. So the core is of that place, not
//!   of ours.
//! - A signal that is ignored is ignored if somebody sent it; a trap of the thread's own is not, as the kernel has it.
//!
//! What differs: we are on the alternate stack where there is one, even for a handler that did not ask for it.
//!
//! Who installs a handler after us may or may not pass on to ours, and there is no way to ask. So we never take the
//! signal back; [`holder`] tells who has it, and who needs the handler refuses to go on.
//!
//! # Async-signal-safety
//!
//! The handler takes no lock, allocates nothing, makes no system call of its own and touches no thread-local:
//! it may come at any instruction, on a thread that dormouse has never seen. (What it passes on may.)
//!
//! # Safety
//!
//! The unsafe code is `sigaction` and the walk through what the kernel hands to a handler.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};

use crate::rendezvous;

/// Whose an `int3` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Ours: the thread goes on there.
    Resume(usize),
    /// It lay where one of ours has been. If it has gone meanwhile, the thread tries again what is there now.
    Late,
    /// Not ours.
    Foreign,
}

/// Asked about the `int3` at an address; must not allocate, lock or unwind.
pub type Resolver = fn(address: usize) -> Verdict;

/// The same between copies: [`FOREIGN`], [`LATE`], or where the thread goes on.
pub(crate) type SharedResolver = extern "C" fn(address: usize) -> usize;

const FOREIGN: usize = 0;
const LATE: usize = 1;

/// How many copies of dormouse can use `int3` in one process.
const MOST_COPIES: usize = 16;

/// The handler's type.
pub(crate) type Handler = unsafe extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void);

/// Who has the signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// Our handler.
    Ours,
    /// Nobody: the default action, which ends the process.
    Default,
    /// Nobody: it is ignored.
    Ignored,
    /// A handler at this address.
    Other(usize),
}

/// What `int3` is.
pub const INT3: u8 = 0xcc;

/// This copy's own.
static RESOLVER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// Those of all copies that this one leads, its own among them: filled from the front, never taken out.
static RESOLVERS: [AtomicPtr<()>; MOST_COPIES] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST_COPIES];
/// What had the signal before us: leaked, written before the handler can run.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());
/// Whether what had the signal before us was to have it once, and has had it.
static SPENT: AtomicBool = AtomicBool::new(false);

/// How many rounds of `int3`s were laid down.
static ROUND: AtomicUsize = AtomicUsize::new(0);

/// Says that the resolver knows new addresses, before the first `int3` of them is written.
pub fn begin_round() {
    (rendezvous::used().begin_trap_round)();
}

pub(crate) extern "C" fn begin_round_here() {
    // Pairs with the loads in `handle`: who meets an `int3` of this round sees the number.
    ROUND.fetch_add(1, Ordering::AcqRel);
}

/// Has `resolver` asked about every `int3` that this process runs into. Idempotent; a copy's second resolver takes
/// the place of its first. Whoever has replaced our handler meanwhile keeps the signal: ask [`holder`].
///
/// The caller has made this copy stay ([`rendezvous::stay`]): a handler may be on its way into it at any time.
pub fn install(resolver: Resolver) -> io::Result<()> {
    // Pairs with the load in `resolve`.
    RESOLVER.store(resolver as *mut (), Ordering::Release);
    match (rendezvous::used().install_trap)(resolve) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

extern "C" fn resolve(address: usize) -> usize {
    // SAFETY: only `install` stores there, a `Resolver`, before it hands this function out.
    let resolver = unsafe { std::mem::transmute::<*mut (), Resolver>(RESOLVER.load(Ordering::Acquire)) };
    match resolver(address) {
        Verdict::Resume(target) => target,
        Verdict::Late => LATE,
        Verdict::Foreign => FOREIGN,
    }
}

/// Asks all copies.
fn resolve_for_all(address: usize) -> Verdict {
    let mut verdict = Verdict::Foreign;
    for resolver in &RESOLVERS {
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

/// [`install`], by the copy that leads; an error number, or 0.
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

fn install_handler() -> io::Result<()> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if !PREVIOUS.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let previous = Box::new(present()?);
    let mut action = *previous;
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    if is_handler(&previous) {
        action.sa_flags |= previous.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART);
    } else {
        // A thread in our handler, which may be kept from running for long, is none that blocks the signal.
        action.sa_flags |= libc::SA_RESTART | libc::SA_NODEFER;
        // SAFETY: a local set.
        unsafe { libc::sigemptyset(&raw mut action.sa_mask) };
    }
    let previous = Box::into_raw(previous);
    // Before the handler can run.
    PREVIOUS.store(previous, Ordering::Release);
    // SAFETY: a whole action; the handler keeps the rules above.
    if unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()) } != 0 {
        let error = io::Error::last_os_error();
        PREVIOUS.store(std::ptr::null_mut(), Ordering::Release);
        // SAFETY: made above; no handler was installed that could have read it.
        drop(unsafe { Box::from_raw(previous) });
        return Err(error);
    }
    Ok(())
}

/// Who has the signal now.
pub fn holder() -> io::Result<Holder> {
    let present = present()?;
    Ok(match present.sa_sigaction {
        libc::SIG_DFL => Holder::Default,
        libc::SIG_IGN => Holder::Ignored,
        handler if handler == rendezvous::used().trap_handler as usize => Holder::Ours,
        handler => Holder::Other(handler),
    })
}

fn present() -> io::Result<libc::sigaction> {
    let mut present = MaybeUninit::uninit();
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

pub(crate) unsafe extern "C" fn handle(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    const RIP: usize = libc::REG_RIP as usize;
    /// What the kernel gives for `int3`; debug registers, single steps and `kill` have others.
    const SI_KERNEL: libc::c_int = 0x80;
    // SAFETY: the kernel passes valid pointers to a handler with SA_SIGINFO.
    let (code, registers) =
        unsafe { ((*info).si_code, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs) };
    if code == SI_KERNEL {
        // The processor has stepped over the one byte.
        let address = (registers[RIP] as usize).wrapping_sub(1);
        loop {
            let round = ROUND.load(Ordering::Acquire);
            match resolve_for_all(address) {
                Verdict::Resume(target) => {
                    registers[RIP] = target as i64;
                    return;
                }
                Verdict::Late => {}
                Verdict::Foreign => break,
            }
            // SAFETY: the thread has just executed the byte there.
            let byte = unsafe { std::ptr::read_volatile(address as *const u8) };
            // Keeps the second look at the round behind that at the byte.
            fence(Ordering::Acquire);
            if byte != INT3 {
                // Taken while it was there, delivered after it had gone.
                registers[RIP] = address as i64;
                return;
            }
            // An `int3` in a site that no round is at: somebody else's, unless another round has just laid it down.
            if ROUND.load(Ordering::Acquire) == round {
                break;
            }
        }
    }
    // SAFETY: what the kernel passed is passed on.
    unsafe { pass_on(signal, info, context) }
}

/// Does what would have happened without us.
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: set before the handler was installed, never freed after that.
    let previous = unsafe { &*PREVIOUS.load(Ordering::Acquire) };
    // SAFETY: the kernel's own.
    let was_sent = unsafe { (*info).si_code } <= 0;
    let is_spent = || previous.sa_flags & libc::SA_RESETHAND != 0 && SPENT.swap(true, Ordering::Relaxed);
    match previous.sa_sigaction {
        libc::SIG_IGN if was_sent => {}
        // SAFETY: as this function's caller.
        libc::SIG_DFL | libc::SIG_IGN => unsafe { end(signal, info) },
        // SAFETY: as this function's caller.
        _ if is_spent() => unsafe { end(signal, info) },
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: SA_SIGINFO says that it is such a function.
            let handler = unsafe {
                std::mem::transmute::<usize, extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void)>(
                    handler,
                )
            };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without SA_SIGINFO it is such a function.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler) };
            handler(signal);
        }
    }
}

/// Has the process end by the default action: the signal is blocked from here until the handler returns, and is then taken
/// where the thread was interrupted.
unsafe fn end(signal: libc::c_int, info: *mut libc::siginfo_t) {
    // SAFETY: plain calls; `info` is what the kernel passed, for a signal of this very thread.
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
            // A filter of system calls is in the way. The end is due all the same.
            libc::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has the handler for the whole process, so it runs in one of its own, which the next test starts.
    #[cfg(target_arch = "x86_64")]
    #[test]
    #[ignore = "run by `a_thread_in_the_handler_does_not_block_the_signal` in a process of its own"]
    fn child() {
        static STATUS: std::sync::Mutex<String> = std::sync::Mutex::new(String::new());

        fn resolve(address: usize) -> Verdict {
            // Not for a handler in earnest; this one interrupts nothing. Of this thread alone: the one that has made
            // it may be at it still, with all signals blocked.
            *STATUS.lock().unwrap() = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            Verdict::Resume(address + 1)
        }
        install(resolve).unwrap();
        // SAFETY: the handler goes on behind it.
        unsafe { std::arch::asm!("int3") };
        let status = STATUS.lock().unwrap();
        assert!(crate::masks::blocks(&status, libc::SIGTRAP) == Some(false), "{status}");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_thread_in_the_handler_does_not_block_the_signal() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "trap::tests::child"])
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}");
    }
}
