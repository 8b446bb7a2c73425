//! The figures of a thread.

use dormouse_protocol::figures::{
    Figure, FigureColumn, FigureJson as Json, FigureSums as Sums, FigureUnit as Unit, FigureValue,
    FigureView as View, percent,
};

use crate::sample::totals::{Thread, Usage};

/// A thread over some time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThreadSpan<'a> {
    /// Since the reader began.
    pub(crate) total: &'a Thread,
    /// In the last interval.
    pub(crate) recent: &'a Thread,
    pub(crate) has_ended: bool,
    pub(crate) interval_ns: u64,
}

pub(crate) type ThreadFigure = fn(&ThreadSpan<'_>) -> FigureValue;

/// The figures of a thread.
pub(crate) static THREAD_FIGURES: [Figure<ThreadFigure>; 16] = [
    Figure {
        help: "The number of the thread.",
        json: Json::Everywhere,
        columns: &[
            column(View::TopThreads, 10, "TID", Unit::Tid).leaves(101),
            column(View::StatThreads, 10, "TID", Unit::Tid),
        ],
        ..value("tid", |thread| u64::from(thread.total.tid).into())
    },
    Figure {
        help: "The number of the thread in its own namespace, if that is another one.",
        json: Json::Everywhere,
        ..value("inner_tid", |ThreadSpan { total, .. }| match total.inner_tid {
            inner if inner == total.tid => FigureValue::Absent,
            inner => u64::from(inner).into(),
        })
    },
    Figure {
        help: "The name of the thread.",
        json: Json::Everywhere,
        columns: &[
            column(View::TopThreads, 0, "THREAD", Unit::Name),
            column(View::StatThreads, 0, "THREAD", Unit::Name),
        ],
        ..value("name", |thread| FigureValue::Text(thread.total.name.clone()))
    },
    Figure {
        help: "Whether the thread has ended.",
        json: Json::Stat,
        ..value("ended", |thread| FigureValue::Flag(thread.has_ended))
    },
    Figure {
        help: "CPU time, of one CPU.",
        json: Json::Everywhere,
        of_sums: Some(Sums::CpuPercent),
        columns: &[
            column(View::TopThreads, 20, "CPU %", Unit::Percent).leaves(102).sorts(),
            column(View::StatThreads, 30, "CPU %", Unit::Percent),
        ],
        ..value("cpu_percent", |thread| percent(thread.recent.cpu_ns, thread.interval_ns).into())
    },
    Figure {
        help: "CPU time of the thread.",
        json: Json::Everywhere,
        of_sums: Some(Sums::CpuNs),
        columns: &[
            column(View::TopThreads, 40, "CPU s", Unit::Seconds).leaves(1),
            column(View::StatThreads, 20, "CPU ms", Unit::Ms),
        ],
        ..value("cpu_ns", |thread| thread.total.cpu_ns.into())
    },
    Figure {
        help: "Time runnable, waiting for a CPU, of the interval.",
        json: Json::Everywhere,
        columns: &[
            column(View::TopThreads, 30, "RUNNABLE %", Unit::Percent).leaves(2),
            column(View::StatThreads, 50, "%", Unit::Percent),
        ],
        ..value("runnable_percent", |thread| {
            thread.recent.runnable_ns.map(|ns| percent(ns, thread.interval_ns)).into()
        })
    },
    Figure {
        help: "Time for which the thread was runnable and waited for a CPU.",
        json: Json::Everywhere,
        columns: &[column(View::StatThreads, 40, "RUNNABLE ms", Unit::Ms)],
        ..value("runnable_ns", |thread| thread.total.runnable_ns.into())
    },
    Figure {
        help: "CPU time in the program's own code.",
        json: Json::Stat,
        columns: &[column(View::StatThreads, 60, "USER ms", Unit::Ms)],
        ..value("user_ns", |thread| thread.usage(|usage| usage.user_ns))
    },
    Figure {
        help: "CPU time in the kernel.",
        json: Json::Stat,
        columns: &[column(View::StatThreads, 70, "KERNEL ms", Unit::Ms)],
        ..value("system_ns", |thread| thread.usage(|usage| usage.system_ns))
    },
    Figure {
        help: "How often the thread gave up its CPU, to wait for something.",
        json: Json::Stat,
        ..value("voluntary_switches", |thread| thread.usage(|of| of.voluntary_switches))
    },
    Figure {
        help: "How often the kernel took the CPU from the thread.",
        json: Json::Stat,
        columns: &[column(View::StatThreads, 90, "INVOLUNTARY", Unit::Whole)],
        ..value("involuntary_switches", |thread| thread.usage(|usage| usage.involuntary_switches))
    },
    Figure {
        help: "Page faults that read nothing from a disk.",
        json: Json::Stat,
        ..value("minor_faults", |thread| thread.usage(|usage| usage.minor_faults))
    },
    Figure {
        help: "Page faults that waited for a disk.",
        json: Json::Stat,
        ..value("major_faults", |thread| thread.usage(|usage| usage.major_faults))
    },
    Figure {
        columns: &[column(View::StatThreads, 80, "SWITCHES", Unit::Whole)],
        ..value("switches", |thread| thread.usage(Usage::switches))
    },
    Figure {
        columns: &[column(View::StatThreads, 100, "FAULTS", Unit::Whole)],
        ..value("faults", |thread| thread.usage(Usage::faults))
    },
];

const fn column(view: View, place: u8, title: &'static str, unit: Unit) -> FigureColumn {
    FigureColumn::new(view, place, title, unit)
}

const fn value(key: &'static str, of: ThreadFigure) -> Figure<ThreadFigure> {
    Figure::new(key, of)
}

impl ThreadSpan<'_> {
    /// A part of what the kernel shows, if it shows any.
    fn usage(&self, of: impl Fn(&Usage) -> u64) -> FigureValue {
        self.total.usage.as_ref().map_or(FigureValue::Absent, |usage| of(usage).into())
    }
}
