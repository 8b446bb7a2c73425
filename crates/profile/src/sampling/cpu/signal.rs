//! The signal by which samples are taken: SIGURG, or a real-time signal, if the host does not use
//! it.
//!
//! It is chosen when the first profile begins, among those whose action is the default and which
//! the first thread does not block (a signal that a program waits for by `sigwait` is blocked
//! everywhere). Our handler stays for good, because a signal may come late.
//!
//! SIGURG comes first, because its default action is to ignore it: if the host resets the actions
//! of all its signals during a profile, the next sample is lost, and the process lives. The default
//! action of a real-time signal ends the process.
//!
//! A runtime may install one handler for all signals, as Go's does, to pass any of them on to the
//! program. So where no signal is free and most real-time signals have the same handler, that
//! handler serves none of them in particular: we take one of them, and pass on what is not our
//! timers'.
//!
//! A signal that does not come from a timer of ours goes to the action that was there before; if
//! there was none, it is ignored. If another thread of the host sets an action at the same moment,
//! that one is used; signals that arrive in between go to the action that was read first.
//!
//! If the host sets another action later, that one gets our signals until the sampler notices
//! ([`is_ours`]). It looks each tenth of a second, and before each timer is made. Then the profile
//! ends with a note of that, and the next one chooses another signal.
//!
//! # Async-signal-safety
//!
//! The same as [`passing`].
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
use dormouse_sys::passing::{self, Handler, SignalFrame};
use dormouse_sys::signals::{all_but_faults, is_of_a_sampler};

/// The kernel's signals.
const SIGNALS: usize = 65;

/// The signal; 0 before the first profile.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// By signal, the actions before ours: leaked; null: none.
static PREVIOUS: [AtomicPtr<libc::sigaction>; SIGNALS] = [const { AtomicPtr::new(ptr::null_mut()) }; SIGNALS];

/// The signal; 0 before the first profile.
pub(super) fn number() -> libc::c_int {
    SIGNAL.load(Ordering::Relaxed)
}

/// The signals that can be taken, with their actions: SIGURG and real-time signals whose action is
/// the default (but for the first and the last ones, which programs like), else the real-time
/// signals of a runtime that has taken most with one handler.
pub(super) fn free() -> Vec<(libc::c_int, libc::sigaction)> {
    let with_action = |signal| Some((signal, action(signal).ok()?));
    let all: Vec<_> = (libc::SIGRTMIN() + 1..libc::SIGRTMAX() - 1).rev().filter_map(with_action).collect();
    let has = |handler| move |(_, there): &(_, libc::sigaction)| there.sa_sigaction == handler;
    let with = |handler| all.iter().copied().filter(has(handler)).collect::<Vec<_>>();
    let mut free = with(libc::SIG_DFL);
    free.splice(0..0, with_action(libc::SIGURG).filter(has(libc::SIG_DFL)));
    if !free.is_empty() {
        return free;
    }
    let mut handlers = all.iter().map(|(_, there)| there.sa_sigaction);
    let is_of_most = |handler: &usize| *handler != libc::SIG_IGN && 2 * with(*handler).len() > all.len();
    handlers.find(is_of_most).map(with).unwrap_or_default()
}

/// Makes sure that there is a signal with this handler.
pub(super) fn take(handler: Handler) -> io::Result<()> {
    if is_ours(handler) {
        return Ok(());
    }
    // The handler stays.
    loader::pin_self().map_err(io::Error::other)?;
    let blocked = dormouse_sys::masks::of_first_thread().unwrap_or(0);
    let free = free();
    let is_open = |(signal, _): &&(libc::c_int, _)| blocked & (1 << (signal - 1)) == 0;
    let Some(&(signal, seen)) = free.iter().find(is_open).or(free.first()) else {
        return Err(io::Error::other("SIGURG and all real-time signals are in use"));
    };
    let ours = our_action(handler);
    pass_on_to(signal, seen);
    let replaced = exchange(signal, Some(&ours))?;
    if ![seen.sa_sigaction, ours.sa_sigaction].contains(&replaced.sa_sigaction) {
        pass_on_to(signal, replaced);
    }
    is_of_a_sampler(signal);
    SIGNAL.store(signal, Ordering::Relaxed);
    Ok(())
}

/// Makes an action the one that a signal is passed on to.
fn pass_on_to(signal: libc::c_int, action: libc::sigaction) {
    // Pairs with the load in `pass_on`.
    PREVIOUS[signal as usize].store(Box::into_raw(Box::new(action)), Ordering::Release);
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
    frame: *mut SignalFrame,
) -> usize {
    let previous = PREVIOUS.get(signal as usize).map_or(ptr::null_mut(), |previous| {
        // Pairs with the store in `pass_on_to`.
        previous.load(Ordering::Acquire)
    });
    // SAFETY: null, or leaked by `pass_on_to`.
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
                // Two signals cannot be blocked.
                let is_open = SYNCHRONOUS.contains(&signal) && signal != libc::SIGTRAP
                    || [libc::SIGKILL, libc::SIGSTOP].contains(&signal);
                assert_eq!(blocked & (1 << (signal - 1)) == 0, is_open, "{signal}");
            }
        });
    }
    /// The signals that the runtime's handler got, and a sum of their values.
    static CAUGHT: AtomicI32 = AtomicI32::new(0);

    unsafe extern "C" fn catch(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
        // SAFETY: what the kernel passes to a handler with SA_SIGINFO.
        CAUGHT.fetch_add(unsafe { (*info).si_value().sival_ptr.addr() } as i32, Ordering::Relaxed);
    }

    #[test]
    fn a_runtime_that_takes_all_keeps_its_signals() {
        dormouse_testkit::in_child(|| {
            let handler: unsafe extern "C" fn(_, _, _) = catch;
            let mut theirs = our_action(super::super::handler::handle);
            theirs.sa_sigaction = handler as usize;
            theirs.sa_sigaction = handler as usize;
            exchange(libc::SIGURG, Some(&theirs)).unwrap();
            // As many handlers as signals: none is common to most.
            for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
                theirs.sa_sigaction = handler as usize + signal as usize;
                exchange(signal, Some(&theirs)).unwrap();
            }
            let refused = take(super::super::handler::handle).unwrap_err();
            assert!(refused.to_string().contains("in use"), "{refused}");
            theirs.sa_sigaction = handler as usize;
            for signal in libc::SIGRTMIN() + 3..=libc::SIGRTMAX() {
                exchange(signal, Some(&theirs)).unwrap();
            }
            take(super::super::handler::handle).unwrap();
            assert!(is_ours(super::super::handler::handle));
            for sent in [3, 4] {
                let value = libc::sigval { sival_ptr: ptr::without_provenance_mut(sent) };
                // SAFETY: to this process, whose threads block nothing.
                assert_eq!(unsafe { libc::sigqueue(libc::getpid(), number(), value) }, 0);
                while CAUGHT.load(Ordering::Relaxed) < if sent == 3 { 3 } else { 7 } {
                    std::thread::yield_now();
                }
            }
        });
    }
}
