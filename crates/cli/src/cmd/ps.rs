//! `dormouse ps`: the processes that have an agent.
//!
//! All agents are asked at once, each on a thread of its own, so that a stopped one delays the list
//! by one timeout, not by one for each process after it.

use std::thread;
use std::time::Duration;

use dormouse_protocol::Hello;

use crate::client::Client;
use crate::exit::{Exit, Failure, Outcome, Report};
use crate::output::{Context, FAIR, HEAD, say};
use crate::render::processes::{Listing, ProcessRow, Refused};
use crate::render::table::Table;
use crate::target::{Finder, Found};
use crate::text::clean;
use crate::verb::Subcommand;

/// List the processes with dormouse in them
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

impl Subcommand for Args {
    fn run(&self, context: &mut Context) -> Outcome {
        let finder = Finder::new();
        let found = finder.all()?;
        let seen = ask_all(&finder, &found, context.patience);
        if context.json {
            let processes = seen
                .iter()
                .map(|(found, answer)| ProcessRow {
                    pid: found.process.pid,
                    start_ticks: found.process.start_ticks,
                    name: answer.as_ref().map_or(found.process.name(), |hello| &hello.name),
                    uid: found.process.uid,
                    agent: answer.as_ref().ok(),
                    refused: answer.as_ref().err().map(Refused::of),
                })
                .collect();
            context.document(&Listing { processes })?;
        } else if !seen.is_empty() {
            context.text(table(&seen).render(HEAD))?;
        }
        if !seen.is_empty() {
            return Ok(Exit::Ok);
        }
        if !context.json {
            say("no process with dormouse in it was found; a service has it after dormouse::init()");
        }
        Ok(Exit::Failed)
    }
}

/// Asks every process for its name. One that turns out to have no agent is left out.
fn ask_all<'a>(
    finder: &Finder,
    found: &'a [Found],
    patience: Duration,
) -> Vec<(&'a Found, Result<Hello, Report>)> {
    let fails = |what: &str| Err(Failure::failed(format!("it cannot be reached: {what}")));
    thread::scope(|scope| {
        let ask = |found| {
            let ask = move || Client::reach(finder, found, patience).map(|(_, hello)| hello);
            (found, thread::Builder::new().spawn_scoped(scope, ask))
        };
        let asked: Vec<_> = found.iter().map(ask).collect();
        let answers = asked.into_iter().filter_map(|(found, thread)| {
            let answer = match thread.map(thread::ScopedJoinHandle::join) {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => fails("the thread that did so panicked"),
                Err(error) => fails(&error.to_string()),
            };
            match answer {
                Ok(hello) => Some((found, Ok(hello))),
                Err(Failure::Said(report)) if report.exit != Exit::NoTarget => Some((found, Err(*report))),
                Err(_) => None,
            }
        });
        answers.collect()
    })
}

/// Its version, and whether it sleeps.
fn version(hello: &Hello) -> String {
    let version = clean(&hello.version);
    hello.asleep.map_or_else(|| version.clone(), |asleep| format!("{version} {FAIR}{asleep}{FAIR:#}"))
}

fn table(seen: &[(&Found, Result<Hello, Report>)]) -> Table {
    let mut table = Table::new([">PID", "NAME", ">UID", ">KEYS", ">SITES", "VERSION"]);
    for (found, answer) in seen {
        let process = &found.process;
        let (name, keys, sites, version) = match answer {
            Ok(hello) => (&hello.name[..], hello.keys.to_string(), hello.sites.to_string(), version(hello)),
            Err(report) => {
                (process.name(), "-".into(), "-".into(), format!("{FAIR}{}{FAIR:#}", clean(&report.message)))
            }
        };
        table.row([process.pid.to_string(), clean(name), process.uid.to_string(), keys, sites, version]);
    }
    table
}
