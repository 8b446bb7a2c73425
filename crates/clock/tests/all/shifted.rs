//! A preloaded library that answers `clock_gettime` with another day, as libfaketime does.

use std::process::Command;

use dormouse_clock::{prepare, process_cpu_ns, process_cpu_ns_of, thread_cpu_ns_of, thread_cpu_time};

/// Shifts CPU clocks and `CLOCK_MONOTONIC` by a day, by the system call below.
const SOURCE: &str = "
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    int answer = syscall(SYS_clock_gettime, clock, time);
    time->tv_sec += 86400;
    return answer;
}
";

const DAY: u64 = 86_400_000_000_000;
const IS_CHILD: &str = "DORMOUSE_TEST_SHIFTED";

#[test]
fn a_library_that_shifts_clocks_is_not_asked() {
    if std::env::var_os(IS_CHILD).is_some() {
        return child();
    }
    let folder = std::env::temp_dir().join(format!("dormouse-shifted-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, library) = (folder.join("shift.c"), folder.join("shift.so"));
    std::fs::write(&source, SOURCE).unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    let Ok(compiled) = compiled else { return dormouse_testkit::skip("no compiler of C") };
    assert!(compiled.success());
    let own = std::env::current_exe().unwrap();
    let ran = Command::new(own)
        .args(["--exact", "shifted::a_library_that_shifts_clocks_is_not_asked"])
        .env("LD_PRELOAD", &library)
        .env(IS_CHILD, "1")
        .output()
        .unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

fn child() {
    // The preloaded library answers this.
    let asked = library_says();
    prepare();
    assert!(dormouse_sys::clock::is_shifted(), "{asked}");
    let tid = dormouse_sys::process::identity::tid();
    let cpu = [
        thread_cpu_time().ns,
        thread_cpu_ns_of(tid).unwrap(),
        process_cpu_ns(),
        process_cpu_ns_of(std::process::id()).unwrap(),
    ];
    assert!(cpu.iter().all(|&ns| ns < DAY), "{cpu:?}");
    let kernel = dormouse_sys::clock::ask(libc::CLOCK_MONOTONIC).unwrap();
    let ours = dormouse_sys::clock::ask_library(libc::CLOCK_MONOTONIC).unwrap();
    assert!(asked > kernel && ours - kernel < DAY, "{asked} {kernel} {ours}");
}

/// The library's answer, a day too late.
#[allow(clippy::disallowed_methods, reason = "what others are told")]
fn library_says() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    #[allow(unsafe_code, reason = "a valid place")]
    // SAFETY: a valid place.
    unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time);
    }
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
