//! The processor's own counters: known by name, not counted yet, and the reason.

use std::path::Path;

/// Their names, as perf spells them.
pub(super) const NAMES: &[&str] =
    &["cycles", "instructions", "cache-references", "cache-misses", "branches", "branch-misses"];

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
