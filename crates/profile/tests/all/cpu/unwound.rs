//! Stacks of code without frame pointers.

use std::cell::Cell;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dormouse_profile::{NameFinder, Options, Profile, Profiling};
use dormouse_testkit::{eventually, in_child, skip, thread_cpu};

use crate::arch::{STRANGERS, bare_11, strangers};

use super::hogs::{beside, caller, hog, leaf, options, weight_in};

/// Functions of the chain.
const CHAIN: usize = 12;

thread_local! {
    static WORK: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Uses the time that the thread wants, in the chain.
extern "C" fn compare(_: *const libc::c_void, _: *const libc::c_void) -> libc::c_int {
    let end = thread_cpu() + WORK.take();
    while thread_cpu() < end {
        // SAFETY: counts down.
        unsafe { bare_11(1_000_000) };
    }
    0
}

/// Uses this time on a thread of its own, below a function of the C library.
pub(crate) fn below_qsort(work: Duration) {
    let run = move || {
        // So that it is sampled at once.
        dormouse_sys::thread::current();
        WORK.set(work);
        let mut two = [1_u8, 2];
        // SAFETY: two elements of a byte.
        unsafe { libc::qsort(two.as_mut_ptr().cast(), 2, 1, Some(compare)) };
    };
    thread::Builder::new().name("bare".into()).spawn(run).unwrap().join().unwrap();
}

pub(crate) fn unwound(hz: u32) -> Options {
    let mut options = options(hz);
    options.unwind = true;
    options
}

/// The names of the frames of each stack of the thread, and the weight.
pub(crate) fn stacks(profile: &Profile) -> Vec<(Vec<String>, u64)> {
    let symbols = NameFinder::own().unwrap().symbols(profile);
    let names = |address: u64| {
        let frames = symbols.get(address);
        frames.iter().map(|frame| frame.function.clone()).collect::<Vec<_>>()
    };
    let rows = profile.samples.iter().filter(|row| profile.threads[row.thread as usize].name == "bare");
    rows.map(|row| (profile.stack(row.stack).flat_map(names).collect(), row.values[1])).collect()
}

/// The weight of the stacks that have all of the chain, its callers, and the start of the thread.
pub(crate) fn whole(stacks: &[(Vec<String>, u64)]) -> u64 {
    let chain: Vec<_> = (0..CHAIN).map(|n| format!("bare_{n:02}")).collect();
    let is_whole = |stack: &&(Vec<String>, u64)| {
        let mut outer = stack.0.iter();
        let mut has = |part: &str| outer.any(|name| name.contains(part));
        stack.0.starts_with(&chain)
            && ["compare", "qsort", "below_qsort", "thread_start"].into_iter().all(&mut has)
    };
    stacks.iter().filter(is_whole).map(|stack| stack.1).sum()
}

#[test]
fn bare_callers_come_whole() {
    in_child(|| {
        const TIME: Duration = Duration::from_millis(700);
        // The option of earlier versions changes nothing.
        let (plain, with) =
            (Profiling::start(&options(250)).unwrap(), Profiling::start(&unwound(250)).unwrap());
        below_qsort(TIME);
        for profile in [plain.read(), with.read()] {
            let found = stacks(&profile);
            assert!(whole(&found) * 10 > TIME.as_nanos() as u64 * 8, "{found:#?}");
            let coverage = &profile.coverage;
            assert!(coverage.ended * 10 >= coverage.samples * 9 && coverage.uncopied == 0, "{coverage:?}");
        }
    });
}

#[test]
fn stacks_with_frame_pointers_stay_whole() {
    in_child(|| {
        let profiling = Profiling::start(&unwound(250)).unwrap();
        let time = Duration::from_millis(500);
        let run = move || {
            // So that it is sampled at once.
            dormouse_sys::thread::current();
            // Its functions have no tables.
            hog(time);
        };
        thread::spawn(run).join().unwrap();
        let profile = profiling.read();
        let found = weight_in(&profile, &[leaf(), caller()]);
        assert!(found * 10 > time.as_nanos() as u64 * 8, "{found}: {profile:#?}");
    });
}

#[test]
fn stacks_longer_than_a_copy_become_whole() {
    #[inline(never)]
    fn deep(calls: u32, work: Duration) {
        let room = std::hint::black_box([0_u8; 8 * 1024]);
        if calls > 0 {
            deep(calls - 1, work);
        } else {
            WORK.set(work);
            compare(std::ptr::null(), std::ptr::null());
        }
        std::hint::black_box(&room);
    }
    in_child(|| {
        let is_deep = |stack: &(Vec<String>, u64)| {
            stack.0.iter().any(|name| name == "bare_11")
                && stack.0.iter().any(|name| name.contains("thread_start"))
        };
        // Functions that lie beyond a copy are learned one at a sample, and stay known.
        eventually(|| {
            let profiling = Profiling::start(&unwound(250)).unwrap();
            let run = || {
                // So that it is sampled at once.
                dormouse_sys::thread::current();
                deep(8, Duration::from_millis(500));
            };
            thread::Builder::new().name("bare".into()).spawn(run).unwrap().join().unwrap();
            let profile = profiling.read();
            let coverage = &profile.coverage;
            coverage.ended * 10 > coverage.samples * 7 && stacks(&profile).iter().any(is_deep)
        });
    });
}

#[test]
fn caught_panics_have_their_callers() {
    #[inline(never)]
    fn panics_below(calls: u32) -> u32 {
        if calls == 0 {
            resume_unwind(Box::new(7_u32));
        }
        std::hint::black_box(panics_below(calls - 1)) + 1
    }
    #[inline(never)]
    fn catches() {
        let caught = catch_unwind(|| panics_below(20)).unwrap_err();
        assert_eq!(caught.downcast_ref(), Some(&7_u32));
    }
    in_child(|| {
        let profiling = Profiling::start(&options(250)).unwrap();
        let run = || {
            // So that it is sampled at once.
            dormouse_sys::thread::current();
            let end = thread_cpu() + Duration::from_millis(1500);
            while thread_cpu() < end {
                // To read the clock is a system call.
                (0..20).for_each(|_| catches());
            }
        };
        thread::Builder::new().name("bare".into()).spawn(run).unwrap().join().unwrap();
        let found = stacks(&profiling.read());
        let all: u64 = found.iter().map(|stack| stack.1).sum();
        let is_right = |stack: &&(Vec<String>, u64)| {
            let mut outer = stack.0.iter();
            ["catches", "thread_start"].iter().all(|part| outer.any(|name| name.contains(part)))
        };
        let right: u64 = found.iter().filter(is_right).map(|stack| stack.1).sum();
        // The rest is of the thread's beginning and of its own looks at the clock.
        assert!(all > 0 && right * 100 >= all * 95, "{right} of {all}: {found:#?}");
    });
}

#[test]
fn profiles_begin_and_end_to_unwind() {
    in_child(|| {
        let plain = Profiling::start(&options(1000)).unwrap();
        beside(2, || {
            for _ in 0..10 {
                let profiling = Profiling::start(&unwound(1000)).unwrap();
                // A busy machine may take no sample in a few turns of the thread.
                eventually(|| {
                    below_qsort(Duration::from_millis(60));
                    whole(&stacks(&profiling.read())) > 0
                });
            }
        });
        assert!(weight_in(&plain.read(), &[leaf(), caller()]) > 0);
    });
}

#[test]
fn a_child_unwinds_by_itself() {
    in_child(|| {
        let profiling = Profiling::start(&unwound(250)).unwrap();
        let child = dormouse_testkit::fork(|| {
            let own = Profiling::start(&unwound(250)).unwrap();
            below_qsort(Duration::from_millis(300));
            let found = stacks(&own.read());
            assert!(whole(&found) > 0, "{found:#?}");
        });
        assert!(child.success(), "{child}");
        drop(profiling);
    });
}

/// The signal and the value of the calling thread's timer.
fn own_timer() -> Option<(i32, u64)> {
    let timers = std::fs::read_to_string("/proc/self/timers").ok()?;
    // SAFETY: takes nothing.
    let own = format!("/tid.{}\n", unsafe { libc::gettid() });
    let timer = timers.split("ID: ").find(|timer| timer.contains(&own))?;
    let said = timer.lines().find_map(|line| line.strip_prefix("signal: "))?;
    let (signal, value) = said.split_once('/')?;
    Some((signal.parse().ok()?, u64::from_str_radix(value, 16).ok()?))
}

/// Sends a signal from the stranger of that number.
type Send = extern "C" fn(libc::pid_t, libc::pid_t, libc::c_int, *const u8) -> isize;

#[test]
fn copies_without_room_are_counted() {
    in_child(|| {
        let (tell, told) = mpsc::channel();
        let profiling = Profiling::start(&unwound(1)).unwrap();
        let run = move || {
            // It arms itself.
            dormouse_sys::thread::current();
            let Some((signal, value)) = own_timer() else { return tell.send(false).unwrap() };
            let mut info = [0_u8; 128];
            info[0..4].copy_from_slice(&signal.to_ne_bytes());
            info[8..12].copy_from_slice(&libc::SI_TIMER.to_ne_bytes());
            info[24..32].copy_from_slice(&value.to_ne_bytes());
            // SAFETY: these have no preconditions.
            let (pid, tid) = unsafe { (libc::getpid(), libc::gettid()) };
            // No sample's function has been learned, however quick the sampler is; and they are
            // more than any machine has room for copies of, or samples.
            // SAFETY: the functions above, which nobody changes.
            for stranger in unsafe { &strangers } {
                // SAFETY: it sends a signal to this thread, as its timer would.
                let send = unsafe { std::mem::transmute::<*const u8, Send>(stranger.as_ptr()) };
                assert_eq!(send(pid, tid, signal, info.as_ptr()), 0);
            }
            tell.send(true).unwrap();
        };
        let sampled = thread::spawn(run);
        if !told.recv().unwrap() {
            return skip("/proc shows no timers");
        }
        sampled.join().unwrap();
        let coverage = profiling.read().coverage;
        assert!(coverage.uncopied > 0 && coverage.uncopied < coverage.samples, "{coverage:?}");
        // Some came late, behind samples whose copies had found room again.
        assert!(coverage.samples + coverage.dropped <= STRANGERS as u64 + 100, "{coverage:?}");
    });
}
