//! The metrics of locks, with the labels `group`, `line` and `kind`.

use dormouse_metrics::MetricFamily;
use dormouse_metrics::MetricKind::Counter;
use dormouse_metrics::MetricUnit::{Seconds, Things};

/// How often locks were taken.
pub static LOCK_ACQUISITIONS: MetricFamily = MetricFamily {
    name: "dormouse.lock.acquisitions",
    unit: Things("{acquisition}"),
    kind: Counter,
    help: "How often the line took a lock while locks were noted.",
};

/// How often that was not at once.
pub static LOCK_WAITS: MetricFamily = MetricFamily {
    name: "dormouse.lock.waits",
    unit: Things("{wait}"),
    kind: Counter,
    help: "How often the line waited for a lock, including waits that were given up.",
};

/// For how long.
pub static LOCK_WAIT_TIME: MetricFamily = MetricFamily {
    name: "dormouse.lock.wait",
    unit: Seconds,
    kind: Counter,
    help: "How long the line waited for locks, added up.",
};
