//! An agent that nobody asks anything costs no wake-up, before its first client and after its last.
//!
//! The window is 2 s, and 10 s in a long run.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dormouse_testkit::{HANG, in_child, short_or_long};

/// How often each thread but the calling one has begun to run: by id and name.
fn switches() -> BTreeMap<(i32, String), u64> {
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let others = tasks.filter_map(|task| {
        let id = task.file_name().to_str()?.parse().ok().filter(|&id| id != own)?;
        // A thread may end meanwhile.
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let lines = status.lines().filter(|line| line.contains("voluntary_ctxt_switches:"));
        let count = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum();
        let name = status.lines().next()?.split_whitespace().nth(1)?.to_owned();
        Some(((id, name), count))
    });
    others.collect()
}

/// Waits until no thread has run for a quarter of a second: what was begun is done then.
fn await_rest() -> BTreeMap<(i32, String), u64> {
    let start = Instant::now();
    loop {
        let before = switches();
        std::thread::sleep(Duration::from_millis(250));
        let after = switches();
        if before == after {
            return after;
        }
        assert!(start.elapsed() < HANG, "{after:?}");
    }
}

/// Asserts that no thread but this one runs within the window.
fn assert_rests() {
    let before = await_rest();
    assert!(before.keys().any(|(_, name)| name == "dormouse"), "the agent's thread: {before:?}");
    std::thread::sleep(Duration::from_secs(short_or_long(2, 10)));
    // A thread that has ended was none of those that wait for clients, and had nothing to do.
    for (thread, count) in switches() {
        // Once a minute this one looks whether its sockets are still its own.
        let may_look = u64::from(thread.1 == "dormouse-door");
        let is_same = before.get(&thread).is_some_and(|before| count <= before + may_look);
        assert!(is_same, "{thread:?} has run: {count} after {:?}", before.get(&thread));
    }
}

/// A client that has this done, and goes when its first answer is here.
fn visit(socket: &Path, request: &str) {
    let mut stream = BufReader::new(UnixStream::connect(socket).unwrap());
    stream.get_ref().set_read_timeout(Some(HANG)).unwrap();
    let hello = r#"{"v":1,"id":1,"op":"hello","client":"a test"}"#;
    write!(stream.get_mut(), "{hello}\n{request}\n").unwrap();
    for id in 1..=2 {
        let mut answer = String::new();
        stream.read_line(&mut answer).unwrap();
        assert!(answer.contains(&format!("\"id\":{id},\"ok\"")), "{request}: {answer}");
    }
}

/// A field of a `status` file, as a mask of signals.
fn mask(status: &str, field: &str) -> u64 {
    let text = std::fs::read_to_string(status).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

#[test]
fn four_threads_take_no_signal() {
    in_child(|| {
        let place = tempfile::tempdir().unwrap();
        // SAFETY: the child has one thread.
        #[expect(unsafe_code, reason = "only so an agent is told where its socket goes")]
        unsafe {
            std::env::set_var("DORMOUSE_RUNTIME_DIR", place.path());
        }
        let caught = || mask("/proc/self/status", "SigCgt:");
        let (before, caught_before) = (switches(), caught());
        let _agent = dormouse::init().unwrap();
        dormouse::Group::new("work").scope(|| dormouse::probe!("work.begun"));
        assert_eq!(caught(), caught_before, "no handler");
        let threads = switches().into_keys().filter(|thread| !before.contains_key(thread));
        let threads: Vec<_> = threads.collect();
        assert_eq!(threads.len(), 4, "the agent, its door and two timers: {threads:?}");
        // The kernel lets nobody block these two, and the C library keeps its own two open.
        let own = [libc::SIGKILL, libc::SIGSTOP, 32, 33];
        let open = own.into_iter().chain(dormouse_sys::signals::SYNCHRONOUS);
        let others = !open.fold(0_u64, |set, signal| set | 1 << (signal - 1));
        for (thread, name) in threads {
            let blocked = mask(&format!("/proc/self/task/{thread}/status"), "SigBlk:");
            assert_eq!(blocked & others, others, "{name}: {blocked:x}");
        }
    });
}

/// The descriptors of this process: their numbers, and what is open there.
fn descriptors() -> BTreeMap<u32, PathBuf> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let all = entries.filter_map(|entry| {
        let opened = std::fs::read_link(entry.path()).ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, opened))
    });
    // But for the directory that is read here.
    all.filter(|(_, opened)| !opened.ends_with("fd")).collect()
}

