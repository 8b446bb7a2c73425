//! The flight recorder of a service: started, told of, ended.

use dormouse_protocol::{RecordAnswer, RecordRequest, RecorderRow};
use serde::Serialize;

use super::Args;
use crate::bytes;
use crate::client::session::Subject;
use crate::duration::{milliseconds, short};
use crate::exit::{Exit, Outcome};
use crate::output::{Context, HEAD};
use crate::render::leases::short_ms;
use crate::text::{Clean, count};

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::cmd) struct RecorderDocument<'a> {
    pid: u32,
    /// `on`, `off` where the command has ended it, or `none` where there is none.
    state: &'static str,
    #[serde(flatten)]
    answer: &'a RecordAnswer,
}

pub(super) fn run(args: &Args, context: &mut Context) -> Outcome {
    let mut request = RecordRequest::default();
    request.glob.clone_from(&args.glob);
    request.memory_bytes = args.memory;
    request.for_ms = args.length.map(milliseconds);
    request.off = args.off;
    ask(&Subject::of(&args.target), request, context)
}

/// Has the service start, end or describe its recorder.
pub(super) fn ask(subject: &Subject, request: RecordRequest, context: &mut Context) -> Outcome {
    let target = &subject.target;
    let (is_off, is_on) = (request.off, request.glob.is_some());
    let mut session = subject.session(context.patience)?;
    let answer: RecordAnswer = session.call(request)?;
    let state = match &answer.recorder {
        None => "none",
        Some(_) if is_off => "off",
        Some(_) => "on",
    };
    if context.json {
        context.document(&RecorderDocument { pid: session.pid(), state, answer: &answer })?;
    } else if let Some(row) = &answer.recorder {
        context.line(format_args!("{HEAD}recorder {state}{HEAD:#}: {}", figures(row)))?;
    }
    let Some(row) = &answer.recorder else {
        let who = session.who();
        context.note(format_args!("{who} has no recorder; `dormouse record {target} GLOB` starts one"));
        return Ok(Exit::Failed);
    };
    if row.dropped > 0 {
        context.note(format_args!(
            "{} lost on the way: threads filled their rings faster than they were emptied",
            count(row.dropped, "record")
        ));
    }
    if is_on && row.left_ms.is_none() {
        context.note(format_args!("it stays in the service; `dormouse record {target} --off` ends it"));
    }
    Ok(Exit::Ok)
}

/// A recorder in one line.
fn figures(row: &RecorderRow) -> String {
    let memory = format!("{} of {}", bytes::short(row.held_bytes), bytes::short(row.memory_bytes));
    let kept = row.kept_ns.map(|ns| format!(", the last {}", short(ns))).unwrap_or_default();
    let left = row.left_ms.map(|ms| format!("; {} left", short_ms(ms))).unwrap_or_default();
    let (keys, records) = (count(row.keys as u64, "key"), count(row.records, "record"));
    format!("{}, {keys}; {records}{kept}, in {memory}{left}", Clean(&row.glob))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorder_is_told_in_a_line() {
        let mut row = RecorderRow {
            number: 1,
            glob: "db.*".to_owned(),
            keys: 3,
            memory_bytes: 8 << 20,
            held_bytes: 0,
            records: 0,
            aged: 0,
            dropped: 0,
            kept_ns: None,
            left_ms: None,
            tick_ns: 100_000_000,
        };
        assert_eq!(figures(&row), "db.*, 3 keys; 0 records, in 0 B of 8.00 MiB");
        (row.held_bytes, row.records) = (3 << 19, 1);
        (row.kept_ns, row.left_ms) = (Some(4_200_000_000), Some(9_000));
        assert_eq!(
            figures(&row),
            "db.*, 3 keys; 1 record, the last 4.20 s, in 1.50 MiB of 8.00 MiB; 9.00 s left"
        );
    }
}
