//! `dormouse doctor`: what works, what does not, and the one setting that would change it.
//!
//! Without a target this process does what a service does: it starts an agent of its own, finds it
//! as it would find any other, and sends it requests. So the answer is not a guess about this
//! machine but what a service of this user would get on it. With a target, that process is asked as
//! well.

mod stalls;

use std::error::Error as _;
use std::fs::File;
use std::time::Duration;

use dormouse_breakpoints::free_registers;
use dormouse_profile::StackEnds;
use dormouse_protocol::{Check, CheckState, Doctor, DoctorRequest, ProfileRequest};
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::client::session::Subject;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{BAD, Context, FAIR, GOOD, HEAD};
use crate::prologues::Prologues;
use crate::render::table::Table;
use crate::sample::profiling::Profiled;
use crate::target::{OFF_HINT, Process, Target, describe};
use crate::text::clean;
#[cfg(feature = "serve")]
use crate::verb::Offer;
use crate::verb::{Asked, Subcommand};

/// The first process, which is somebody else's for all but root.
const FIRST: u32 = 1;
/// A program that is larger is not read: a target may have made it so.
const LARGEST: u64 = 1 << 30;

/// For how long a process is profiled to see whether its stacks are whole, and how often a thread.
const STACKS: Duration = Duration::from_secs(1);
const STACKS_HZ: u32 = 250;

dormouse::static_key! {
    /// Gives this process a site to try patching on.
    static EXAMPLE: "dormouse.doctor" = false;
}

/// Show what works on this machine and in a process, and what to change where something does not
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Process id or name; without it, this machine is checked
    target: Option<Target>,
    #[command(flatten)]
    request: Request,
}

/// The checks of a process.
#[derive(Debug, clap::Args, Deserialize)]
pub(crate) struct Request {}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Examination<'a> {
    subject: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(flatten)]
    doctor: &'a Doctor,
}

impl Subcommand for Args {
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Request::OFFER;

    fn run(&self, context: &mut Context) -> Outcome {
        match &self.target {
            Some(target) => self.request.run(&Subject::of(target), context),
            None => print("this machine", None, &examine_here(context), context),
        }
    }
}

impl Asked for Request {
    const NAME: &'static str = "doctor";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::reading::<Self>());

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        let (process, session) = subject.look(context.patience)?;
        let mut doctor = match session {
            Some(mut session) => session.call(DoctorRequest {})?,
            None => Doctor { checks: vec![no_agent(&process), outside(process.pid)] },
        };
        let (stacks, stalls) = stalls::checks(&subject.target, context, || stacks(&subject.target, context));
        doctor.checks.push(stacks);
        doctor.checks.extend(stalls);
        doctor.checks.extend(frame_pointers(process.pid));
        doctor.checks.extend(crate::debug_files::checks(process.pid));
        print(&describe(&process), Some(process.pid), &doctor, context)
    }
}

fn print(subject: &str, pid: Option<u32>, doctor: &Doctor, context: &mut Context) -> Outcome {
    if context.json {
        context.document(&Examination { subject, pid, doctor })?;
    } else {
        context.line(format_args!("{HEAD}{subject}{HEAD:#}"))?;
        context.text(table(&doctor.checks).render(HEAD))?;
        for check in &doctor.checks {
            if let Some(fix) = &check.fix {
                context.line(format_args!("{}: to change it, {}", clean(&check.name), clean(fix)))?;
            }
        }
    }
    let is_well = doctor.checks.iter().all(|check| check.state != CheckState::Unavailable);
    Ok(if is_well { Exit::Ok } else { Exit::Failed })
}

/// The checks that a service of this user would meet on this machine.
fn examine_here(context: &Context) -> Doctor {
    // Reached, so that the site is in the program.
    let _ = dormouse::unlikely!(EXAMPLE);
    let mut checks = vec![platform(), outside(FIRST)];
    match dormouse::init() {
        Ok(agent) => {
            checks.push(check("agent.socket", CheckState::Ok, agent.path().display().to_string()));
            match ask_own_agent(context) {
                Ok(doctor) => {
                    checks.push(check("agent.reach", CheckState::Ok, "found through /proc and answered"));
                    checks.extend(doctor.checks);
                }
                Err(failure) => checks.push(failed("agent.reach", CheckState::Unavailable, failure)),
            }
        }
        Err(error) => {
            let mut socket = check("agent.socket", CheckState::Unavailable, error.to_string());
            let is_off = matches!(error, dormouse::InitError::Off);
            let place = "set DORMOUSE_RUNTIME_DIR for the service to a directory that it may write to";
            socket.fix = Some(if is_off { "unset DORMOUSE" } else { place }.into());
            checks.push(socket);
        }
    }
    Doctor { checks }
}

fn ask_own_agent(context: &Context) -> Outcome<Doctor> {
    let (mut client, _) = Client::open(&Target::Pid(std::process::id()), context.patience)?;
    client.call(DoctorRequest {})
}

/// A check that failed, with the advice of its failure.
fn failed(name: &str, state: CheckState, failure: Failure) -> Check {
    let mut reach = check(name, state, failure.to_string());
    if let Failure::Said(report) = failure {
        reach.fix = report.hint;
    }
    reach
}

