//! `dormouse slots`: the holders of a process's debug registers, to explain why a watch was
//! refused.
//!
//! The agent lists the watches of its service. The registers of other holders (a debugger, a watch
//! from outside) are found as missing ones, thread by thread.

use std::collections::BTreeMap;

use dormouse_breakpoints::{Error, free_registers};
use dormouse_protocol::{HeldBy, SlotOwner, SlotRow, SlotsAnswer, SlotsRequest};
use dormouse_sys::perf;
use serde::{Deserialize, Serialize};

use crate::client::session::{Session, Subject};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Context, FAIR, HEAD};
use crate::render::table::Table;
use crate::target::Proc;
use crate::target::process::read_text;
use crate::text::{clean, count, list};
use crate::verb::Asked;
#[cfg(feature = "serve")]
use crate::verb::Offer;

/// Threads that are named; of others there is the number.
const MOST_NAMED: usize = 4;

/// List who holds the debug registers of a process: watches, their holders, and what is free
///
/// A thread has four registers. Watches leave one of them to debuggers. To count the free registers
/// of a thread, the command takes them for a moment.
#[derive(Debug, clap::Args, Deserialize)]
pub(crate) struct Request {}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Document<'a> {
    pid: u32,
    /// Null if the process has no dormouse, or one that does not support watches.
    watches: Option<&'a SlotsAnswer>,
    /// Null: this user may not see it.
    threads: Option<&'a [FreeThread]>,
}

/// A thread, and how many of its registers are free.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FreeThread {
    tid: u32,
    name: String,
    free_registers: usize,
}

impl Asked for Request {
    const NAME: &'static str = "slots";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::reading::<Self>());

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        let (process, session) = subject.look(context.patience)?;
        let known = |mut session: Session| session.call_known(SlotsRequest {});
        let watches = session.map(known).transpose()?.flatten();
        let threads = match (threads(process.pid), &watches) {
            (Ok(threads), _) => Some(threads),
            (Err(why), None) => return Err(why),
            (Err(why), Some(_)) => {
                context.note(format_args!("{FAIR}free registers:{FAIR:#} {why}"));
                None
            }
        };
        if context.json {
            let pid = process.pid;
            context.document(&Document { pid, watches: watches.as_ref(), threads: threads.as_deref() })?;
            return Ok(Exit::Ok);
        }
        if let Some(watches) = &watches {
            context.text(table(watches))?;
        }
        if let Some(threads) = &threads {
            let mut by_free = BTreeMap::<usize, Vec<String>>::new();
            for FreeThread { tid, name, free_registers } in threads {
                by_free.entry(*free_registers).or_default().push(format!("{name}/{tid}"));
            }
            for (free, names) in by_free.iter().rev() {
                let registers = count(*free as u64, "register");
                context.line(format_args!("{registers} free in {}", list(names, MOST_NAMED)))?;
            }
        }
        Ok(Exit::Ok)
    }
}

fn threads(pid: u32) -> Outcome<Vec<FreeThread>> {
    let proc = Proc::system();
    let tids = proc.tids(pid).map_err(|error| Failure::failed(format!("cannot list threads: {error}")))?;
    let mut threads = Vec::new();
    for tid in tids {
        // A thread that has ended has none.
        let Ok(name) = read_text(&proc.path(pid, &format!("task/{tid}/comm"))) else { continue };
        match free_registers(tid) {
            Ok(free_registers) => {
                threads.push(FreeThread { tid, name: name.trim_end().to_owned(), free_registers });
            }
            Err(Error::Thread { source: perf::Error::NoSuchThread { .. }, .. }) => {}
            Err(error) => return Err(Failure::new(Exit::Denied, error.to_string())),
        }
    }
    Ok(threads)
}

fn table(watches: &SlotsAnswer) -> String {
    if watches.held.is_empty() {
        return "no watch of dormouse\n".to_owned();
    }
    let mut table = Table::new(["WATCH", ">REGISTERS", "OF", "CLASS", "HOLDER"]);
    for row in &watches.held {
        table.row([
            clean(&row.name),
            row.registers.to_string(),
            row.group.as_deref().map_or_else(|| "all threads".to_owned(), clean),
            if row.flexible { "flexible" } else { "pinned" }.to_owned(),
            holder(row),
        ]);
    }
    table.render(HEAD)
}

fn holder(row: &SlotRow) -> String {
    let SlotOwner { by, uid, pid } = row.holder;
    match by {
        HeldBy::Client => format!("process {pid} of user {uid}"),
        _ => "the service".to_owned(),
    }
}
