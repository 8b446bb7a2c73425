//! SIGTRAP for all copies: the leader's handler calls the resolver of each copy that sets `int3`s,
//! and the watcher of the copy whose event trapped.
//!
//! # Safety
//!
//! The unsafe code calls functions through the pointers that [`install`], [`watch`] and [`sample`]
//! have stored.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::leader::used;
use crate::debug_trap::data_of;
pub use crate::debug_trap::{Passing, PerfTrap, Watcher, cramped, unexplained};
use crate::sigtrap::{FOREIGN, LATE, present};
pub use crate::sigtrap::{INT3, Resolver, Verdict};
pub use crate::trap_types::Disposition;

/// This copy's own.
static RESOLVER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
static WATCHER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
static SAMPLER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Announces that the resolver has new addresses, before the first `int3` at one of them is
/// written.
pub fn begin_round() {
    (used().begin_trap_round)();
}

/// Has `resolver` called for every `int3` that this process runs into. Idempotent; a copy's second
/// resolver replaces its first. A handler that has replaced ours meanwhile keeps the signal: check
/// [`disposition`].
///
/// The caller must have pinned this copy ([`crate::loader::pin_self`]), because a handler may be on
/// its way into it at any time, and must hold the patch lock, so that copies come here one after
/// the other.
pub fn install(resolver: Resolver) -> io::Result<()> {
    // Pairs with the load in `resolve`.
    RESOLVER.store(resolver as *mut (), Ordering::Release);
    match (used().install_trap)(resolve) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

extern "C" fn resolve(address: usize) -> usize {
    // Pairs with the store in `install`.
    // SAFETY: only `install` stores there, a `Resolver`, before it hands this function out.
    let resolver = unsafe { std::mem::transmute::<*mut (), Resolver>(RESOLVER.load(Ordering::Acquire)) };
    match resolver(address) {
        Verdict::Resume(target) => target,
        Verdict::Late => LATE,
        Verdict::Foreign => FOREIGN,
    }
}

/// Has `watcher` called for the traps of this copy's events: those whose data begins with the 16
/// bits that this returns. The other 48 bits are the caller's. Idempotent, and with the same duties
/// of the caller as [`install`].
///
/// A hit may come after its event was closed; the watcher is called for it, too.
pub fn watch(watcher: Watcher) -> io::Result<u64> {
    // Pairs with the load in `tell`.
    WATCHER.store(watcher as *mut (), Ordering::Release);
    let mut place = 0;
    match (used().install_watcher)(tell, &mut place) {
        0 => Ok(data_of(place)),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

extern "C" fn tell(trap: &PerfTrap) {
    // Pairs with the store in `watch`.
    // SAFETY: only `watch` stores there, a `Watcher`, before it hands this function out.
    let watcher = unsafe { std::mem::transmute::<*mut (), Watcher>(WATCHER.load(Ordering::Acquire)) };
    watcher(trap);
}

/// [`watch`] for the events of profiles, with a watcher and 16 bits of their own.
pub fn sample(watcher: Watcher) -> io::Result<u64> {
    // Pairs with the load in `tell_sampler`.
    SAMPLER.store(watcher as *mut (), Ordering::Release);
    let mut place = 0;
    match (used().install_watcher)(tell_sampler, &mut place) {
        0 => Ok(data_of(place)),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

extern "C" fn tell_sampler(trap: &PerfTrap) {
    // Pairs with the store in `sample`.
    // SAFETY: only `sample` stores there, a `Watcher`, before it hands this function out.
    let watcher = unsafe { std::mem::transmute::<*mut (), Watcher>(SAMPLER.load(Ordering::Acquire)) };
    watcher(trap);
}

/// Whether this copy has installed our handler of the signal, with [`install`], [`watch`] or
/// [`sample`].
pub fn is_used() -> bool {
    [&RESOLVER, &WATCHER, &SAMPLER].into_iter().any(|of| !of.load(Ordering::Relaxed).is_null())
}

/// The present action of the signal.
pub fn disposition() -> io::Result<Disposition> {
    Ok(match present()?.sa_sigaction {
        libc::SIG_DFL => Disposition::Default,
        libc::SIG_IGN => Disposition::Ignored,
        handler if handler == used().trap_handler as usize => Disposition::Ours,
        handler => Disposition::Other(handler),
    })
}