fn platform() -> Check {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = if kernel.is_empty() { "(its version is in /proc)" } else { kernel.trim() };
    let detail = format!("Linux {kernel} on {}", std::env::consts::ARCH);
    if dormouse::keys::PATCHING {
        check("platform", CheckState::Ok, detail)
    } else {
        let detail = format!("{detail}: keys are tested at each site, not patched into it");
        check("platform", CheckState::Limited, detail)
    }
}

fn no_agent(process: &Process) -> Check {
    let (why, fix) = if process.is_off() {
        ("DORMOUSE=off is in its environment", OFF_HINT)
    } else {
        ("it has no dormouse in it", "call dormouse::init(), in C dormouse_init(), at its start")
    };
    let detail = format!("{why}, so it is seen from outside: by threads, without groups and keys");
    Check { fix: Some(fix.to_owned()), ..check("agent.reach", CheckState::Limited, detail) }
}

/// Whether this user may watch the memory of processes that have no dormouse in them: of `pid`.
fn outside(pid: u32) -> Check {
    const NAME: &str = "watch.outside";
    match free_registers(pid) {
        Ok(_) if pid == FIRST => check(NAME, CheckState::Ok, "the memory of any process can be watched"),
        Ok(free) => check(NAME, CheckState::Ok, format!("{free} debug registers are free")),
        Err(error) => {
            let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            let detail = format!("only processes that this user may trace, if any: {why}");
            let fix = Some("run dormouse watch as root, or with CAP_PERFMON and CAP_SYS_PTRACE".to_owned());
            Check { fix, ..check(NAME, CheckState::Limited, detail) }
        }
    }
}

/// Whether stacks are whole: by a profile of what runs now.
fn stacks(target: &Target, context: &Context) -> Check {
    const NAME: &str = "profile.stacks";
    let request = ProfileRequest { hz: Some(STACKS_HZ), ..ProfileRequest::default() };
    let taken = Profiled::open(target, &request, context.patience).and_then(|mut profiled| {
        profiled.take(STACKS)?;
        Ok(profiled)
    });
    let mut profiled = match taken {
        Ok(profiled) => profiled,
        Err(failure) => return failed(NAME, CheckState::Limited, failure),
    };
    let Some((profile, _)) = profiled.named() else {
        return check(NAME, CheckState::Limited, "it has ended before a profile was read");
    };
    let ends = StackEnds::of(profile);
    if ends.stacks == 0 {
        let detail = format!("not measured: it used no CPU time in {} s", STACKS.as_secs());
        return check(NAME, CheckState::Ok, detail);
    }
    let fix = ends.others.first().filter(|_| !ends.are_well()).map(|most| most.why.fix().to_owned());
    let state = if ends.are_well() { CheckState::Ok } else { CheckState::Limited };
    Check { fix, ..check(NAME, state, ends.to_string()) }
}

/// How many functions keep frame pointers, by which stacks are followed where there is no table.
/// `None`: its file cannot be opened, as that of another user.
fn frame_pointers(pid: u32) -> Option<Check> {
    const NAME: &str = "profile.frame-pointers";
    let program = File::open(format!("/proc/{pid}/exe")).ok()?;
    if program.metadata().is_ok_and(|file| file.len() > LARGEST) {
        let detail = format!("its file is larger than {} MiB, and is not read for that", LARGEST >> 20);
        return Some(check(NAME, CheckState::Limited, detail));
    }
    let Some(functions) = Prologues::read(program) else {
        let detail =
            "its file has no symbols, from which they and the names of a profile's functions would come";
        let fix = Some("build it without stripping symbols (Cargo: strip = \"debuginfo\")".to_owned());
        return Some(Check { fix, ..check(NAME, CheckState::Limited, detail) });
    };
    let Prologues { keep, all } = functions;
    let rest = if functions.is_most() { "" } else { "; callers are found by unwind tables" };
    Some(check(NAME, CheckState::Ok, format!("{keep} of {all} functions of its own keep them{rest}")))
}

fn check(name: &str, state: CheckState, detail: impl Into<String>) -> Check {
    Check { name: name.into(), state, detail: detail.into(), fix: None }
}

fn table(checks: &[Check]) -> Table {
    let mut table = Table::new(["STATE", "WHAT", "SEEN"]);
    for check in checks {
        let state = match check.state {
            CheckState::Ok => format!("{GOOD}ok{GOOD:#}"),
            CheckState::Limited => format!("{FAIR}limited{FAIR:#}"),
            CheckState::Unavailable => format!("{BAD}unavailable{BAD:#}"),
        };
        table.row([state, clean(&check.name), clean(&check.detail)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_has_its_state_and_observation() {
        let checks = [
            check("keys.write", CheckState::Ok, "pages of code become writable"),
            check("host.schedstat", CheckState::Limited, "the kernel keeps no\n account"),
            check("watch", CheckState::Unavailable, "\x1b[31mno debug registers"),
        ];
        let text = anstream::adapter::strip_str(&table(&checks).render(HEAD)).to_string();
        insta::assert_snapshot!("doctor", text);
    }
}
