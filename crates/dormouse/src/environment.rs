//! `DORMOUSE_COUNT=task-clock,page-faults`: events that are counted for all groups from [`init`](crate::init) on, so that
//! totals since the start of a service need no change of its code.
//!
//! A name that is not to be had is told by `dormouse doctor`, with the names that are near it; the others are counted.
//!
//! # Locking
//!
//! One lock, which nobody waits for: who finds it taken does without. (A fork child may find it taken for ever.)

use std::num::NonZeroU64;
use std::sync::Mutex;

use dormouse_events::Event;
use dormouse_sys::{Capability, fork};

const VARIABLE: &str = "DORMOUSE_COUNT";

static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

/// What has become of what the environment asks for.
struct Kept {
    /// In which process: a fork child counts nothing until it asks.
    process: Option<NonZeroU64>,
    /// `None`: it asks for nothing.
    check: Option<Capability>,
}

/// Has counted what the environment asks for, once in a process.
pub(crate) fn count() {
    let Ok(mut kept) = KEPT.try_lock() else { return };
    let process = fork::number();
    if kept.as_ref().is_none_or(|kept| kept.process != process) {
        let names = std::env::var_os(VARIABLE).unwrap_or_default();
        *kept = Some(Kept { process, check: begin(&names.to_string_lossy()) });
    }
}

/// What became of it, if the environment asks for anything.
pub(crate) fn capability() -> Option<Capability> {
    KEPT.try_lock().ok()?.as_ref()?.check.clone()
}

/// Counts the events of these names for good.
fn begin(names: &str) -> Option<Capability> {
    let names: Vec<&str> = names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    if names.is_empty() {
        return None;
    }
    let (mut events, mut complaints) = (Vec::new(), Vec::new());
    for name in names {
        match Event::by_name(name) {
            Ok(event) => events.push(event),
            Err(why) => complaints.push(why.to_string()),
        }
    }
    if !events.is_empty() {
        match crate::group::count(&events) {
            Ok(counting) => counting.keep(),
            Err(why) => {
                events.clear();
                complaints.push(why.to_string());
            }
        }
    }
    let counted: Vec<&str> = events.into_iter().map(Event::name).collect();
    let counted = if counted.is_empty() { "nothing".to_owned() } else { counted.join(", ") };
    let detail = format!("{VARIABLE} has counted from the start: {counted}");
    Some(if complaints.is_empty() {
        Capability::ok("groups.count", detail)
    } else {
        Capability::limited("groups.count", format!("{detail}; {}", complaints.join("; ")))
            .with_fix(format!("set {VARIABLE} to names that `dormouse list` shows, with commas between them"))
    })
}
