//! A process is profiled from outside: by its threads, with all of its time.
#![cfg(target_os = "linux")]

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::arch::{deep, sparse};
use dormouse_profile::{
    NameFinder, Options, OutsideProfiling, Profile, ProfileKind, Sample, StackEnd, StackEnds,
};
use dormouse_testkit::{StopOnDrop, eventually, in_child, process_cpu_ns, skip, spin_for, thread_cpu};

/// CPU time of each hog: some sixty samples.
const WORK: Duration = Duration::from_millis(600);

const HOGS: [&str; 2] = ["hog-a", "hog-b"];

/// The profile of a process, or the reason why there is none here.
fn start(pid: u32) -> Option<OutsideProfiling> {
    OutsideProfiling::start(pid, &Options::default())
        .inspect_err(|error| skip(format!("no profile from outside here: {error}")))
        .ok()
}

fn time_of(profile: &Profile, thread: &str) -> Duration {
    let rows = profile.samples.iter().filter(|row| profile.threads[row.thread as usize].name == thread);
    Duration::from_nanos(rows.map(|row| row.values[1]).sum())
}

#[test]
fn threads_have_their_time_and_stacks() {
    in_child(|| {
        // By the same means as another process, which has no threads whose clocks a test can read.
        let Some(mut profiling) = start(std::process::id()) else { return };
        let (profile, used) = thread::scope(|scope| {
            let hogs = HOGS.map(|name| {
                let (end, ended) = mpsc::channel::<()>();
                let work = move || {
                    spin_for(WORK);
                    ended.recv().unwrap_err();
                    thread_cpu()
                };
                (end, thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work).unwrap())
            });
            let mut profile = Profile::default();
            eventually(|| {
                assert!(profiling.pass());
                profile = profiling.read();
                HOGS.iter().all(|hog| time_of(&profile, hog) >= WORK)
            });
            (
                profile,
                hogs.map(|(end, hog)| {
                    drop(end);
                    hog.join().unwrap()
                }),
            )
        });
        for (name, used) in HOGS.iter().zip(used) {
            let seen = time_of(&profile, name);
            assert!((WORK..=used).contains(&seen), "{name}: {seen:?} of {used:?}");
        }
        let coverage = &profile.coverage;
        assert!(coverage.samples > 20 && coverage.armed >= 3, "{coverage:?}");
        // Everything is somewhere. The threads are read after the process.
        let sum: u64 = profile.samples.iter().map(|row| row.values[1]).sum();
        assert!((coverage.total..=process_cpu_ns()).contains(&sum), "{sum}: {coverage:?}");
        let stacks = || profile.samples.iter().filter(|row| row.stack > 0);
        // Root sees the kernel's functions, too.
        let is_code = |address| address >= 1 << 63 || profile.mapping(address).is_some();
        assert!(stacks().count() > 0);
        assert!(stacks().all(|row| profile.stack(row.stack).next().is_some_and(is_code)));
        // A thread that has ended keeps its time.
        profiling.pass();
        let profile = profiling.read();
        let kept = HOGS.map(|hog| time_of(&profile, hog));
        assert!(kept.iter().all(|&kept| kept >= WORK), "{kept:?} {:?}", profile.threads);
    });
}

#[test]
fn stacks_deeper_than_the_kernel_follows_say_so() {
    in_child(|| {
        let said = std::fs::read_to_string("/proc/sys/kernel/perf_event_max_stack").unwrap();
        let most: usize = said.trim().parse().unwrap();
        let Some(mut profiling) = start(std::process::id()) else { return };
        let mut profile = Profile::default();
        eventually(|| {
            // More than the kernel copies, too.
            // SAFETY: two words of stack for each call.
            unsafe { deep(most + 8_000, 100_000_000) };
            assert!(profiling.pass());
            profile = profiling.read();
            profile.coverage.cut > 5
        });
        let symbols = NameFinder::own().unwrap().symbols(&profile);
        let is_cut = |row: &&Sample| {
            let outermost = profile.stack(row.stack).last();
            outermost.is_some_and(|address| {
                symbols.get(address).iter().any(|frame| frame.function.starts_with("(deeper than "))
            })
        };
        let cut: u64 = profile.samples.iter().filter(is_cut).map(|row| row.values[0]).sum();
        assert_eq!(cut, profile.coverage.cut, "{:?}", profile.coverage);
    });
}

#[test]
fn an_unused_page_ends_the_stacks_copy() {
    in_child(|| {
        let Some(mut profiling) = start(std::process::id()) else { return };
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // The pages of a new stack are unused.
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // SAFETY: less stack than a thread has.
                    unsafe { sparse(1_000_000) };
                }
            });
            let _over = StopOnDrop(&is_over);
            eventually(|| {
                assert!(profiling.pass());
                let ends = StackEnds::of(&profiling.read());
                ends.others.iter().any(|of| of.why == StackEnd::Unused && of.stacks > 5)
            });
        });
    });
}

#[test]
fn a_profile_that_cannot_be_says_why() {
    let nobody = OutsideProfiling::start(u32::MAX >> 4, &Options::default());
    assert!(nobody.unwrap_err().to_string().contains("268435455"));
    let mut options = Options::default();
    options.kind = ProfileKind::Alloc;
    let error = OutsideProfiling::start(std::process::id(), &options).unwrap_err();
    assert!(error.to_string().contains("alloc"), "{error}");
}

#[test]
fn it_ends_with_its_process() {
    let mut sleeper = Command::new("sleep").arg("1000").spawn().unwrap();
    // Before it executes the program it is another one.
    let program = format!("/proc/{}/exe", sleeper.id());
    let own = std::env::current_exe().unwrap();
    eventually(|| std::fs::read_link(&program).is_ok_and(|program| program != own));
    let profiling = start(sleeper.id());
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let Some(mut profiling) = profiling else { return };
    assert!(!profiling.pass());
    assert_eq!(profiling.read().pid, sleeper.id());
}
