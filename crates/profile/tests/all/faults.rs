//! The callers of page faults, of this very process. The step `plain` of long runs builds the walk
//! without optimisation, for which handlers of such threads have no room.
#![cfg(all(target_os = "linux", not(dormouse_fallback)))]
#![allow(unsafe_code)]

use std::hint::black_box;
use std::thread;

use dormouse_profile::{NameFinder, Options, Profile, ProfileKind, Profiling};
use dormouse_testkit::{Filter, eventually, in_child, skip};

/// The pages that are new each time: no more than there is room for copies of stacks.
const PAGES: usize = 32;
/// Faults to be sampled.
const FAULTS: u64 = 500;

#[inline(never)]
fn touch(memory: *mut u8) {
    // SAFETY: the caller's mapping.
    (0..PAGES).for_each(|page| unsafe { memory.add(page * 4096).write_volatile(1) });
}

#[inline(never)]
fn touch_below(calls: u32, memory: *mut u8) -> u32 {
    if calls == 0 {
        touch(memory);
        return 0;
    }
    black_box(touch_below(calls - 1, memory)) + 1
}

#[inline(never)]
fn touch_new_pages() {
    // SAFETY: a new mapping, which nobody uses when it goes.
    unsafe {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let memory = libc::mmap(std::ptr::null_mut(), PAGES * 4096, rights, flags, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        libc::madvise(memory, PAGES * 4096, libc::MADV_NOHUGEPAGE);
        touch_below(20, memory.cast());
        libc::munmap(memory, PAGES * 4096);
    }
}

/// The faults in `touch`, those among them with all callers, and the stacks of the others.
fn found(profile: &Profile) -> (u64, u64, Vec<Vec<String>>) {
    let symbols = NameFinder::own().unwrap().symbols(profile);
    let (mut all, mut whole, mut others) = (0, 0, Vec::new());
    for row in &profile.samples {
        let frames = profile.stack(row.stack).flat_map(|at| symbols.get(at));
        let names: Vec<String> = frames.map(|frame| frame.function.clone()).collect();
        let has = |part: &str| names.iter().filter(|name| name.contains(part)).count();
        if names.iter().any(|name| name.ends_with("::touch")) {
            all += row.values[1];
            let is_whole =
                has("touch_below") == 21 && has("touch_new_pages") == 1 && has("thread_start") == 1;
            whole += if is_whole { row.values[1] } else { 0 };
            others.extend((!is_whole).then_some(names));
        }
    }
    (all, whole, others)
}

#[test]
fn faults_have_all_callers() {
    in_child(|| {
        let mut options = Options::default();
        (options.kind, options.faults) = (ProfileKind::Faults, 1);
        let learning = match Profiling::start(&options) {
            Ok(learning) => learning,
            Err(error) => return skip(error),
        };
        let run = move || {
            // The same functions both times: nothing is to be learned the second time.
            let touch_until = |profiling: &Profiling, is_done: &dyn Fn(&Profile) -> bool| {
                eventually(|| {
                    touch_new_pages();
                    is_done(&profiling.read())
                });
            };
            touch_until(&learning, &|profile| found(profile).1 > 0);
            drop(learning);
            let profiling = Profiling::start(&options).unwrap();
            touch_until(&profiling, &|profile| profile.coverage.samples >= FAULTS);
            let profile = profiling.read();
            let (all, whole, others) = found(&profile);
            assert!(all > FAULTS / 4, "{all}: {:?}", profile.coverage);
            assert!(whole * 100 > all * 95, "{whole} of {all}: {:?}, {others:#?}", profile.coverage);
        };
        thread::spawn(run).join().unwrap();
    });
}

#[test]
fn a_filter_that_comes_later_ends_the_profile() {
    in_child(|| {
        let mut options = Options::default();
        (options.kind, options.faults) = (ProfileKind::Faults, 1);
        let profiling = match Profiling::start(&options) {
            Ok(profiling) => profiling,
            Err(error) => return skip(error),
        };
        eventually(|| {
            touch_new_pages();
            profiling.read().coverage.samples > 0
        });
        Filter::kill(&[libc::SYS_perf_event_open, libc::SYS_uname]).install_on_all_threads();
        // A reading arms threads that have begun.
        thread::spawn(move || {
            touch_new_pages();
            let profile = profiling.read();
            assert!(
                profile.coverage.notes.iter().any(|note| note.contains("filter")),
                "{:?}",
                profile.coverage.notes
            );
            assert!(profile.coverage.samples > 0);
            for _ in 0..3 {
                touch_new_pages();
            }
            assert_eq!(profiling.read().coverage.samples, profile.coverage.samples);
        })
        .join()
        .unwrap();
    });
}
