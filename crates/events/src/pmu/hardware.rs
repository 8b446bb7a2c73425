//! The processor's own counters: known by name, not counted yet, and the reason.

use std::path::Path;

use super::{Event, Pmu};
use crate::error::Error;

/// As perf spells them.
pub(super) const EVENTS: [Event; 6] = [
    Event::new("cycles", &Hardware, 0),
    Event::new("instructions", &Hardware, 1),
    Event::new("cache-references", &Hardware, 2),
    Event::new("cache-misses", &Hardware, 3),
    Event::new("branches", &Hardware, 4),
    Event::new("branch-misses", &Hardware, 5),
];

#[derive(Debug)]
struct Hardware;

impl Pmu for Hardware {
    fn name(&self) -> &'static str {
        "hardware"
    }

    fn read(&self, _events: &[u32], _values: &mut [u64]) {}

    fn begin(&self, events: &[u32]) -> Result<(), Error> {
        let name =
            events.first().and_then(|&event| EVENTS.get(event as usize)).map_or("", |event| event.name());
        Err(Error::Unavailable { event: name.to_owned(), reason: why_not() })
    }

    fn why_not(&self, _event: u32) -> Option<String> {
        Some(why_not())
    }
}

/// Why they are not to be had.
pub(super) fn why_not() -> String {
    // Processors with two kinds of cores have `cpu_core` and `cpu_atom` instead.
    let units = ["cpu", "cpu_core"].map(|name| Path::new("/sys/bus/event_source/devices").join(name));
    if units.iter().any(|unit| unit.exists()) {
        "there is a PMU, which this version does not read".to_owned()
    } else {
        "no PMU".to_owned()
    }
}
