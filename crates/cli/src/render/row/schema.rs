//! The schema of a row: its figures are those of the table, so a made-up row shows their types.

use std::borrow::Cow;
use std::collections::BTreeMap;

use dormouse_protocol::figures::{
    CallFigure, Durations, FigureValue, GROUP_FIGURES, GroupFigure, GroupSpan, RuntimeFigure,
};
use dormouse_protocol::{
    BlockingRow, CallRow, CarriedRow, ExemplarRow, GroupRow, HistogramRow, LongLivedRow, MessagesRow,
    ObjectiveRow, OutcomesRow, Outliving, QueueRow, RuntimeRow, StallsRow, StreamsRow, UnansweredRow,
    WaitsRow, WireId,
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::super::threads::{THREAD_FIGURES, ThreadFigure, ThreadSpan};
use super::*;
use crate::sample::totals::{Thread, Usage};

impl JsonSchema for RowDocument<'_, GroupFigure> {
    fn schema_name() -> Cow<'static, str> {
        "GroupFigures".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let slowest = ExemplarRow { task: 1, trace_id: Some(WireId([1; 16])), ..ExemplarRow::default() };
        let durations = HistogramRow {
            zero_count: 1,
            max_ns: 1,
            max_task: Some(1),
            exemplars: vec![slowest],
            ..HistogramRow::default()
        };
        let waits = WaitsRow {
            on_cpu_ns: Some(1),
            poll_ns: 1,
            unanswered: Some(UnansweredRow { requests: 1, age_ns: 1 }),
            queue: Some(QueueRow { requests: 1, received: 1, unseen_ns: 1, behind_ns: 1 }),
            streams: Some(StreamsRow { frames: 1, bytes: 1, sending: 1 }),
            carried: Some(CarriedRow { read: 1, written: 1 }),
            messages: Some(MessagesRow { messages: 1, bytes: 1 }),
            stalls: Some(Box::new(StallsRow {
                throttled_ns: Some(1),
                block_io_ns: Some(1),
                major_faults: Some(1),
                within: vec![("".into(), 1)],
                ..StallsRow::default()
            })),
            polls: durations.clone(),
            requests: durations,
            ..WaitsRow::default()
        };
        let used = GroupRow {
            requests: 1,
            outcomes: Some(OutcomesRow { own: vec![("".into(), 1)], ..OutcomesRow::default() }),
            polls: 1,
            cpu_ns: 1,
            objectives: vec![ObjectiveRow { met: 1, ..ObjectiveRow::default() }],
            blocking: Some(BlockingRow { begun: 1, queued_ns: 1 }),
            outliving: Some(Outliving::default()),
            long_lived: Some(LongLivedRow { tasks: 1, age_ns: Some(1) }),
            waits: Some(Box::new(waits)),
            ..GroupRow::default()
        };
        let idle = GroupRow {
            waits: Some(Box::default()),
            long_lived: Some(LongLivedRow::default()),
            ..GroupRow::default()
        };
        let [used, idle] = [&used, &idle].map(|of| {
            let (now, interval_ns, is_refused) = (of, of.cpu_ns, false);
            Row::group(&GroupSpan { now, counted: now, recent: now, interval_ns, is_refused })
        });
        schema(GROUP_FIGURES, &used, &idle, generator)
    }
}

impl JsonSchema for RowDocument<'_, CallFigure> {
    fn schema_name() -> Cow<'static, str> {
        "CallFigures".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let times = HistogramRow { sum_ns: Some(1), ..HistogramRow::default() };
        let used = CallRow { peer: Some("".into()), times, errors: Some(1), ..CallRow::default() };
        let idle = CallRow::default();
        let [used, idle] =
            [(&used, Some("")), (&idle, None)].map(|(row, group)| Row::call(&CallSpan { row, group }));
        schema(CALL_FIGURES, &used, &idle, generator)
    }
}

impl JsonSchema for RowDocument<'_, ThreadFigure> {
    fn schema_name() -> Cow<'static, str> {
        "ThreadFigures".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (tid, inner_tid, start_ticks, name, cpu_ns) = (2, 1, 0, String::new(), 0);
        let idle = Thread { tid, inner_tid, start_ticks, name, cpu_ns, runnable_ns: None, usage: None };
        let used = Thread { runnable_ns: Some(1), usage: Some(Usage::default()), ..idle.clone() };
        let row = |of| Row::thread(&ThreadSpan { total: of, recent: of, has_ended: false, interval_ns: 1 });
        schema(&THREAD_FIGURES, &row(&used), &row(&idle), generator)
    }
}

impl JsonSchema for RowDocument<'_, RuntimeFigure> {
    fn schema_name() -> Cow<'static, str> {
        "RuntimeFigures".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = Some(1);
        let used = RuntimeRow {
            workers: 1,
            busy_ns: one,
            parks: one,
            local_queues: one,
            polls: one,
            steals: one,
            blocking_threads: one,
            idle_blocking_threads: one,
            blocking_queue: one,
            ..RuntimeRow::default()
        };
        let [used, idle] =
            [&used, &RuntimeRow::default()].map(|row| Row::runtime(&RuntimeSpan { row, interval_ns: 1 }));
        schema(RUNTIME_FIGURES, &used, &idle, generator)
    }
}

/// All figures that a document has; what is null in the idle row may be null.
fn schema<Of>(
    figures: &'static [Figure<Of>],
    used: &Row,
    idle: &Row,
    generator: &mut SchemaGenerator,
) -> Schema {
    let mut objects = [Map::new(), Map::new()];
    for (place, figure) in figures.iter().enumerate().filter(|(_, figure)| figure.json != FigureJson::Nowhere)
    {
        let mut schema = match &used.values[place] {
            FigureValue::Counts(_) => generator.subschema_for::<BTreeMap<String, u64>>(),
            FigureValue::Durations(_) => generator.subschema_for::<Durations>(),
            FigureValue::Absent | FigureValue::Unknown => Schema::default(),
            value => typed(value, matches!(idle.values[place], FigureValue::Unknown)),
        };
        if !figure.sentence().is_empty() {
            schema.insert("description".into(), figure.sentence().into());
        }
        objects[usize::from(figure.in_waits)].insert(figure.key.into(), schema.into());
    }
    let [mut own, waits] = objects.map(|properties| json!({ "type": "object", "properties": properties }));
    if figures.iter().any(|figure| figure.in_waits) {
        own["properties"]["waits"] = waits;
    }
    own.try_into().unwrap()
}

fn typed(value: &FigureValue, may_be_null: bool) -> Schema {
    let name = match value {
        FigureValue::Whole(_) => "integer",
        FigureValue::Number(_) => "number",
        FigureValue::Flag(_) => "boolean",
        _ => "string",
    };
    let types: Vec<Value> =
        [Some(name), may_be_null.then_some("null")].into_iter().flatten().map(Value::from).collect();
    let types = if may_be_null { Value::from(types) } else { name.into() };
    json!({ "type": types }).try_into().unwrap()
}
