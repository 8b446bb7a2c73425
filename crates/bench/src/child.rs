//! A workload in a separate process, so that a failure affects nothing else.
//!
//! The process prints its report on standard output, as one line of JSON, and the run that has
//! started it writes the file: a process that is killed leaves none, and no half of one.
//!
//! 1. The process ends with the run: the kernel kills it when the thread that started it ends.
//! 2. It ends at the latest after its time limit.
//! 3. Nothing of it outlives it. Its own children inherit a mark in their environment, and every
//!    process with the mark is killed: it would disturb the next workload, and might hold the
//!    output open.
//!
//! # Safety
//!
//! The unsafe code runs in the child before it becomes another program: two system calls that touch
//! no memory.
#![allow(unsafe_code)]

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
};

use crate::report::BenchReport;

/// How often a waiting caller's progress function is called.
const TICK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How long output may come after the end: of processes that have thrown their mark away.
const LATE: Duration = Duration::from_secs(10);
/// The variable with the mark.
const MARK: &str = "DORMOUSE_BENCH_RUN";

/// How a workload ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Its report and the JSON of it, byte for byte as the workload printed it.
    pub(crate) report: Option<(BenchReport, String)>,
    /// The reason why it failed.
    pub(crate) failure: Option<String>,
    /// Its output on standard error.
    pub(crate) said: String,
}

/// Runs a workload to its end, which comes after `limit` at the latest, and calls `tick` about once
/// a second meanwhile.
pub(crate) fn run(command: Command, limit: Duration, tick: impl FnMut()) -> Ended {
    run_marked(command, limit, tick)
        .unwrap_or_else(|error| failed(format!("cannot run it: {error}"), String::new()))
}

fn run_marked(mut command: Command, limit: Duration, mut tick: impl FnMut()) -> io::Result<Ended> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Other namespaces may have the same process ids.
    let random = RandomState::new().build_hasher().finish();
    let mark =
        format!("{}.{}.{random:016x}", getpid().as_raw_nonzero(), COUNT.fetch_add(1, Ordering::Relaxed));
    command.env(MARK, &mark);
    let mut child = start(command)?;
    let said = child.stdout.take().map(read);
    let complained = child.stderr.take().map(read);
    let in_time = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
        .map_err(io::Error::from)
        .and_then(|pidfd| await_end(&pidfd, Instant::now(), limit, &mut tick));
    if !matches!(in_time, Ok(true)) {
        child.kill()?;
    }
    let status = child.wait()?;
    kill_marked(&mark);
    let is_late = !in_time?;
    let words = |from: Option<Receiver<Vec<u8>>>| {
        let bytes = from.and_then(|from| from.recv_timeout(LATE).ok()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (said, complained) = (words(said), words(complained));
    Ok(if is_late {
        failed(format!("it had not ended after {} s, and was killed", limit.as_secs()), complained)
    } else {
        ended(status, said.trim_end(), complained)
    })
}

/// Starts it, on this thread: the kernel takes the end of the thread that starts a process for the
/// end of its parent.
fn start(mut command: Command) -> io::Result<Child> {
    let parent = getpid();
    // SAFETY: system calls alone, see above.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have ended just before.
            if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
        });
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// Reads a pipe to its end, on a thread of its own.
fn read(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // The bytes before an error may be a report; without one, the reason is said.
        let _ = pipe.read_to_end(&mut bytes);
        // Nobody may be there to hear it.
        let _ = send.send(bytes);
    });
    receive
}