#[test]
fn init_opens_two_files_and_keeps_them() {
    in_child(|| {
        let place = tempfile::tempdir().unwrap();
        // SAFETY: the child has one thread.
        #[expect(unsafe_code, reason = "only so an agent is told where its socket goes")]
        unsafe {
            std::env::set_var("DORMOUSE_RUNTIME_DIR", place.path());
        }
        let before = descriptors();
        let agent = dormouse::init().unwrap();
        visit(agent.path(), r#"{"v":1,"id":2,"op":"stat"}"#);
        let mut after = descriptors();
        for (number, opened) in &before {
            assert_eq!(after.remove(number).as_ref(), Some(opened), "{number} is the host's");
        }
        let is_of_a_thread =
            |path: &PathBuf| path.starts_with("/proc") && path.iter().any(|part| part == "task");
        assert!(after.values().all(is_of_a_thread), "{after:?}");
        let mut names: Vec<_> = after.values().filter_map(|path| path.file_name()?.to_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["maps", "mem"], "{after:?}");
        for number in after.keys() {
            let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap();
            let flags = about.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
            let flags = i32::from_str_radix(flags, 8).unwrap();
            assert!(flags & libc::O_CLOEXEC != 0, "{about}");
        }
    });
}

/// The system call in which a thread sleeps: its number and its arguments.
fn call(thread: i32) -> Vec<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap();
    let (number, arguments) = text.split_once(' ').unwrap_or_else(|| panic!("it does not sleep: {text}"));
    let arguments = arguments.split_whitespace().map(|word| word.trim_start_matches("0x"));
    let arguments = arguments.map(|digits| u64::from_str_radix(digits, 16).unwrap());
    std::iter::once(number.parse().unwrap()).chain(arguments).collect()
}

/// Asserts that no thread of dormouse's but the agent and its door wakes by itself.
fn assert_no_timeouts() {
    let own =
        switches().into_keys().filter(|(_, name)| name.starts_with("dormouse-") && name != "dormouse-door");
    let own: Vec<_> = own.collect();
    assert!(own.len() >= 2, "the two timers: {own:?}");
    for (thread, name) in own {
        let call = call(thread);
        // futex(word, operation, value, timeout, …)
        assert_eq!((call[0].cast_signed(), call[4]), (libc::SYS_futex, 0), "{name}: {call:x?}");
    }
}

#[test]
fn a_trigger_on_panics_wakes_nobody() {
    in_child(|| {
        let nowhere = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        let place = tempfile::tempdir().unwrap();
        // SAFETY: the child has one thread, and its standard error is replaced on purpose.
        #[expect(unsafe_code, reason = "a pipe at standard error would be looked at each second")]
        unsafe {
            assert!(libc::dup2(nowhere.as_raw_fd(), libc::STDERR_FILENO) >= 0);
            std::env::set_var("DORMOUSE_RUNTIME_DIR", place.path());
            std::env::set_var("DORMOUSE_RECORD_DIR", place.path());
        }
        let _agent = dormouse::init().unwrap();
        let _trigger = dormouse::triggers::add("panic").unwrap();
        assert!(await_rest().keys().any(|(_, name)| name == "dormouse-look"));
        assert_no_timeouts();
    });
}

#[test]
fn an_idle_agent_wakes_nobody() {
    in_child(|| {
        let place = tempfile::tempdir().unwrap();
        // SAFETY: the child has one thread.
        #[expect(unsafe_code, reason = "only so an agent is told where its socket goes")]
        unsafe {
            std::env::set_var("DORMOUSE_RUNTIME_DIR", place.path());
        }
        let agent = dormouse::init().unwrap();
        let group = dormouse::Group::new("work");
        group.scope(|| dormouse::probe!("work.done", count = 1));
        assert_rests();
        assert_no_timeouts();
        for request in [
            r#"{"v":1,"id":2,"op":"on","glob":"work.*","for_ms":200}"#,
            r#"{"v":1,"id":2,"op":"stat"}"#,
            r#"{"v":1,"id":2,"op":"count","events":["task-clock"]}"#,
            r#"{"v":1,"id":2,"op":"trace","glob":"work.*"}"#,
            r#"{"v":1,"id":2,"op":"waits"}"#,
            r#"{"v":1,"id":2,"op":"tasks"}"#,
            r#"{"v":1,"id":2,"op":"long-polls","threshold_us":10000}"#,
            r#"{"v":1,"id":2,"op":"profile","kind":"cpu"}"#,
        ] {
            visit(agent.path(), request);
        }
        assert_rests();
        assert_no_timeouts();
    });
}
