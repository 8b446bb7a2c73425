//! The signal by which samples are taken: a real-time signal that nobody uses.
//!
//! It is chosen when the first profile begins, among those whose action is the default and which
//! the first thread does not block (a signal that a program waits for by `sigwait` is blocked
//! everywhere). Our handler stays for good: a signal may come late, and the default action of a
//! real-time signal ends the process.
//!
//! A signal that is not a timer's of ours goes to the action that was there before, should another
//! thread of the host have set one in the same moment; else it is ignored.
//!
//! If the host sets another handler later, that one gets our signals until the sampler notices
//! ([`is_ours`]): the profile ends then and says so, and the next one chooses another signal.
//!
//! # Async-signal-safety
//!
//! That of [`passing`].
//!
//! # Safety
//!
//! The unsafe code is `sigaction`.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use dormouse_sys::loader;
use dormouse_sys::passing::{self, Frame, Handler};
use dormouse_sys::signals::{all_but_faults, is_of_a_sampler};

/// The kernel's signals.
const SIGNALS: usize = 65;

/// The signal; 0 before the first profile.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// By signal, the actions that came between our choice and our handler: leaked; null: none.
static PREVIOUS: [AtomicPtr<libc::sigaction>; SIGNALS] = [const { AtomicPtr::new(ptr::null_mut()) }; SIGNALS];

/// The signal; 0 before the first profile.
pub(super) fn number() -> libc::c_int {
    SIGNAL.load(Ordering::Relaxed)
}

/// The real-time signals whose action is the default, but for the first and the last ones, which
/// programs like.
pub(super) fn free() -> impl Iterator<Item = libc::c_int> {
    let all = (libc::SIGRTMIN() + 1..libc::SIGRTMAX() - 1).rev();
    all.filter(|&signal| action(signal).is_ok_and(|there| there.sa_sigaction == libc::SIG_DFL))
}

/// Makes sure that there is a signal with this handler.
pub(super) fn take(handler: Handler) -> io::Result<()> {
    if is_ours(handler) {
        return Ok(());
    }
    // The handler stays.
    loader::pin_self().map_err(io::Error::other)?;
    let blocked = dormouse_sys::masks::of_first_thread().unwrap_or(0);
    let is_blocked = |signal: &libc::c_int| blocked & (1 << (signal - 1)) != 0;
    let signal = free().find(|signal| !is_blocked(signal)).or_else(|| free().next());
    let Some(signal) = signal else {
        return Err(io::Error::other("all real-time signals are in use"));
    };
    let ours = our_action(handler);
    let replaced = exchange(signal, Some(&ours))?;
    if replaced.sa_sigaction != libc::SIG_DFL && replaced.sa_sigaction != ours.sa_sigaction {
        // Pairs with the load in `pass_on`. In between a signal of the host's is lost.
        PREVIOUS[signal as usize].store(Box::into_raw(Box::new(replaced)), Ordering::Release);
    }
    is_of_a_sampler(signal);
    SIGNAL.store(signal, Ordering::Relaxed);
    Ok(())
}

/// Whether the signal still has this handler.
pub(super) fn is_ours(handler: Handler) -> bool {
    let signal = number();
    signal != 0 && action(signal).is_ok_and(|there| there.sa_sigaction == handler as usize)
}

/// Does what the signal's earlier action would have done, if that was a handler: where ours goes
/// on, or 0.
///
/// # Safety
///
/// The arguments are those of a function that [`entry!`](dormouse_sys::entry) calls.
pub(super) unsafe fn pass_on(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
    frame: *mut Frame,
) -> usize {
    let previous = PREVIOUS.get(signal as usize).map_or(ptr::null_mut(), |previous| {
        // Pairs with the store in `take`.
        previous.load(Ordering::Acquire)
    });
    // SAFETY: null, or leaked by `take`.
    match unsafe { previous.as_ref() } {
        Some(previous) if ![libc::SIG_DFL, libc::SIG_IGN].contains(&previous.sa_sigaction) => {
            // SAFETY: as this function's caller.
            unsafe { passing::pass_on(previous, signal, info, context, frame) }
        }
        _ => 0,
    }
}

/// While it runs, no handler of the host's may come and leave it by a jump: a record would stay
/// half written.
fn our_action(handler: Handler) -> libc::sigaction {
    // SAFETY: plain numbers, for which zero is a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    action.sa_mask = all_but_faults();
    action
}

fn action(signal: libc::c_int) -> io::Result<libc::sigaction> {
    exchange(signal, None)
}

/// Sets an action, if there is one; gives the one that was there.
fn exchange(signal: libc::c_int, action: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut before = MaybeUninit::zeroed();
    let action = action.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: null or a whole action, whose handler keeps the rules above; a fresh place.
    unsafe {
        if libc::sigaction(signal, action, before.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(before.assume_init())
    }
}

#[cfg(test)]
mod tests {
    use dormouse_sys::signals::SYNCHRONOUS;

    use super::*;

    #[test]
    fn the_handler_blocks_what_unwinds() {
        dormouse_testkit::in_child(|| {
            let mut kernels = [0_u64; 4];
            take(super::super::handler::handle).unwrap();
            // SAFETY: the kernel's own action, of four words of which the last is the set.
            let asked = unsafe {
                let (none, size) = (ptr::null::<u64>(), size_of::<u64>());
                libc::syscall(libc::SYS_rt_sigaction, number(), none, &raw mut kernels, size)
            };
            assert_eq!(asked, 0);
            let blocked = kernels[3];
            for signal in 1..65 {
                // The kernel lets nobody block two.
                let is_open = SYNCHRONOUS.contains(&signal) && signal != libc::SIGTRAP
                    || [libc::SIGKILL, libc::SIGSTOP].contains(&signal);
                assert_eq!(blocked & (1 << (signal - 1)) == 0, is_open, "{signal}");
            }
        });
    }
}
