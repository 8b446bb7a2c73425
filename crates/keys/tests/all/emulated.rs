//! Switches under emulators, which run translations of code, and need not notice a write.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use dormouse_keys::{static_key, unlikely};
use dormouse_testkit::skip;

static_key! {
    static KEY: "emulated.key" = false;
}

/// The variable of a test's own run under an emulator.
const INSIDE: &str = "DORMOUSE_TEST_EMULATED";

#[inline(never)]
extern "C" fn site() -> bool {
    unlikely!(KEY)
}

/// Has the site been switched, it has to act, also on a thread that has run it before.
fn switch() {
    static SEEN: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
    static OVER: AtomicBool = AtomicBool::new(false);
    let other = std::thread::spawn(|| {
        while !OVER.load(Ordering::Relaxed) {
            SEEN[usize::from(site())].fetch_add(1, Ordering::Relaxed);
        }
    });
    let runs = || {
        // It may be in the midst of a run now.
        let seen = SEEN.each_ref().map(|seen| seen.load(Ordering::Relaxed));
        while SEEN.iter().zip(seen).map(|(now, then)| now.load(Ordering::Relaxed) - then).sum::<u32>() < 2 {
            std::thread::yield_now();
        }
        let seen = SEEN.each_ref().map(|seen| seen.load(Ordering::Relaxed));
        while SEEN.iter().zip(seen).all(|(now, then)| now.load(Ordering::Relaxed) == then) {
            std::thread::yield_now();
        }
        SEEN.each_ref().map(|seen| seen.load(Ordering::Relaxed)).iter().zip(seen).position(|(a, b)| *a != b)
    };
    assert_eq!((site(), runs()), (false, Some(0)));
    for _ in 0..3 {
        match KEY.enable() {
            Ok(report) => {
                assert_eq!(report.sites, 1);
                assert_eq!((site(), runs()), (true, Some(1)));
                KEY.disable().unwrap();
            }
            Err(error) => println!("refused: {error}"),
        }
        assert_eq!((site(), runs()), (false, Some(0)));
    }
    OVER.store(true, Ordering::Relaxed);
    other.join().unwrap();
}

/// Runs a test of this program under an emulator; whether it can switch there.
fn under(emulator: &[&str], test: &str) -> Option<bool> {
    if std::env::var_os(INSIDE).is_some() {
        switch();
        return None;
    }
    if Command::new(emulator[0]).arg("--version").output().is_err() {
        skip(format_args!("{} is not installed", emulator[0]));
        return None;
    }
    let mut command = Command::new(emulator[0]);
    command.args(&emulator[1..]).arg(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let all = || format!("{}\n{said}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{}", all());
    assert_eq!(said.contains("refused: "), said.contains("takes no effect here"), "{}", all());
    Some(!said.contains("refused: "))
}

/// It notices `mprotect`.
#[test]
fn switches_act_under_qemu() {
    assert_ne!(under(&["qemu-x86_64"], "emulated::switches_act_under_qemu"), Some(false));
}

/// It notices nothing.
#[test]
fn switches_under_valgrind_are_refused() {
    let test = "emulated::switches_under_valgrind_are_refused";
    assert_ne!(under(&["valgrind", "--tool=none"], test), Some(true));
}
