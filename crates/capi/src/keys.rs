//! Keys, leases and batches.
//!
//! # Safety
//!
//! As the crate's; each function trusts its arguments as its declaration in the header says.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use dormouse::keys::macros::{Object, register, unregister};
use dormouse::{Batch, BatchReport, Key, Lease};

use crate::error::{Code, Error, Out, Refusal, Report, answer, contained};

const NO_KEY: Refusal = Refusal::Invalid(
    "no key: the pointer is NULL, or does not lead to a struct dormouse_key that DORMOUSE_KEY has defined",
);
const NO_REPORT: Refusal =
    Refusal::Invalid("the report's size is unknown: initialise it by DORMOUSE_REPORT_INIT");
const NO_BATCH: Refusal = Refusal::Invalid("no batch: the pointer is NULL");

/// The key behind a pointer, if it may be one.
///
/// # Safety
///
/// NULL, or static memory that begins with a key's size.
pub(crate) unsafe fn key(key: *const Key) -> Option<&'static Key> {
    // SAFETY: aligned and not NULL, so a size is there; a key if that is a key's.
    (!key.is_null() && key.is_aligned() && unsafe { key.cast::<u32>().read() } as usize >= size_of::<Key>())
        .then(|| unsafe { &*key })
}

/// Changes one key.
unsafe fn change(
    pointer: *const Key,
    report: *mut Report,
    error: *mut Error,
    how: impl FnOnce(&'static Key) -> Result<BatchReport, dormouse::keys::Error>,
) -> Code {
    // SAFETY: what C has promised of the three pointers.
    unsafe {
        answer(error, || {
            let report = Out::new(report).ok_or(NO_REPORT)?;
            report.fill(how(key(pointer).ok_or(NO_KEY)?)?);
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_register_v1(object: *const Object) {
    // SAFETY: C's promise: laid down by the header's macros, there until it is unregistered.
    unsafe { register(object) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_unregister_v1(object: *const Object) {
    // SAFETY: as above.
    unsafe { unregister(object) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_is_enabled(pointer: *const Key) -> bool {
    // SAFETY: C's promise.
    unsafe { key(pointer) }.is_some_and(Key::is_enabled)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_enable(key: *const Key, report: *mut Report, error: *mut Error) -> Code {
    // SAFETY: C's promises, passed on.
    unsafe { change(key, report, error, Key::enable) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_disable(key: *const Key, report: *mut Report, error: *mut Error) -> Code {
    // SAFETY: C's promises, passed on.
    unsafe { change(key, report, error, Key::disable) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_acquire(
    keys: *const *const Key,
    count: usize,
    lease: *mut *mut Lease,
    report: *mut Report,
    error: *mut Error,
) -> Code {
    // SAFETY: C's promises: `count` pointers to keys, and room for one to a lease.
    unsafe {
        answer(error, || {
            let report = Out::new(report).ok_or(NO_REPORT)?;
            let lease =
                NonNull::new(lease).ok_or(Refusal::Invalid("no place for the lease: the pointer is NULL"))?;
            let keys = match count {
                0 => &[],
                _ if keys.is_null() => return Err(NO_KEY),
                _ => std::slice::from_raw_parts(keys, count),
            };
            let keys: Option<Vec<_>> = keys.iter().map(|&pointer| key(pointer)).collect();
            let taken = Lease::of(keys.ok_or(NO_KEY)?)?;
            report.fill(taken.report());
            lease.write(Box::into_raw(Box::new(taken)));
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_release(lease: *mut Lease, report: *mut Report, error: *mut Error) -> Code {
    // SAFETY: C's promise: NULL, or a lease that `dormouse_acquire` made and that has not ended.
    unsafe {
        answer(error, || {
            let report = Out::new(report).ok_or(NO_REPORT)?;
            let Some(held) = lease.as_mut() else { return Ok(()) };
            report.fill(held.release_where(|_| true)?);
            drop(Box::from_raw(lease));
            Ok(())
        })
    }
}

/// `struct dormouse_batch`.
#[derive(Debug)]
pub(crate) struct Pending {
    batch: Batch,
    /// Something that is no key was added.
    invalid: bool,
}

impl Pending {
    fn add(&mut self, key: Option<&'static Key>, change: fn(Batch, &'static Key) -> Batch) {
        match key {
            Some(key) => self.batch = change(std::mem::take(&mut self.batch), key),
            None => self.invalid = true,
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn dormouse_batch_begin() -> *mut Pending {
    Box::into_raw(Box::new(Pending { batch: Batch::new(), invalid: false }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_batch_enable(batch: *mut Pending, pointer: *const Key) {
    // SAFETY: C's promises of a batch and a key.
    contained((), || unsafe {
        if let Some(batch) = batch.as_mut() {
            batch.add(key(pointer), Batch::enable);
        }
    });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_batch_disable(batch: *mut Pending, pointer: *const Key) {
    // SAFETY: C's promises of a batch and a key.
    contained((), || unsafe {
        if let Some(batch) = batch.as_mut() {
            batch.add(key(pointer), Batch::disable);
        }
    });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_batch_apply(
    batch: *mut Pending,
    report: *mut Report,
    error: *mut Error,
) -> Code {
    // SAFETY: C's promise: NULL, or a batch that `dormouse_batch_begin` made and that has not ended.
    let batch = unsafe { owned(batch) };
    // SAFETY: C's promises, passed on.
    unsafe {
        answer(error, || {
            let report = Out::new(report).ok_or(NO_REPORT)?;
            let batch = batch.ok_or(NO_BATCH)?;
            if batch.invalid {
                return Err(NO_KEY);
            }
            report.fill(batch.batch.apply()?);
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_batch_abandon(batch: *mut Pending) {
    // SAFETY: C's promise: NULL, or a batch that `dormouse_batch_begin` made and that has not ended.
    contained((), || drop(unsafe { owned(batch) }));
}

/// Takes back what C was given.
///
/// # Safety
///
/// NULL, or from `Box::into_raw`, and given back once.
pub(crate) unsafe fn owned<T>(pointer: *mut T) -> Option<Box<T>> {
    // SAFETY: the caller's promise.
    (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) })
}
