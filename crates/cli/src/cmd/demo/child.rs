//! The demo's service as a child process.
//!
//! It lives as long as its standard input is open, so it cannot outlive this process. Lines that it
//! writes to standard error are kept, not shown, because they would appear in the middle of a
//! table; if the service fails, they are the explanation.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, Read};
use std::num::NonZero;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_teaparty::load::Report;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::duration::short_of;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Context;
use crate::signals::wait;
use crate::text::clean;

/// How long a service may take to finish the requests that it has.
const CLOSING: Duration = Duration::from_secs(10);
/// How much longer the load lasts than the demo: the demo ends it.
const SLACK: Duration = Duration::from_secs(60);
/// How long a service that has closed its streams may take to end.
const ENDING: Duration = Duration::from_millis(500);
/// Lines of standard error that are kept.
const KEPT: usize = 5;

/// The first line of the service.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::cmd) struct Begin {
    listening: String,
}

/// The last line of the service.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::cmd) struct End {
    #[cfg_attr(test, schemars(with = "serde_json::Value"))]
    pub(super) summary: dormouse_teaparty::Summary,
}

/// The service under load.
pub(super) struct TeaHouse {
    child: Child,
    pub(super) url: String,
    /// Lines of its standard output, to its end.
    lines: Receiver<String>,
    errors: Arc<Mutex<VecDeque<String>>>,
}

/// Says where the service listens, from inside it.
pub(super) fn announce(url: &str, json: bool, context: &mut Context) -> Outcome<()> {
    if json {
        context.document(&Begin { listening: url.to_owned() })?;
    } else {
        context.line(format_args!("listening on {url}"))?;
    }
    context.flush()
}

impl TeaHouse {
    /// Starts the service and its load, and waits until it listens.
    pub(super) fn open(rate: NonZero<u16>, length: Duration, patience: Duration) -> Outcome<TeaHouse> {
        let fails = |what: &str| Failure::failed(format!("cannot start the demo's service: {what}"));
        let io_fails = |error: io::Error| fails(&error.to_string());
        let program = std::env::current_exe().map_err(io_fails)?;
        let mut child = Command::new(program)
            .args(["teaparty", "--json", "--exit-with-parent"])
            .args(["--load", &rate.to_string()])
            .args(["--for", &format!("{}s", (length + SLACK).as_secs())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is meant for this process, which then closes the service in order.
            .process_group(0)
            .spawn()
            .map_err(io_fails)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let errors = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, lines) = channel();
        // Into its place first: from here on every way out ends the child.
        let mut house = TeaHouse { child, url: String::new(), lines, errors: Arc::clone(&errors) };
        let kept = move |line| {
            let mut errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
            errors.push_back(line);
            if errors.len() > KEPT {
                errors.pop_front();
            }
        };
        read_lines("tea-stderr", stderr, kept).map_err(io_fails)?;
        read_lines("tea-stdout", stdout, move |line| drop(sender.send(line))).map_err(io_fails)?;
        let first = house.line(patience)?;
        let begin: Begin =
            serde_json::from_str(&first).map_err(|error| fails(&format!("it said {first:?}: {error}")))?;
        house.url = begin.listening;
        Ok(house)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the load and the service, and gives what the load met.
    pub(super) fn close(&mut self) -> Outcome<Report> {
        drop(self.child.stdin.take());
        let last = self.line(CLOSING)?;
        let end: Option<End> = serde_json::from_str(&last).ok();
        end.and_then(|end| end.summary.load).ok_or_else(|| {
            Failure::failed(format!("the demo's service summed up in words unknown: {}", clean(&last)))
        })
    }

    /// The failure, unless the service's own end or message is the reason for it.
    pub(super) fn explain(&mut self, failure: Failure) -> Failure {
        let Failure::Said(report) = &failure else { return failure };
        let errors = self.errors();
        if report.exit == Exit::Failed {
            // Its streams end a moment before the process does.
            self.await_end(Instant::now() + ENDING);
        }
        let ended = match self.child.try_wait() {
            Ok(Some(status)) => format!("the demo's service ended: {status}"),
            _ if errors.is_empty() => return failure,
            _ => report.message.clone(),
        };
        let ended = Failure::failed(ended);
        if errors.is_empty() { ended } else { ended.hint(format!("it said: {errors}")) }
    }

    /// The next line of the service.
    fn line(&mut self, patience: Duration) -> Outcome<String> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                let message = format!("the demo's service has said nothing for {}", short_of(patience));
                Err(Failure::failed(message).hint("--timeout waits longer"))
            }
            Err(RecvTimeoutError::Disconnected) => {
                let failure = Failure::failed("the demo's service closed its output");
                Err(self.explain(failure))
            }
        }
    }

    /// Waits for the end of the process, or until `until`. Where the kernel cannot report the end,
    /// it does not wait.
    fn await_end(&self, until: Instant) {
        if let Ok(process) = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()) {
            let _ = wait([process.as_fd()], Some(until));
        }
    }

    fn errors(&self) -> String {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.iter().map(String::as_str).collect::<Vec<_>>().join(" | ")
    }
}

impl Drop for TeaHouse {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // Either may fail only because the child has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Gives each line of a stream to `take`, on a thread that ends with the stream.
fn read_lines(
    name: &str,
    stream: Option<impl Read + Send + 'static>,
    mut take: impl FnMut(String) + Send + 'static,
) -> io::Result<()> {
    let Some(stream) = stream else { return Ok(()) };
    let read = move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            take(line);
        }
    };
    thread::Builder::new().name(name.into()).spawn(read).map(drop)
}
