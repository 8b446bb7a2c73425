//! Children of tests: the name of the test, what fails, and what is passed on.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

use std::os::unix::process::ExitStatusExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use dormouse_testkit::{Answer, Child, Filter, fork, in_child, skip, spin_for, thread_cpu};

fn parent() -> u32 {
    std::os::unix::process::parent_id()
}

/// Why this panics.
fn failure(body: impl FnOnce()) -> String {
    *catch_unwind(AssertUnwindSafe(body)).unwrap_err().downcast::<String>().unwrap()
}

mod nested {
    use super::in_child;

    #[test]
    fn child_runs_body_of_nested_test() {
        in_child(|| assert_eq!(std::process::id(), super::only_id()));
    }

    #[test]
    #[ignore = "run by another test"]
    fn ignored_test_has_child_too() {
        in_child(|| {});
    }
}

/// The process's id, if its only test is the one that runs.
fn only_id() -> u32 {
    assert!(std::env::args().any(|argument| argument == "--exact"));
    std::process::id()
}

/// Runs tests of this program on its main thread.
fn on_main_thread(test: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--include-ignored", "--test-threads=1"])
        .output()
        .unwrap()
}

#[test]
fn main_thread_finds_the_name_of_its_test() {
    for test in ["nested::child_runs_body_of_nested_test", "nested::ignored_test_has_child_too"] {
        let output = on_main_thread(test);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}

#[test]
fn a_failure_in_the_child_fails_the_test() {
    let said = failure(|| in_child(|| panic!("the child's reason")));
    assert!(said.contains("the child's reason"), "{said}");
}

#[test]
fn child_without_a_test_is_a_failure() {
    let nameless = std::thread::Builder::new().name("no test".into());
    let ended = nameless.spawn(|| failure(|| in_child(|| {}))).unwrap();
    assert!(ended.join().unwrap().contains("running 0 tests"));
}

#[test]
fn each_environment_has_its_child() {
    let environments: [&[_]; 2] = [&[("ONE", "1")], &[("TWO", "2")]];
    Child::new().with_each(&environments).run(|| {
        assert_ne!(std::env::var_os("ONE").is_some(), std::env::var_os("TWO").is_some());
    });
}

#[test]
fn two_children_of_one_test_run_their_bodies() {
    let id = std::process::id().to_string();
    // Set by the parent alone: its children inherit it.
    let first: &[(&str, &str)] = &[("FIRST", &id)];
    Child::new().with_each(&[first]).run(|| assert_eq!(std::env::var("FIRST"), Ok(parent().to_string())));
    let second: &[(&str, &str)] = &[("SECOND", &id)];
    Child::new().with_each(&[second]).run(|| assert_eq!(std::env::var("SECOND"), Ok(parent().to_string())));
}

#[test]
fn child_of_a_child_is_refused() {
    in_child(|| {
        let said = failure(|| in_child(|| {}));
        assert!(said.contains("has no child"), "{said}");
    });
}

#[test]
fn limit_kills_the_whole_group() {
    let start = Instant::now();
    let said = failure(|| {
        Child::new().limit(Duration::from_millis(200)).run(|| {
            // SAFETY: two processes that sleep.
            unsafe { libc::fork() };
            std::thread::sleep(Duration::from_secs(60));
        });
    });
    assert!(said.contains("killed after 200ms"), "{said}");
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn expected_signal_is_the_only_good_end() {
    // SAFETY: this process's own end.
    let abort = || unsafe { libc::abort() };
    Child::new().dies_of(libc::SIGABRT).run(abort);
    failure(|| Child::new().dies_of(libc::SIGKILL).run(abort));
    failure(|| Child::new().dies_of(libc::SIGKILL).run(|| {}));
}

#[test]
#[ignore = "run by another test"]
fn skips_in_a_child() {
    in_child(|| skip("no reason"));
}

#[test]
fn skips_are_seen_though_tests_pass() {
    let output = on_main_thread("skips_in_a_child");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.starts_with("skipped: no reason (") && said.contains("children.rs:"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn filters_refuse_and_kill() {
    in_child(|| {
        // SAFETY: asks and changes nothing.
        let get = |call| unsafe { libc::syscall(call, 0, 0b110, 0) };
        assert!(get(libc::SYS_getpriority) >= 0);
        Filter::refuse(&[libc::SYS_getpriority]).install();
        assert_eq!(get(libc::SYS_getpriority), -1);
        let why = std::io::Error::last_os_error().raw_os_error();
        assert_eq!(why, Some(libc::EPERM));
        let only = Filter::answer(Answer::Errno(libc::EXDEV), &[]).and_where(
            libc::SYS_getpgid,
            1,
            0b011,
            &[0b001, 0b010],
        );
        only.install_on_all_threads();
        assert_eq!(get(libc::SYS_getpgid), -1, "0b110 has 0b010 in the bits 0b011");
        // SAFETY: as above.
        assert!(unsafe { libc::syscall(libc::SYS_getpgid, 0, 0b100, 0) } > 0);
        let killed = fork(|| {
            Filter::kill(&[libc::SYS_getsid]).install();
            get(libc::SYS_getsid);
        });
        assert_eq!(killed.signal(), Some(libc::SIGSYS));
        let killed = fork(|| {
            Filter::kill_all_but(&[libc::SYS_exit_group]).install();
            get(libc::SYS_getsid);
        });
        assert_eq!(killed.signal(), Some(libc::SIGSYS));
    });
}

#[test]
fn forks_tell_how_they_end() {
    in_child(|| {
        assert!(fork(|| {}).success());
        assert_eq!(fork(|| panic!("for the test")).code(), Some(101));
    });
}

#[test]
fn spin_uses_cpu_time() {
    let before = thread_cpu();
    spin_for(Duration::from_millis(3));
    assert!(thread_cpu() >= before + Duration::from_millis(3));
}
