//! `dormouse triggers`: the rules by which a service writes a file when something happens, when
//! each fired last, and why it has not fired since.

use dormouse_protocol::{
    TriggerAddRequest, TriggerRemoveRequest, TriggerRow, TriggersAnswer, TriggersRequest,
};
use serde::{Deserialize, Serialize};

use crate::client::session::Subject;
use crate::duration::short;
use crate::exit::{Exit, Outcome};
use crate::output::{Context, FAIR, HEAD};
use crate::render::table::Table;
use crate::text::clean;
use crate::verb::Asked;
#[cfg(feature = "serve")]
use crate::verb::Offer;

/// List the triggers of a service, and why each has not fired; arm and remove them
///
/// A rule is request>500ms, error>5% over 10s, cancelled>10/s, objective<99% over 5m,
/// long-poll>20ms, lock>100ms, cpu>90% for 10s, a probe's field as in brew.step.cups>100, or panic;
/// the guide has all of them (docs/guide/triggers.md). A trigger stays when this command ends. The
/// tasks, profile and trace commands read the files.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(default)]
pub(crate) struct Request {
    /// Arm triggers: one rule, or several separated by ;
    #[arg(long, value_name = "RULE", conflicts_with = "remove")]
    #[serde(skip)]
    add: Option<String>,
    /// Remove the trigger with this number
    #[arg(long, value_name = "N")]
    #[serde(skip)]
    remove: Option<u64>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Document<'a> {
    pid: u32,
    #[serde(flatten)]
    answer: &'a TriggersAnswer,
}

impl Asked for Request {
    const NAME: &'static str = "triggers";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::reading::<Self>());

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        let mut session = subject.session(context.patience)?;
        let answer = match (&self.add, self.remove) {
            (Some(rules), _) => session.call(TriggerAddRequest { rules: rules.clone() })?,
            (None, Some(number)) => session.call(TriggerRemoveRequest { number })?,
            (None, None) => session.call(TriggersRequest {})?,
        };
        if context.json {
            context.document(&Document { pid: session.pid(), answer: &answer })?;
            return Ok(Exit::Ok);
        }
        if answer.triggers.is_empty() {
            context.line("no trigger is armed")?;
        } else {
            context.text(table(&answer.triggers))?;
        }
        for row in &answer.triggers {
            if let (Some(file), Some(seen)) = (&row.file, &row.seen) {
                context.line(format_args!("{}: {} in {}", row.number, clean(seen), clean(file)))?;
            }
        }
        match (&answer.fault, answer.used_bytes) {
            (Some(fault), _) => {
                context.note(format_args!("{FAIR}no file can be written:{FAIR:#} {}", clean(fault)));
            }
            (None, used) => {
                let (used, most) = (used.unwrap_or(0) / 1024, answer.budget_bytes / 1024);
                context.line(format_args!("{used} of {most} KiB used in {}", clean(&answer.directory)))?;
            }
        }
        Ok(Exit::Ok)
    }
}

fn table(rows: &[TriggerRow]) -> String {
    let mut table = Table::new([">N", "RULE", ">FILES", ">LAST", "WHY NOT"]);
    for row in rows {
        let last = row.fired_ago_ns.map_or_else(|| "never".to_owned(), |ns| format!("{} ago", short(ns)));
        table.row([
            row.number.to_string(),
            clean(&row.rule),
            row.fired.to_string(),
            last,
            clean(&row.why_not),
        ]);
    }
    table.render(HEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trigger_says_why_not() {
        let row = TriggerRow {
            number: 3,
            rule: "request>500ms in POST *".into(),
            why_not: "highest seen 312 ms of 500 ms".into(),
            ..TriggerRow::default()
        };
        let fired = TriggerRow { number: 4, fired: 2, fired_ago_ns: Some(20_000_000_000), ..row.clone() };
        let text = anstream::adapter::strip_str(&table(&[row, fired])).to_string();
        insta::assert_snapshot!("triggers", text);
    }
}
