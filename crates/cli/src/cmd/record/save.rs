//! `dormouse record --save`: a file of what the service knows, now.
//!
//! The service writes it, as it does when a trigger fires: a trigger that fires once, which this
//! command removes when it is done.

use std::time::{Duration, Instant};

use dormouse_protocol::{
    RecordSaveRequest, TriggerRemoveRequest, TriggerRow, TriggersAnswer, TriggersRequest,
};
use serde::Serialize;

use crate::client::Client;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Context;
use crate::signals::wait;
use crate::target::Target;
use crate::text::clean;

/// How often the service is asked whether the file is there.
const LOOK: Duration = Duration::from_millis(100);

/// How long the profile in the file takes, and what comes before it, beside the command's patience.
const LENGTH: Duration = Duration::from_secs(5);

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::cmd) struct SavedDocument<'a> {
    pid: u32,
    file: &'a str,
}

pub(super) fn run(target: &Target, context: &mut Context) -> Outcome {
    let (mut client, _) = Client::open(target, context.patience)?;
    let answer: TriggersAnswer = client.call(RecordSaveRequest {})?;
    let Some(number) = answer.triggers.first().map(|row| row.number) else {
        return Err(client.nonsense("it saves, and does not report the file"));
    };
    let row = await_file(&mut client, number, context.patience + LENGTH)?;
    let _left: TriggersAnswer = client.call(TriggerRemoveRequest { number })?;
    let Some(file) = &row.file else {
        return Err(Failure::failed(format!(
            "{} has not written a file: {}",
            client.who,
            clean(&row.why_not)
        )));
    };
    if context.json {
        context.document(&SavedDocument { pid: client.pid, file })?;
    } else {
        context.line(clean(file))?;
    }
    Ok(Exit::Ok)
}

/// The trigger once its file is there, or is not to come.
fn await_file(client: &mut Client, number: u64, length: Duration) -> Outcome<TriggerRow> {
    let until = Instant::now() + length;
    loop {
        let answer: TriggersAnswer = client.call(TriggersRequest {})?;
        let Some(row) = answer.triggers.into_iter().find(|row| row.number == number) else {
            return Err(Failure::failed("the trigger that writes the file was removed"));
        };
        if !row.is_writing {
            return Ok(row);
        }
        if Instant::now() >= until {
            return Err(client.silent("written no file"));
        }
        let [_] = wait([client.as_fd()], Some(Instant::now() + LOOK))?;
    }
}
