//! Waits: where the tasks of a group spend their time.
//!
//! # Safety
//!
//! C's promises, by their numbers in `lib.rs`.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ptr::NonNull;

use dormouse::Group;
use dormouse::waits::{GroupWaits, Histogram, Waiting, read};
use dormouse_sys::process::identity;

use crate::call::{Out, answer, contained, memory_for, owned};
use crate::error::{Code, Error, Refusal};
use crate::groups::GroupId;

/// `struct dormouse_waits`: keeps times taken, with the totals at its beginning.
#[derive(Debug)]
pub(crate) struct Taken {
    before: HashMap<u32, GroupWaits>,
    _waiting: Waiting,
    process: u64,
}

/// `struct dormouse_durations`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Durations {
    pub(crate) count: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p90_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) max_ns: u64,
    pub(crate) max_task: u64,
}

/// `struct dormouse_group_waits`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Times {
    pub(crate) size: u32,
    pub(crate) reserved: u32,
    pub(crate) poll_ns: u64,
    pub(crate) runnable_ns: u64,
    pub(crate) await_ns: u64,
    pub(crate) requests: Durations,
    pub(crate) polls: Durations,
    pub(crate) delays: Durations,
    pub(crate) awaits: Durations,
}

/// The memory of a group's times, in keys of `memory_for`: four histograms, twice.
const EACH: usize = 160;

impl From<&Histogram> for Durations {
    fn from(of: &Histogram) -> Self {
        let quantile = |share| of.quantile_ns(share).unwrap_or(0);
        Self {
            count: of.count(),
            p50_ns: quantile(0.5),
            p90_ns: quantile(0.9),
            p99_ns: quantile(0.99),
            max_ns: of.max_ns,
            max_task: of.max_task,
        }
    }
}

impl From<&GroupWaits> for Times {
    fn from(of: &GroupWaits) -> Self {
        Self {
            size: size_of::<Self>() as u32,
            reserved: 0,
            poll_ns: of.poll_ns,
            runnable_ns: of.runnable_ns,
            await_ns: of.await_ns,
            requests: Durations::from(&of.requests),
            polls: Durations::from(&of.polls),
            delays: Durations::from(&of.delays),
            awaits: Durations::from(&of.awaits),
        }
    }
}

/// Refuses if there is no memory for the times of all groups.
fn memory() -> Result<(), Refusal> {
    memory_for(EACH * Group::most())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_waits_begin(waits: *mut *mut Taken, error: *mut Error) -> Code {
    // SAFETY: promise 1 for the place, 3 for the error.
    unsafe {
        answer(error, || {
            let none = Refusal::Invalid("no place for the times: the pointer is NULL");
            let place = NonNull::new(waits).ok_or(none)?;
            memory()?;
            let waiting = Waiting::start()?;
            let before = read().into_iter().map(|of| (of.group, of)).collect();
            place.write(Box::into_raw(Box::new(Taken {
                before,
                _waiting: waiting,
                process: identity::id(),
            })));
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_waits_read(
    waits: *const Taken,
    group: GroupId,
    times: *mut Times,
    error: *mut Error,
) -> Code {
    // SAFETY: promise 4 for the handle, 3 for the times and the error.
    unsafe {
        answer(error, || {
            let taken = waits.as_ref().ok_or(Refusal::Invalid("no waits: the pointer is NULL"))?;
            let out = Some(times).filter(|times| !times.is_null()).and_then(|times| Out::new(times));
            let out = out.ok_or(Refusal::Invalid(
                "no times: the pointer is NULL, or they were not initialised by DORMOUSE_GROUP_WAITS_INIT",
            ))?;
            let group = group.group().ok_or(Refusal::Invalid("no group: it is all zeroes, or made up"))?;
            memory()?;
            // A parent's are not taken in a child, whose own sums begin anew.
            if taken.process != identity::id() {
                out.fill(&GroupWaits::default());
                return Ok(());
            }
            let now = group.read_waits();
            let since = taken.before.get(&group.id()).map(|before| now.since(before));
            out.fill(&since.unwrap_or(now));
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_waits_end(waits: *mut Taken) {
    // SAFETY: promise 4.
    contained((), || drop(unsafe { owned(waits) }));
}
