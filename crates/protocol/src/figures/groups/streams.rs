//! Bodies of responses, and tasks that live for long: connections, streams, upgraded connections,
//! with what they carry.

use dormouse_metrics::MetricFamily;
use dormouse_metrics::MetricKind::{Counter, Gauge, Histogram};
use dormouse_metrics::MetricUnit::{Bytes, Seconds, Things};

use super::entry::{column, histogram, metric, time, value};
use super::values::{GroupFigure, carried, long_lived, messages, streams};
use crate::figures::{
    Figure, FigureJson as Json, FigurePart as Part, FigureUnit as Unit, FigureView as View,
};

/// In texts, buckets of bodies and gaps end at 2 to the power of these, in seconds: from 1 ms to
/// 64 s, each sixteen times as long as the one before. Nearly each group has bodies, so they are
/// fewer than those of requests.
const BUCKETS: &[i32] = &[-10, -6, -2, 2, 6];

/// Bodies of responses. A group without any has no point.
pub static BODY_DURATION: MetricFamily = MetricFamily {
    name: "dormouse.request.body.duration",
    unit: Seconds,
    kind: Histogram(BUCKETS),
    help: "Time from the head of a response to the last frame of its body. Streams have none.",
};

/// Times between frames of streams. A group without any has no point.
pub static STREAM_GAP: MetricFamily = MetricFamily {
    name: "dormouse.stream.gap",
    unit: Seconds,
    kind: Histogram(BUCKETS),
    help: "Time from one frame of a stream to the next.",
};

/// The time between messages that a WebSocket receives.
pub static RECEIVED_GAP: MetricFamily = MetricFamily {
    name: "dormouse.stream.received.gap",
    unit: Seconds,
    kind: Histogram(BUCKETS),
    help: "Time from one message that a WebSocket has received to the next.",
};

pub(super) const FIGURES: &[Figure<GroupFigure>] = &[
    Figure {
        json: Json::Everywhere,
        columns: &[
            column(View::TopWaits, 66, "LONG", Unit::Whole).leaves(1),
            column(View::StatBodies, 50, "LONG-LIVED", Unit::Whole),
            column(View::Page, 72, "Long-lived", Unit::Whole).leaves(1),
        ],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.tasks.long.lived",
            unit: Things("{task}"),
            kind: Gauge,
            help: "Tasks that exist and live for long: connections, streams, upgraded connections. They are no \
                   requests.",
        })),
        ..value("long_lived", |group| long_lived(group, |of| of.tasks.into()))
    },
    Figure {
        json: Json::Everywhere,
        columns: &[column(View::StatBodies, 60, "MEAN AGE", Unit::Time)],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.tasks.long.lived.age",
            unit: Seconds,
            kind: Gauge,
            help: "Mean age of the tasks that live for long, within a second.",
        })),
        ..value("long_lived_age_ns", |group| long_lived(group, |of| of.age_ns.into()))
    },
    Figure {
        columns: &[
            column(View::TopWaits, 45, "BODY P99", Unit::Time).part(Part::P99).leaves(2),
            column(View::StatBodies, 10, "BODIES", Unit::Whole).part(Part::Count),
            column(View::StatBodies, 20, "P50", Unit::Time).part(Part::P50),
            column(View::StatBodies, 30, "P99", Unit::Time).part(Part::P99),
            column(View::Page, 64, "Body p99", Unit::Time).part(Part::P99).leaves(1),
        ],
        metric: Some(metric(&BODY_DURATION)),
        ..histogram("body", |waits| Some(&waits.bodies))
    },
    Figure {
        columns: &[column(View::StatBodies, 40, "SENDING", Unit::Whole)],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.request.body.sending",
            unit: Things("{request}"),
            kind: Gauge,
            help: "Requests whose bodies are still being sent ten seconds after the head.",
        })),
        ..time("sending", |waits| waits.streams.map(|of| of.sending).into())
    },
    Figure {
        columns: &[column(View::StatBodies, 70, "FRAMES", Unit::Whole)],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.stream.frames",
            unit: Things("{frame}"),
            kind: Counter,
            help: "Frames of streams: of server-sent events, of gRPC, and messages that WebSockets sent.",
        })),
        ..time("stream_frames", |waits| streams(waits, |of| of.frames))
    },
    Figure {
        columns: &[column(View::StatBodies, 80, "BYTES", Unit::Whole)],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.stream.sent",
            unit: Bytes,
            kind: Counter,
            help: "Bytes of these frames.",
        })),
        ..time("stream_bytes", |waits| streams(waits, |of| of.bytes))
    },
    Figure {
        columns: &[column(View::StatBodies, 84, "MESSAGES IN", Unit::Whole).if_any()],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.stream.received.messages",
            unit: Things("{message}"),
            kind: Counter,
            help: "Messages that came by WebSockets, where a stream of dormouse's reads them.",
        })),
        ..time("received_messages", |waits| messages(waits, |of| of.messages))
    },
    Figure {
        columns: &[column(View::StatBodies, 86, "BYTES IN", Unit::Whole).if_any()],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.stream.received",
            unit: Bytes,
            kind: Counter,
            help: "Bytes of these messages.",
        })),
        ..time("received_bytes", |waits| messages(waits, |of| of.bytes))
    },
    Figure {
        columns: &[
            column(View::StatBodies, 90, "GAP P50", Unit::Time).part(Part::P50),
            column(View::StatBodies, 100, "GAP P99", Unit::Time).part(Part::P99),
        ],
        metric: Some(metric(&STREAM_GAP)),
        ..histogram("stream_gap", |waits| Some(&waits.gaps))
    },
    Figure {
        columns: &[
            column(View::StatBodies, 103, "GAP IN P50", Unit::Time).part(Part::P50).if_any(),
            column(View::StatBodies, 106, "GAP IN P99", Unit::Time).part(Part::P99).if_any(),
        ],
        metric: Some(metric(&RECEIVED_GAP)),
        ..histogram("received_gap", |waits| waits.messages.and(Some(&waits.received_gaps)))
    },
    Figure {
        columns: &[column(View::StatBodies, 110, "READ", Unit::Whole).if_any()],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.connection.read",
            unit: Bytes,
            kind: Counter,
            help: "Bytes that the group read from connections whose streams are dormouse's.",
        })),
        ..time("connection_read_bytes", |waits| carried(waits, |of| of.read))
    },
    Figure {
        columns: &[column(View::StatBodies, 120, "WRITTEN", Unit::Whole).if_any()],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.connection.written",
            unit: Bytes,
            kind: Counter,
            help: "Bytes that the group wrote to these connections.",
        })),
        ..time("connection_written_bytes", |waits| carried(waits, |of| of.written))
    },
];
