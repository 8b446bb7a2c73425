//! An exposition with everything in it.
use dormouse_metrics::{
    ExponentialHistogram, ExposedProcess, Exposition, LabelSet, MetricExemplar, MetricFamily, MetricKind,
    MetricUnit, MetricValue,
};

pub(crate) static CPU: MetricFamily = MetricFamily {
    name: "dormouse.cpu.time",
    help: "CPU time.",
    unit: MetricUnit::Seconds,
    kind: MetricKind::Counter,
};
/// Not in [`fill`].
pub(crate) static PRESSURE: MetricFamily = MetricFamily {
    name: "dormouse.process.pressure",
    help: "Pressure.",
    unit: MetricUnit::Seconds,
    kind: MetricKind::OlderCounter,
};
pub(crate) static ALIVE: MetricFamily = MetricFamily {
    name: "dormouse.tasks.alive",
    help: "Tasks.",
    unit: MetricUnit::Things("{task}"),
    kind: MetricKind::Gauge,
};
pub(crate) static LATENCY: MetricFamily = MetricFamily {
    name: "dormouse.request.duration",
    help: "Latency.",
    unit: MetricUnit::Seconds,
    kind: MetricKind::Histogram(&[-4, 0, 2]),
};
pub(crate) static POLLS: MetricFamily = MetricFamily {
    name: "dormouse.poll.duration",
    help: "Polls.",
    unit: MetricUnit::Seconds,
    kind: MetricKind::Histogram(&[]),
};
pub(crate) static AGENT: MetricFamily = MetricFamily {
    name: "dormouse.agent.info",
    help: "Version.",
    unit: MetricUnit::Nothing,
    kind: MetricKind::Info,
};

/// A name that means something in each text.
pub(crate) const WILD: &str = "GET /\"{}\\ \n#ä\0";

pub(crate) const START: u64 = 1_700_000_000_000_000_001;
pub(crate) const READ: u64 = 1_700_000_100_000_000_002;

pub(crate) fn process(name: &str, pid: u32) -> ExposedProcess {
    ExposedProcess {
        name: name.to_owned(),
        pid,
        user: None,
        instance: format!("host:{pid}"),
        version: "1.2.3".to_owned(),
        start_unix_ns: START,
        read_unix_ns: READ,
    }
}

/// In buckets of 2^(1/4): around a sixteenth, a half, a second, and beyond four.
pub(crate) fn latencies() -> ExponentialHistogram {
    ExponentialHistogram {
        scale: 2,
        zero_threshold: 2_f64.powi(-24),
        zero_count: 3,
        positive: vec![(-18, 1), (-17, 4), (-16, 5), (-4, 2), (-2, 7), (0, 1), (8, 2)],
        sum: Some(MetricValue::Number(25.5)),
        exemplars: vec![
            MetricExemplar {
                value: MetricValue::Number(0.5),
                task: 7,
                trace: Some(([0xab; 16], [0x01; 8])),
                outcome: Some("sold \"out\"".into()),
                unix_ns: Some(READ),
            },
            MetricExemplar {
                value: MetricValue::Number(4.5),
                task: 9,
                trace: None,
                outcome: Some("a word that is longer than there is room".into()),
                unix_ns: None,
            },
        ],
    }
}

pub(crate) fn fill(exposition: &mut Exposition, name: &str, pid: u32) {
    let mut part = exposition.process(process(name, pid));
    let version = part.labels(&[("version", "1.2.3")]);
    part.add(&AGENT, [version, LabelSet::NONE], MetricValue::Count(1));
    let groups = [WILD, "idle"].map(|group| part.labels(&[("group", group)]));
    let state = part.labels(&[("state", "poll")]);
    for (group, n) in groups.into_iter().zip(1..) {
        part.add(&CPU, [group, state], MetricValue::Nanoseconds(n * 1_500_000_000));
        part.add(&ALIVE, [group, LabelSet::NONE], MetricValue::Count(n));
    }
    let histograms = [latencies(), ExponentialHistogram::default()];
    for (group, of) in groups.into_iter().zip(histograms) {
        for family in [&LATENCY, &POLLS] {
            part.add_histograms(family, [([group, LabelSet::NONE], of.clone())]);
        }
    }
}
