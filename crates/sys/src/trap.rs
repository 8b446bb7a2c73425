//! Breakpoint instructions of our own: who resumes a thread that ran into one.
//!
//! One handler for SIGTRAP, installed at the first use. A trap at an address that the resolver knows goes on
//! where the resolver says; a trap whose `int3` has gone meanwhile is tried again; everything else is
//! passed on to whoever had the signal before.
//!
//! # Async-signal-safety
//!
//! The handler takes no lock, allocates nothing, makes no system call of its own and touches no thread-local:
//! it may come at any instruction, on a thread that dormouse has never seen.
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
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::rendezvous;

/// Where a thread that ran into the `int3` at an address goes on; `None`: not ours.
pub type Resolver = fn(address: usize) -> Option<usize>;

/// The same for a resolver in another copy of dormouse (see [`crate::rendezvous`]); 0: not its.
pub(crate) type ForeignResolver = extern "C" fn(address: usize) -> usize;

/// What `int3` is.
pub const INT3: u8 = 0xcc;

static RESOLVER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// What had the signal before us: leaked, written before the handler can run.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// How many rounds of `int3`s were laid down.
static ROUND: AtomicUsize = AtomicUsize::new(0);

/// Says that the resolver knows new addresses, before the first `int3` of them is written.
pub fn begin_round() {
    match rendezvous::followed() {
        None => begin_round_for_another(),
        Some(leader) => (leader.begin_trap_round)(),
    }
}

/// [`begin_round`], for a copy that this one leads.
pub(crate) extern "C" fn begin_round_for_another() {
    // Pairs with the loads in `handle`: who meets an `int3` of this round sees the number.
    ROUND.fetch_add(1, Ordering::AcqRel);
}

/// Has `resolver` asked about every `int3` that this process runs into. Idempotent; a second resolver takes
/// the place of the first, which must know no address then. The caller has made this copy stay
/// ([`rendezvous::stay`]): a handler may be on its way into it at any time.
pub fn install(resolver: Resolver) -> io::Result<()> {
    static OWN: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

    extern "C" fn own(address: usize) -> usize {
        // SAFETY: only stored below, a `Resolver`, before this function is installed.
        let resolver = unsafe { std::mem::transmute::<*mut (), Resolver>(OWN.load(Ordering::Acquire)) };
        resolver(address).unwrap_or(0)
    }

    let Some(leader) = rendezvous::followed() else { return install_here(resolver) };
    // Pairs with the load in `own`.
    OWN.store(resolver as *mut (), Ordering::Release);
    match (leader.install_trap)(own) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// [`install`], for a copy that this one leads; an error number, or 0.
pub(crate) extern "C" fn install_for_another(resolver: ForeignResolver) -> libc::c_int {
    static FOREIGN: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

    fn foreign(address: usize) -> Option<usize> {
        // SAFETY: only stored below, a `ForeignResolver` of an object that stays.
        let resolver =
            unsafe { std::mem::transmute::<*mut (), ForeignResolver>(FOREIGN.load(Ordering::Acquire)) };
        Some(resolver(address)).filter(|&target| target != 0)
    }

    // Pairs with the load in `foreign`.
    FOREIGN.store(resolver as *mut (), Ordering::Release);
    install_here(foreign).err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EINVAL))
}

fn install_here(resolver: Resolver) -> io::Result<()> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    // Pairs with the load in `handle`.
    RESOLVER.store(resolver as *mut (), Ordering::Release);
    if !PREVIOUS.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    // SAFETY: reads the present action into a fresh place, which is then published before the handler is
    // installed.
    unsafe {
        let mut previous = MaybeUninit::uninit();
        if libc::sigaction(libc::SIGTRAP, std::ptr::null(), previous.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let previous = Box::into_raw(Box::new(previous.assume_init()));
        PREVIOUS.store(previous, Ordering::Release);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        if libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()) != 0 {
            let error = io::Error::last_os_error();
            PREVIOUS.store(std::ptr::null_mut(), Ordering::Release);
            drop(Box::from_raw(previous));
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
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
            // After the round: who sees a round finds the resolver that knows it.
            let resolver = RESOLVER.load(Ordering::Acquire);
            if !resolver.is_null() {
                // SAFETY: only `install` stores there, a `Resolver`.
                let resolver = unsafe { std::mem::transmute::<*mut (), Resolver>(resolver) };
                if let Some(target) = resolver(address) {
                    registers[RIP] = target as i64;
                    return;
                }
            }
            // SAFETY: the thread has just executed the byte there.
            if unsafe { std::ptr::read_volatile(address as *const u8) } != INT3 {
                // Taken while it was there, delivered after it had gone.
                registers[RIP] = address as i64;
                return;
            }
            // An `int3` that is not in the table: somebody else's, unless another round has just laid it down.
            if ROUND.load(Ordering::Acquire) == round {
                break;
            }
        }
    }
    // SAFETY: what the kernel passed is passed on.
    unsafe { pass_on(signal, info, context) }
}

/// Does what would have happened without us.
#[cfg(target_arch = "x86_64")]
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: set before the handler was installed, never freed after that.
    let previous = unsafe { &*PREVIOUS.load(Ordering::Acquire) };
    match previous.sa_sigaction {
        // The kernel does not let a thread ignore a trap of its own either.
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the default action ends the process, as it would have without us.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
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

/// A thread that blocks SIGTRAP: the kernel kills the process if it runs into an `int3`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocking {
    /// Its id.
    pub tid: u32,
    /// Its name.
    pub name: String,
}

/// The threads of this process that block SIGTRAP now.
///
/// # Cost
///
/// Reads a file of `/proc` for each thread.
pub fn blocking_threads() -> io::Result<Vec<Blocking>> {
    let mut blocking = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        let path = entry?.path();
        // A thread that has ended meanwhile blocks nothing.
        let Ok(status) = std::fs::read_to_string(path.join("status")) else { continue };
        let Some(tid) = path.file_name().and_then(|n| n.to_str()?.parse().ok()) else { continue };
        if blocks(&status, libc::SIGTRAP) {
            let name = field(&status, "Name:").unwrap_or_default().to_owned();
            blocking.push(Blocking { tid, name });
        }
    }
    Ok(blocking)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn blocks(status: &str, signal: libc::c_int) -> bool {
    field(status, "SigBlk:")
        .and_then(|mask| u64::from_str_radix(mask, 16).ok())
        .is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_a_status_file_is_read() {
        let status = |mask: &str| format!("Name:\ttea\nSigPnd:\t0000000000000000\nSigBlk:\t{mask}\n");
        assert!(blocks(&status("0000000000000010"), libc::SIGTRAP));
        assert!(blocks(&status("fffffffe7ffbfeff"), libc::SIGTRAP));
        assert!(!blocks(&status("ffffffffffffffef"), libc::SIGTRAP));
        assert!(!blocks("", libc::SIGTRAP));
    }
}
