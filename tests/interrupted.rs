//! Ctrl-C at the worst moment: while the service answers the request with which a verb begins.
//!
//! This program is the target of the command, and a go-between: it passes everything on to a
//! service, but interrupts the command before it passes that request on. So the signal always comes
//! before the answer.

use std::io::{self, BufRead as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal, kill_process};

use crate::half_dead::against;
use crate::support::{Run, run};
use crate::tasks::TaskService;

/// Runs a verb on the service, and interrupts it when it asks for `op`.
fn interrupted(service: &TaskService, args: &[&str], op: &'static str) -> Run {
    let (socket, wanted) = (service.socket(), format!("\"op\":\"{op}\""));
    against(args, move |client| {
        let mut agent = UnixStream::connect(&socket).expect("a listening agent");
        let command = socket_peercred(client.get_ref()).expect("a client").pid;
        let mut answers = agent.try_clone().expect("a descriptor");
        let mut to = client.get_ref().try_clone().expect("a descriptor");
        // It ends with either side.
        let back = thread::spawn(move || io::copy(&mut answers, &mut to));
        let (mut line, mut is_done) = (String::new(), false);
        while matches!(client.read_line(&mut line), Ok(1..)) {
            if !is_done && line.contains(&wanted) {
                is_done = true;
                twice(command);
            }
            let _ = agent.write_all(line.as_bytes());
            line.clear();
        }
        assert!(is_done, "it never asked for {op}");
        let _ = agent.shutdown(Shutdown::Both);
        let _ = back.join();
    })
}

/// Interrupts a process, and at once once more, as `timeout` does by the process and its group.
fn twice(command: Pid) {
    let begun = Instant::now();
    let interrupt = || kill_process(command, Signal::INT).expect("a command that runs");
    interrupt();
    let status = format!("/proc/{command}/status");
    dormouse_testkit::eventually(|| {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
        pending.is_none_or(|mask| u64::from_str_radix(mask.trim(), 16) == Ok(0))
    });
    // Later it would be another one.
    if begun.elapsed() < Duration::from_millis(50) {
        let _ = kill_process(command, Signal::INT);
    }
}

/// Those that are on of the keys that a verb may switch.
fn on(service: &TaskService) -> usize {
    let keys = run(["--json", "keys", &service.target(), "dormouse.waits,dormouse.task"]).json();
    keys["keys"].as_array().expect("keys").iter().filter(|key| key["on"] == true).count()
}

#[test]
fn ctrl_c_while_a_verb_begins_ends_it() {
    let service = TaskService::start(1, false);
    for (line, op, codes, data) in [
        // No task may be known yet.
        ("tasks {} --for 10m --json", "waits", &[0, 1][..], "\"taken_ns\""),
        ("tasks {} --long-poll 10m", "long-polls", &[1], ""),
        ("top {} --plain -w -i 10m", "waits", &[0], ""),
        ("top {} --plain -i 10m", "stat", &[0], ""),
        ("stat {} --waits --for 10m --json", "waits", &[0], "\"groups\""),
        ("stat {} --for 10m --json", "stat", &[0], "\"groups\""),
        ("trace {} dormouse.task --for 10m --json", "trace", &[0], "\"end\""),
        ("on {} dormouse.task --json", "on", &[0], "dormouse.task"),
        ("profile {} --for 10m --json", "profile", &[0, 1], "\"duration_ns\""),
        ("experiment {} dormouse.task --json", "on", &[0], "\"asked\""),
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let run = interrupted(&service, &args, op);
        assert!(run.code.is_some_and(|code| codes.contains(&code)), "{line}: {run:?}");
        assert!(run.stdout.contains(data), "{line}: {run:?}");
        dormouse_testkit::eventually(|| on(&service) == 0);
    }
}
