//! The environment variables that dormouse uses, read once.
//!
//! C's `getenv` must not run while another thread changes the environment, and a host that takes
//! only its own threads into account may do that at any time. So no thread of ours ever calls it:
//! the first use of dormouse takes a snapshot, on the thread of the caller (`dormouse::init()`, or
//! a mechanism that is used without it), and everything else reads the snapshot. A variable that
//! changes later has no effect.
//!
//! In a program that runs with more rights than its user has (`AT_SECURE`: set-uid, file
//! capabilities) all variables are ignored, as the C library ignores its own.
//!
//! # Safety
//!
//! The unsafe code reads one number of the auxiliary vector, and keeps the snapshot in a static.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::env;
use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::sync::OnceBox;

macro_rules! variables {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        /// The variables. An empty one counts as unset.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Variables {
            $($(#[$doc])* pub $field: Option<OsString>,)*
        }

        impl Variables {
            fn read(get: impl Fn(&'static str) -> Option<OsString>, is_secure: bool) -> Self {
                if is_secure {
                    return Self::default();
                }
                Self { $($field: get($name).filter(|value| !value.is_empty()),)* }
            }
        }
    };
}

variables! {
    /// Whether dormouse is on.
    dormouse = "DORMOUSE",
    /// The protocol by which code changes.
    keys = "DORMOUSE_KEYS",
    /// The tier by which thread CPU time is read.
    clock = "DORMOUSE_CLOCK",
    /// The events that are counted from the start on.
    count = "DORMOUSE_COUNT",
    /// The keys that are awake from the start on.
    on = "DORMOUSE_ON",
    /// Whether kernel events are tried under a seccomp filter.
    perf = "DORMOUSE_PERF",
    /// Whether times of tasks are taken from the start on.
    waits = "DORMOUSE_WAITS",
    /// Whether locks are noted from the start on.
    locks = "DORMOUSE_LOCKS",
    /// Whether the current group is published from the start on.
    publish = "DORMOUSE_PUBLISH",
    /// The name of the service, for OpenTelemetry.
    otel_service_name = "OTEL_SERVICE_NAME",
    /// Attributes of the service, for OpenTelemetry.
    otel_resource_attributes = "OTEL_RESOURCE_ATTRIBUTES",
    /// How much of a CPU dormouse may use.
    max_cpu = "DORMOUSE_MAX_CPU",
    /// The rules by which a recorder's file is written.
    triggers = "DORMOUSE_TRIGGERS",
    /// The directory of recorders' files.
    record_dir = "DORMOUSE_RECORD_DIR",
    /// The room that they may take.
    record_disk = "DORMOUSE_RECORD_DISK",
    /// The probes that the flight recorder records from the start on.
    record = "DORMOUSE_RECORD",
    /// The room that unwind tables may take.
    unwind_memory = "DORMOUSE_UNWIND_MEMORY",
    /// The directory for the directory of the socket.
    runtime_dir = "DORMOUSE_RUNTIME_DIR",
    /// Used if that is not set.
    xdg_runtime_dir = "XDG_RUNTIME_DIR",
}

/// The snapshot. The first call takes it, and must be made on a thread of the host's.
///
/// # Async-signal-safety
///
/// Except for the first call, which allocates.
pub fn variables() -> &'static Variables {
    static SNAPSHOT: Snapshot = Snapshot::new();
    // For a thread beside one that is taking the first: it does not wait, because in a forked child
    // it would for ever.
    static SECOND: OnceBox<Variables> = OnceBox::new();
    let read = || Variables::read(env::var_os, is_secure());
    SNAPSHOT.get_or_take(read).unwrap_or_else(|| SECOND.get_or_init(|| Box::new(read())))
}

/// The error message of each call that would start something in a process that [`is_off`].
pub const OFF: &str = if cfg!(dormouse_off) {
    "dormouse is off in this program: build it without --cfg dormouse_off"
} else {
    "dormouse is off in this process: unset DORMOUSE, which is `off`"
};

/// Whether the environment has turned dormouse off (`DORMOUSE=off`), or the build has
/// (`--cfg dormouse_off`).
pub fn is_off() -> bool {
    cfg!(dormouse_off) || variables().dormouse.as_ref().is_some_and(|value| value == "off")
}

/// The fault of `DORMOUSE`, with which it counts as `on`.
pub fn config_error() -> Option<String> {
    let value = variables().dormouse.as_ref().filter(|value| *value != "off" && *value != "on")?;
    let value = value.display();
    Some(format!("DORMOUSE is \"{value}\", and counts as `on`: set it to `off` or `on`, or unset it"))
}

/// Parses a number of bytes such as `64MiB`.
pub fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor = match text[digits..].trim() {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1_u64 << 30,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(factor)
}

/// In place, because a copy of dormouse that leaves with its object would leak a box.
struct Snapshot {
    state: AtomicU8,
    variables: UnsafeCell<MaybeUninit<Variables>>,
}

const NONE: u8 = 0;
const BEING_TAKEN: u8 = 1;
const TAKEN: u8 = 2;

// SAFETY: written once, by the thread that has moved the state from `NONE`, and read when it is
// `TAKEN`.
unsafe impl Sync for Snapshot {}

impl Snapshot {
    const fn new() -> Self {
        Self { state: AtomicU8::new(NONE), variables: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// `None`: another thread is taking it.
    fn get_or_take(&self, read: impl FnOnce() -> Variables) -> Option<&Variables> {
        // Pairs with the store below: the variables are written.
        match self.state.compare_exchange(NONE, BEING_TAKEN, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => {
                // SAFETY: no other thread writes, and none reads yet.
                unsafe { (*self.variables.get()).write(read()) };
                // Pairs with the exchange above.
                self.state.store(TAKEN, Ordering::Release);
            }
            Err(TAKEN) => {}
            Err(_) => return None,
        }
        // SAFETY: taken, and never written again.
        Some(unsafe { (*self.variables.get()).assume_init_ref() })
    }
}

fn is_secure() -> bool {
    // SAFETY: it reads a value that the kernel has left at the start of the process; Miri has none.
    !cfg!(miri) && unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secure_programs_have_no_variables() {
        let get = |name: &str| match name {
            "DORMOUSE_KEYS" => Some("int3".into()),
            "DORMOUSE_CLOCK" => Some(OsString::new()),
            _ => None,
        };
        let read = Variables::read(get, false);
        assert_eq!(read, Variables { keys: Some("int3".into()), ..Variables::default() });
        assert_eq!(Variables::read(get, true), Variables::default());
    }
}
