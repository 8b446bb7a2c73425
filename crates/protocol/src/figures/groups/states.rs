//! Where the tasks spend their time: known while times of tasks are taken.

use super::entry::{column, task_time, time};
use super::values::GroupFigure;
use crate::figures::{Figure, FigureUnit as Unit, FigureView as View};

pub(super) const FIGURES: &[Figure<GroupFigure>] = &[
    Figure {
        help: "Time that requests waited before their tasks began. It is a lower bound where the next figure is \
               unknown or \"queued_unreceived\" is not 0.",
        columns: &[column(View::StatWaits, 66, "QUEUED", Unit::Time)],
        ..time("queued_ns", |waits| waits.queued_ns().into())
    },
    Figure {
        help: "The part of it for which received requests lay in a socket that no worker had looked at. Unknown \
               where no stream returns when it received them.",
        columns: &[column(View::StatWaits, 68, "UNSEEN", Unit::Time)],
        metric: Some(task_time("queued_unseen")),
        ..time("queued_unseen_ns", |waits| {
            waits.queue.filter(|queue| queue.received > 0).map(|queue| queue.unseen_ns).into()
        })
    },
    Figure {
        help: "The rest of it: from the wake of the poll that read a request to the begin of its task.",
        metric: Some(task_time("queued_behind")),
        ..time("queued_behind_ns", |waits| {
            waits.queue.filter(|queue| queue.requests > 0).map(|queue| queue.behind_ns).into()
        })
    },
    Figure {
        help: "Requests of which it is not known when they were received, only when a worker looked.",
        ..time("queued_unreceived", |waits| {
            waits.queue.map(|queue| queue.requests.saturating_sub(queue.received)).into()
        })
    },
    Figure { metric: Some(task_time("poll")), ..time("poll_ns", |waits| waits.poll_ns.into()) },
    Figure {
        columns: &[column(View::StatWaits, 110, "RUNNABLE", Unit::Time)],
        metric: Some(task_time("runnable")),
        ..time("runnable_ns", |waits| waits.runnable_ns.into())
    },
    Figure {
        columns: &[column(View::StatWaits, 130, "AWAITING", Unit::Time)],
        metric: Some(task_time("await")),
        ..time("await_ns", |waits| waits.await_ns.into())
    },
    Figure {
        help: "CPU time of the tasks. Unknown, like the next figure, if it is not counted.",
        columns: &[column(View::StatWaits, 70, "ON CPU", Unit::Time)],
        ..time("on_cpu_ns", |waits| waits.on_cpu_ns.into())
    },
    Figure {
        help: "Time in a poll, and not on a CPU: preempted, or blocked.",
        columns: &[column(View::StatWaits, 90, "STALLED", Unit::Time)],
        ..time("stalled_ns", |waits| waits.stalled_ns().into())
    },
    Figure {
        help: "Share of the tasks' time that was before they began.",
        columns: &[
            column(View::TopWaits, 78, "QUEUED", Unit::Percent).leaves(7),
            column(View::StatWaits, 67, "%", Unit::Percent),
            column(View::Page, 112, "queued", Unit::Share),
        ],
        ..time("queued_percent", |waits| waits.share(waits.queued_ns()))
    },
    Figure {
        help: "Share of the tasks' time that was on a CPU.",
        columns: &[
            column(View::TopWaits, 80, "ON CPU", Unit::Percent).leaves(4),
            column(View::StatWaits, 80, "%", Unit::Percent),
            column(View::Page, 80, "on CPU", Unit::Share),
        ],
        ..time("on_cpu_percent", |waits| waits.share(waits.on_cpu_ns))
    },
    Figure {
        help: "Share of the tasks' time that was stalled in a poll.",
        columns: &[
            column(View::TopWaits, 90, "STALLED", Unit::Percent).leaves(8),
            column(View::StatWaits, 100, "%", Unit::Percent),
            column(View::Page, 90, "stalled in a poll", Unit::Share),
        ],
        ..time("stalled_percent", |waits| waits.share(waits.stalled_ns()))
    },
    Figure {
        help: "Share of the tasks' time that was between a wake and its poll.",
        columns: &[
            column(View::TopWaits, 100, "RUNNABLE", Unit::Percent).leaves(9),
            column(View::StatWaits, 120, "%", Unit::Percent),
            column(View::Page, 100, "runnable", Unit::Share),
        ],
        ..time("runnable_percent", |waits| waits.share(Some(waits.runnable_ns)))
    },
    Figure {
        help: "Share of the tasks' time that was in an await.",
        columns: &[
            column(View::TopWaits, 110, "AWAITING", Unit::Percent).leaves(6),
            column(View::StatWaits, 140, "%", Unit::Percent),
            column(View::Page, 110, "awaiting", Unit::Share),
        ],
        ..time("await_percent", |waits| waits.share(Some(waits.await_ns)))
    },
];
