//! The dormouse in this program, if there is one: a table of functions that it installs once.
//!
//! # Safety
//!
//! 1. [`HOST`] is null or a `&'static Host`, and changes once.
#![allow(unsafe_code)]

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::Probe;
use crate::field::ProbeValue;

static HOST: AtomicPtr<Host> = AtomicPtr::new(ptr::null_mut());

/// The functions of a dormouse, for dormouse itself. Later versions add functions by methods, so
/// that an older dormouse still makes one.
#[derive(Debug)]
pub struct Host {
    /// Name and version.
    name: &'static str,
    /// Records a hit of an awake probe.
    pub(crate) record: fn(&'static Probe, &[ProbeValue<'_>]),
    pub(crate) groups: Groups,
}

/// How work is charged to groups. A group is a number, which is not 0, and so is a task.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(crate) find: fn(&str) -> u32,
    pub(crate) begin: fn(u32) -> u64,
    pub(crate) enter: fn(u32, u64) -> Option<u64>,
    pub(crate) leave: fn(u32, u64, u64),
    pub(crate) end: fn(u32, u64),
}

impl Host {
    /// A dormouse of that name and version, which records probes by `record`.
    pub const fn new(name: &'static str, record: fn(&'static Probe, &[ProbeValue<'_>])) -> Self {
        let groups =
            Groups { find: |_| 0, begin: |_| 0, enter: |_, _| None, leave: |_, _, _| (), end: |_, _| () };
        Self { name, record, groups }
    }

    /// Name and version.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Adds groups to the host: `find` returns the number of a name, `begin` and `end` bound a
    /// task, and `enter` returns a place on the thread's stack of tasks, which `leave` gets back.
    #[must_use]
    pub const fn with_groups(
        self,
        find: fn(&str) -> u32,
        begin: fn(u32) -> u64,
        enter: fn(u32, u64) -> Option<u64>,
        leave: fn(u32, u64, u64),
        end: fn(u32, u64),
    ) -> Self {
        Self { groups: Groups { find, begin, enter, leave, end }, ..self }
    }
}

/// Installs the dormouse of this program.
///
/// # Errors
///
/// If another one was first, its name and version.
pub fn set_host(host: &'static Host) -> Result<(), &'static str> {
    let own = ptr::from_ref(host).cast_mut();
    // Pairs with the load in `host`.
    match HOST.compare_exchange(ptr::null_mut(), own, Ordering::Release, Ordering::Acquire) {
        Err(first) if first != own => {
            // SAFETY: invariant 1.
            Err(unsafe { (*first).name })
        }
        _ => Ok(()),
    }
}

#[inline]
pub(crate) fn host() -> Option<&'static Host> {
    // Pairs with the exchange in `set_host`. SAFETY: invariant 1.
    unsafe { HOST.load(Ordering::Acquire).as_ref() }
}
