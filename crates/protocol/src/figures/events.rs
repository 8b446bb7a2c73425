//! The metrics of events that groups count.

use dormouse_metrics::MetricFamily;
use dormouse_metrics::MetricKind::Counter;
use dormouse_metrics::MetricUnit::{self, Bytes, Things};

/// The families of the library's events, by the event's name. CPU time has a figure of its own.
pub static EVENT_FAMILIES: [(&str, MetricFamily); 14] = [
    ("alloc-count", of_event("dormouse.allocations", Things("{allocation}"), "Allocations of memory.")),
    ("alloc-bytes", of_event("dormouse.allocated", Bytes, "Memory that was allocated.")),
    ("free-bytes", of_event("dormouse.freed", Bytes, "Memory that was freed.")),
    (
        "alloc-peak",
        of_event(
            "dormouse.allocated.peak",
            Bytes,
            "Rise of the threads' high-water marks since counting began.",
        ),
    ),
    ("page-faults", of_event("dormouse.page.faults", Things("{fault}"), "Page faults.")),
    (
        "major-faults",
        of_event("dormouse.page.faults.major", Things("{fault}"), "Page faults that read a disk."),
    ),
    ("context-switches", of_event("dormouse.context.switches", Things("{switch}"), "Switches of threads.")),
    (
        "cpu-migrations",
        of_event("dormouse.cpu.migrations", Things("{migration}"), "Moves to another CPU, seen by reads."),
    ),
    (
        "cpu-migrations-exact",
        of_event("dormouse.cpu.migrations.exact", Things("{migration}"), "Moves to another CPU."),
    ),
    ("cycles", of_event("dormouse.cpu.cycles", Things("{cycle}"), "Cycles of the CPU.")),
    ("instructions", of_event("dormouse.cpu.instructions", Things("{instruction}"), "Instructions.")),
    (
        "cache-references",
        of_event("dormouse.cpu.cache.references", Things("{reference}"), "References to the cache."),
    ),
    ("cache-misses", of_event("dormouse.cpu.cache.misses", Things("{miss}"), "Misses of the cache.")),
    (
        "branch-misses",
        of_event("dormouse.cpu.branch.misses", Things("{miss}"), "Branches that were foretold wrongly."),
    ),
];

/// The family of all other events, which have the label `event`.
pub static OTHER_EVENTS: MetricFamily =
    of_event("dormouse.events", Things("{event}"), "Other events, and the program's own, by name.");

const fn of_event(name: &'static str, unit: MetricUnit, help: &'static str) -> MetricFamily {
    MetricFamily { name, help, unit, kind: Counter }
}