/// Waits for the end of a process; false: the time is over.
fn await_end(pidfd: &OwnedFd, began: Instant, limit: Duration, tick: &mut impl FnMut()) -> io::Result<bool> {
    while began.elapsed() < limit {
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&TICK)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => tick(),
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

/// Kills every process with the mark, and those that these have started meanwhile.
fn kill_marked(mark: &str) {
    let mark = format!("{MARK}={mark}");
    let kill = |pid: Pid| {
        // Opened before it is checked: the number may be another process's later.
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // A process that has ended has no environment, so this comes to an end.
        let environ = std::fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).ok()?;
        let has_mark = environ.split(|&byte| byte == 0).any(|one| one == mark.as_bytes());
        has_mark.then(|| pidfd_send_signal(&pidfd, Signal::KILL).ok()).flatten()
    };
    let began = Instant::now();
    // One that the kernel does not let go may stay for ever.
    while began.elapsed() < LATE {
        let Ok(processes) = std::fs::read_dir("/proc") else { return };
        let number = |name: &std::ffi::OsStr| Pid::from_raw(name.to_str()?.parse().ok()?);
        let pids = processes.filter_map(|entry| number(&entry.ok()?.file_name()));
        if pids.filter_map(kill).count() == 0 {
            return;
        }
        std::thread::yield_now();
    }
}

fn ended(status: ExitStatus, json: &str, said: String) -> Ended {
    match serde_json::from_str::<BenchReport>(json) {
        Ok(report) => {
            let crashed = || (!is_an_answer(status)).then(|| reason(status, &said));
            let failure = report.failure().or_else(crashed);
            Ended { report: Some((report, json.to_owned())), failure, said }
        }
        Err(error) if status.success() => failed(format!("its report cannot be read: {error}"), said),
        Err(_) => failed(reason(status, &said), said),
    }
}

/// Whether a process ended of its own will: 1 is the end of a run with a wrong answer, which its
/// report has.
fn is_an_answer(status: ExitStatus) -> bool {
    matches!(status.code(), Some(0 | 1))
}

fn reason(status: ExitStatus, said: &str) -> String {
    let mut last: Vec<&str> = said
        .lines()
        .rev()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("note: "))
        .take(2)
        .collect();
    last.reverse();
    if last.is_empty() { status.to_string() } else { format!("{status}: {}", last.join(" ")) }
}

fn failed(reason: String, said: String) -> Ended {
    Ended { failure: Some(reason), said, report: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any of these takes.
    const LONG: Duration = Duration::from_secs(600);

    fn shell(script: &str) -> Ended {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, LONG, || {})
    }

    #[test]
    fn a_killed_workload_says_by_what() {
        let ended = shell("echo '{\"schema\":'; echo 'no memory' >&2; kill -KILL $$");
        assert!(ended.report.is_none());
        let reason = ended.failure.unwrap();
        assert!(reason.contains("SIGKILL") && reason.ends_with(": no memory"), "{reason}");
    }

    #[test]
    fn a_failed_program_says_its_last_words() {
        let ended = shell("echo 'panicked at x:' >&2; echo 'oh' >&2; echo 'note: run with' >&2; exit 101");
        assert_eq!(ended.failure.as_deref(), Some("exit status: 101: panicked at x: oh"));
        let silent = shell("echo no report");
        assert!(silent.failure.unwrap().starts_with("its report cannot be read: "));
    }

    #[test]
    fn a_missing_program_is_a_reason() {
        let ended = run(Command::new("/nowhere/dormouse"), LONG, || {});
        assert!(ended.failure.unwrap().starts_with("cannot run it: "));
    }

    #[test]
    fn what_a_workload_leaves_is_killed() {
        // It holds the output open, and would do so for longer than the test may take.
        let ended = shell("sleep 100000 & echo $! >&2; kill -KILL $$");
        assert!(ended.failure.unwrap().contains("SIGKILL"));
        let left = ended.said.trim().to_owned();
        let cmdline = std::fs::read_to_string(format!("/proc/{left}/cmdline")).unwrap_or_default();
        assert!(!cmdline.contains("100000"), "{left} is alive: {cmdline}");
    }

    #[test]
    fn a_workload_that_hangs_is_killed() {
        let mut command = Command::new("sleep");
        command.arg("100000");
        let mut ticks = 0;
        let ended = run(command, Duration::from_secs(1), || ticks += 1);
        assert_eq!(ended.failure.as_deref(), Some("it had not ended after 1 s, and was killed"));
        assert!(ticks > 0);
    }
}
