//! Handlers that a host has for forks, and that use keys, wherever theirs stand among ours.
#![cfg(all(target_os = "linux", not(miri)))]
#![allow(unsafe_code)]

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use dormouse_keys::{Error, Lease, list, static_key, try_all, try_list, unlikely};

static_key! {
    static KEY: "handler.key" = false;
}

/// The request to a program: when it registers its handlers, and which of them uses keys.
const ASKED: &str = "DORMOUSE_TEST_HANDLERS";

const WHEN: [&str; 3] = ["before any of ours", "before the first batch", "after the first batch"];
const SIDES: [&str; 3] = ["before", "in the parent", "in the child"];

/// Seconds after which a process that waits for itself is ended.
const PATIENCE: u32 = 20;

/// The results of the handlers' calls: how many were done, and how many refused as from inside a
/// fork.
static DONE: AtomicU32 = AtomicU32::new(0);
static REFUSED: AtomicU32 = AtomicU32::new(0);

fn count<T>(done: &Result<T, Error>) {
    match done {
        Ok(_) => DONE.fetch_add(1, Ordering::Relaxed),
        Err(Error::Reentrant) => REFUSED.fetch_add(1, Ordering::Relaxed),
        Err(_) => 0,
    };
}

const CALLS: u32 = 5;

/// The number of sites of the key.
fn sites() -> Vec<usize> {
    let all = list(|used| (used.key.name() == KEY.name()).then_some(used.sites));
    all.into_iter().flatten().collect()
}

extern "C" fn use_keys() {
    // SAFETY: no preconditions. A child inherits no alarm.
    unsafe { libc::alarm(PATIENCE) };
    count(&KEY.enable());
    count(&try_list(|used| used.sites));
    count(&Lease::of([KEY.key()]));
    count(&try_all());
    count(&KEY.disable());
}

fn register(side: &str) {
    let handler = |of| (side == of).then_some(use_keys as extern "C" fn());
    let [before, in_parent, in_child] = SIDES.map(|of| handler(of).map(|f| f as unsafe extern "C" fn()));
    // SAFETY: plain functions of the executable.
    assert_eq!(unsafe { libc::pthread_atfork(before, in_parent, in_child) }, 0);
}

fn asked() -> Option<(usize, usize)> {
    let asked = std::env::var(ASKED).ok()?;
    let (when, side) = asked.split_once('/')?;
    Some((when.parse().ok()?, side.parse().ok()?))
}

/// Before the constructors of the library.
#[used]
#[unsafe(link_section = ".init_array.00001")]
static EARLY: extern "C" fn() = {
    extern "C" fn constructor() {
        if let Some((0, side)) = asked() {
            register(SIDES[side]);
        }
    }
    constructor
};

/// The work of such a program.
fn fork_with_handlers(when: usize, side: usize) {
    assert!(!unlikely!(KEY));
    if when == 1 {
        register(SIDES[side]);
    }
    KEY.enable().unwrap();
    if when == 2 {
        register(SIDES[side]);
    }
    let status = dormouse_testkit::fork(|| {
        check(when, side != 1);
        // And after it all.
        KEY.enable().unwrap();
        assert!(unlikely!(KEY));
        KEY.disable().unwrap();
        assert!(!unlikely!(KEY) && sites() == [4]);
    });
    assert!(status.success(), "the child: {status}");
    check(when, side != 2);
    KEY.disable().unwrap();
    assert!(!unlikely!(KEY));
}

fn check(when: usize, has_run: bool) {
    let counts = (DONE.load(Ordering::Relaxed), REFUSED.load(Ordering::Relaxed));
    let expected = match (has_run, when) {
        (false, _) => (0, 0),
        // The fork has the locks then.
        (true, 0) => (0, CALLS),
        (true, _) => (CALLS, 0),
    };
    assert_eq!(counts, expected, "done, refused");
}

#[test]
fn handlers_of_hosts_use_keys_around_forks() {
    if let Some((when, side)) = asked() {
        // SAFETY: no preconditions.
        unsafe { libc::alarm(PATIENCE) };
        return fork_with_handlers(when, side);
    }
    let mut wrong = Vec::new();
    for (when, registered) in WHEN.iter().enumerate() {
        for (side, runs) in SIDES.iter().enumerate() {
            let output = Command::new(std::env::current_exe().unwrap())
                .args([
                    "fork_handlers::handlers_of_hosts_use_keys_around_forks",
                    "--exact",
                    "--nocapture",
                    "--test-threads=1",
                ])
                .env(ASKED, format!("{when}/{side}"))
                .output()
                .unwrap();
            if !output.status.success() {
                let hangs = output.status.signal() == Some(libc::SIGALRM);
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                let how = if hangs { "it hangs".to_owned() } else { format!("{}: {said}", output.status) };
                wrong.push(format!("registered {registered}, run {runs}: {how}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
