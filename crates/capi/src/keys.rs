//! Keys, leases and batches.
//!
//! # Safety
//!
//! C's promises, by their numbers in `lib.rs`.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use dormouse::keys::macros::{Object, register, unregister};
use dormouse::{Batch, BatchReport, Key, Lease};

use crate::call::{Out, answer, contained, memory_for, owned, step};
use crate::error::{Code, Error, Refusal, Report};

const NO_KEY: Refusal = Refusal::Invalid(
    "no key: the pointer is NULL, or does not lead to a struct dormouse_key that DORMOUSE_KEY has defined",
);
const NO_REPORT: Refusal =
    Refusal::Invalid("the report's size is unknown: initialise it by DORMOUSE_REPORT_INIT");
const NO_BATCH: Refusal = Refusal::Invalid(
    "no batch: the pointer is NULL; dormouse_batch_begin returns NULL if there is no memory",
);

/// The key behind a pointer, if it may be one.
///
/// # Safety
///
/// NULL, or static memory that begins with a key's size.
pub(crate) unsafe fn key(key: *const Key) -> Option<&'static Key> {
    // SAFETY: aligned and not NULL, so a size is there; if the size is a key's, so is the rest.
    (!key.is_null() && key.is_aligned() && unsafe { key.cast::<u32>().read() } as usize >= size_of::<Key>())
        .then(|| unsafe { &*key })
}

/// Changes one key.
///
/// # Safety
///
/// C's promises 1, 2 and 3.
unsafe fn change(
    pointer: *const Key,
    report: *mut Report,
    error: *mut Error,
    how: impl FnOnce(&'static Key) -> Result<BatchReport, dormouse::keys::Error>,
) -> Code {
    // SAFETY: promises 1 and 2 for the key, 3 for the report and the error.
    unsafe {
        answer(error, || {
            let report = Out::new(report).ok_or(NO_REPORT)?;
            memory_for(1)?;
            report.fill(how(key(pointer).ok_or(NO_KEY)?)?);
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_register_v1(object: *const Object) {
    // SAFETY: promise 6.
    contained((), || unsafe { register(object) });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_unregister_v1(object: *const Object) {
    // SAFETY: promise 6.
    contained((), || unsafe { unregister(object) });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_is_enabled(pointer: *const Key) -> bool {
    // SAFETY: promises 1 and 2.
    unsafe { key(pointer) }.is_some_and(Key::is_enabled)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_enable(key: *const Key, report: *mut Report, error: *mut Error) -> Code {
    // SAFETY: passed on.
    unsafe { change(key, report, error, Key::enable) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_disable(key: *const Key, report: *mut Report, error: *mut Error) -> Code {
    // SAFETY: passed on.
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
    // SAFETY: promise 5 for the array of `count` keys, 1 and 2 for each of them, 1 for the place of
    // the lease, 3 for the report and the error.
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
            memory_for(keys.len())?;
            let mut of = Vec::new();
            of.try_reserve_exact(keys.len())?;
            for &pointer in keys {
                of.push(key(pointer).ok_or(NO_KEY)?);
            }
            let taken = Lease::of(of)?;
            report.fill(taken.report());
            lease.write(Box::into_raw(Box::new(taken)));
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_release(lease: *mut Lease, report: *mut Report, error: *mut Error) -> Code {
    // SAFETY: promise 4 for the lease, which `dormouse_acquire` made; 3 for the report and the
    // error.
    unsafe {
        answer(error, || {
            let report = Out::new(report).ok_or(NO_REPORT)?;
            let Some(held) = lease.as_mut() else { return Ok(()) };
            memory_for(held.keys().len())?;
            report.fill(held.release_where(|_| true)?);
            drop(Box::from_raw(lease));
            Ok(())
        })
    }
}

/// `struct dormouse_batch`: the changes in their order, or the reason why none will be made.
#[derive(Debug)]
pub(crate) struct Pending(Result<Vec<(&'static Key, bool)>, Refusal>);

impl Pending {
    fn add(&mut self, key: Option<&'static Key>, on: bool) {
        let Ok(changes) = &mut self.0 else { return };
        match key.ok_or(NO_KEY).and_then(|key| Ok((key, changes.try_reserve(1)?))) {
            Ok((key, ())) => changes.push((key, on)),
            Err(why) => self.0 = Err(why),
        }
    }

    fn apply(self) -> Result<BatchReport, Refusal> {
        let changes = self.0?;
        memory_for(changes.len())?;
        let change = |batch: Batch, (key, on)| if on { batch.enable(key) } else { batch.disable(key) };
        Ok(changes.into_iter().fold(Batch::new(), change).apply()?)
    }
}

#[unsafe(no_mangle)]
extern "C" fn dormouse_batch_begin() -> *mut Pending {
    let empty = || Box::into_raw(Box::new(Pending(Ok(Vec::new()))));
    contained(std::ptr::null_mut(), || {
        let _step = step();
        memory_for(0).map_or(std::ptr::null_mut(), |()| empty())
    })
}

/// # Safety
///
/// C's promises 1, 2 and 4.
unsafe fn add(batch: *mut Pending, pointer: *const Key, on: bool) {
    // SAFETY: promise 4 for the batch, 1 and 2 for the key.
    contained((), || unsafe {
        if let Some(batch) = batch.as_mut() {
            batch.add(key(pointer), on);
        }
    });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_batch_enable(batch: *mut Pending, key: *const Key) {
    // SAFETY: passed on.
    unsafe { add(batch, key, true) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_batch_disable(batch: *mut Pending, key: *const Key) {
    // SAFETY: passed on.
    unsafe { add(batch, key, false) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_batch_apply(
    batch: *mut Pending,
    report: *mut Report,
    error: *mut Error,
) -> Code {
    // SAFETY: promise 4 for the batch, which ends here whatever becomes of the rest; 3 for the
    // report and the error.
    unsafe {
        let batch = owned(batch);
        answer(error, move || {
            let batch = batch.ok_or(NO_BATCH)?;
            let report = Out::new(report).ok_or(NO_REPORT)?;
            report.fill(batch.apply()?);
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_batch_abandon(batch: *mut Pending) {
    // SAFETY: promise 4.
    contained((), || drop(unsafe { owned(batch) }));
}
