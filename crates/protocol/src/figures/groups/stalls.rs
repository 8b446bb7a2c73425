//! Stalled time by its causes: known while a client requests it beside times of tasks.

use dormouse_metrics::MetricFamily;
use dormouse_metrics::MetricKind::Counter;
use dormouse_metrics::MetricUnit::Seconds;

use super::entry::{column, time};
use super::values::GroupFigure;
use crate::figures::{Figure, FigureMetric, FigureUnit as Unit, FigureValue, FigureView as View};
use crate::verbs::{StallsRow, WaitsRow};

/// Stalled time, by cause.
static STALLED_TIME: MetricFamily = MetricFamily {
    name: "dormouse.stalled.time",
    unit: Seconds,
    kind: Counter,
    help: "Time for which polls of the group did not run, by cause, as far as it is known: waiting for a CPU, or \
           asleep in the kernel.",
};

/// A part of the time in which polls waited for a CPU.
static THROTTLED_TIME: MetricFamily = MetricFamily {
    name: "dormouse.stalled.throttled.time",
    unit: Seconds,
    kind: Counter,
    help: "The part of the time in which polls of the group waited for a CPU for which a CPU limit may be the \
           reason, at most.",
};

pub(super) const FIGURES: &[Figure<GroupFigure>] = &[
    Figure {
        columns: &[
            column(View::TopWaits, 91, "CPU WAIT", Unit::Time).leaves(4).if_any(),
            column(View::StatWaits, 101, "CPU WAIT", Unit::Time).if_any(),
        ],
        metric: Some(cause("cpu_wait")),
        ..time("stalled_cpu_wait_ns", |waits| stalls(waits, |of| of.cpu_wait_ns.into()))
    },
    Figure {
        columns: &[
            column(View::TopWaits, 93, "ASLEEP", Unit::Time).leaves(4).if_any(),
            column(View::StatWaits, 103, "ASLEEP", Unit::Time).if_any(),
        ],
        metric: Some(cause("asleep")),
        ..time("stalled_asleep_ns", |waits| stalls(waits, |of| of.asleep_ns.into()))
    },
    Figure {
        columns: &[
            column(View::TopWaits, 92, "THROTTLED", Unit::Time).leaves(4).if_any(),
            column(View::StatWaits, 102, "THROTTLED", Unit::Time).if_any(),
        ],
        metric: Some(FigureMetric { family: &THROTTLED_TIME, label: None }),
        ..time("stalled_throttled_ns", |waits| stalls(waits, |of| of.throttled_ns.into()))
    },
    Figure {
        help: "The system call in which polls of the group slept most, or a page fault, and its share of that sleep.",
        columns: &[
            column(View::TopWaits, 94, "MOST IN", Unit::Text).leaves(3).if_any(),
            column(View::StatWaits, 104, "MOST IN", Unit::Text).if_any(),
            column(View::Page, 95, "Stalled in", Unit::Text).leaves(1),
        ],
        json: crate::figures::FigureJson::Nowhere,
        ..time("stalled_most_in", |waits| stalls(waits, most_in))
    },
    Figure {
        help: "What polls of the group slept in, each with its time in nanoseconds.",
        ..time("stalled_within", |waits| stalls(waits, |of| FigureValue::Counts(of.within.clone())))
    },
    Figure {
        help: "The part of that sleep in which they waited for block devices. Unknown where the kernel does not \
               count it.",
        ..time("stalled_block_io_ns", |waits| stalls(waits, |of| of.block_io_ns.into()))
    },
    Figure {
        help: "Major page faults of polls that stalled, as far as they are known.",
        ..time("stalled_major_faults", |waits| stalls(waits, |of| of.major_faults.into()))
    },
];

const fn cause(cause: &'static str) -> FigureMetric {
    FigureMetric { family: &STALLED_TIME, label: Some(("cause", cause)) }
}

/// A figure of stalled time; absent if nothing is known of the group.
fn stalls(waits: &WaitsRow, of: impl FnOnce(&StallsRow) -> FigureValue) -> FigureValue {
    waits.stalls.as_deref().map_or(FigureValue::Absent, of)
}

fn most_in(of: &StallsRow) -> FigureValue {
    let Some((name, ns)) = of.most().filter(|(_, ns)| *ns > 0) else { return FigureValue::Absent };
    let all = of.within.iter().fold(0_u64, |sum, (_, ns)| sum.saturating_add(*ns));
    FigureValue::Text(format!("{name} {:.0} %", crate::figures::percent(*ns, all)))
}
