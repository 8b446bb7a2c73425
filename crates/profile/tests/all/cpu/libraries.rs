//! Callers of functions of the C library, which keep no frame pointers.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use dormouse_profile::{Profile, Profiling};
use dormouse_testkit::{StopOnDrop, eventually, in_child, skip};

use crate::arch::{library_caller_end, library_outer, library_outer_end};

use super::hogs::{Function, options};

/// The samples of one thread, of which few are of its first and last steps, even if one stands for
/// much time.
const SAMPLES: u64 = 200;

/// The samples of the thread that calls the function: all, and those with both callers, one right
/// after the other.
fn samples(profile: &Profile) -> (u64, u64) {
    let outer = library_outer as *const () as u64..library_outer_end as *const () as u64;
    let caller: Function = outer.end..library_caller_end as *const () as u64;
    let has =
        |stack: &[u64], range: &Range<u64>, at: usize| stack.get(at).is_some_and(|it| range.contains(it));
    let (mut all, mut right) = (0, 0);
    for row in &profile.samples {
        if profile.threads[row.thread as usize].name == "calls" {
            let stack: Vec<_> = profile.stack(row.stack).collect();
            all += row.values[0];
            let has_both = (0..stack.len()).any(|at| has(&stack, &caller, at) && has(&stack, &outer, at + 1));
            right += row.values[0] * u64::from(has_both);
        }
    }
    (all, right)
}

/// Has a thread call a function until enough is sampled; `stack`: as `library_outer` takes it.
fn call_on(name: &str, function: *const (), arguments: [usize; 4], stack: usize) {
    let function = function as usize;
    let is_over = AtomicBool::new(false);
    let calls = || {
        // It is sampled at once.
        dormouse_sys::thread::current();
        while !is_over.load(Relaxed) {
            // SAFETY: the callers below pass what their functions take.
            unsafe { library_outer(std::ptr::with_exposed_provenance(function), &arguments, stack) };
        }
    };
    thread::scope(|scope| {
        let _stop = StopOnDrop(&is_over);
        thread::Builder::new().name("calls".into()).spawn_scoped(scope, calls).unwrap();
        // How long the function's rules take to be learned depends on what else runs.
        let learning = Profiling::start(&options(1000)).unwrap();
        eventually(|| samples(&learning.read()).1 > 0);
        drop(learning);
        let profiling = Profiling::start(&options(1000)).unwrap();
        eventually(|| samples(&profiling.read()).0 >= SAMPLES);
        let profile = profiling.read();
        let ((all, right), coverage) = (samples(&profile), &profile.coverage);
        assert!(right * 100 > all * 95, "{name}: {right} of {all} have their callers: {coverage:?}");
        assert!(coverage.in_library * 20 <= coverage.samples, "{name}: {coverage:?}");
        assert!(stack != 0 || coverage.ended * 10 >= coverage.samples * 9, "{name}: {coverage:?}");
    });
}

/// Whether the C library is an object of its own.
fn has_library() -> bool {
    let is_linked_in = dormouse_sys::loader::is_in_executable(libc::memcpy as *const () as usize);
    if is_linked_in {
        skip("the C library is linked in");
    }
    !is_linked_in
}

#[test]
fn callers_of_the_c_library_are_there() {
    #![allow(clippy::disallowed_methods, reason = "no time is asked for")]
    in_child(|| {
        if !has_library() {
            return;
        }
        let mut pair = [0; 2];
        // SAFETY: room for two descriptors.
        let made = unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM, 0, pair.as_mut_ptr()) };
        assert_eq!(made, 0);
        let (from, mut to) = (vec![7_u8; 4096], vec![0_u8; 4096]);
        let (from, to) = (from.as_ptr().addr(), to.as_mut_ptr().addr());
        let near = pair[0] as usize;
        // It keeps another number in the frame pointer meanwhile, where there are several threads.
        call_on("send", libc::send as *const (), [near, from, 100, libc::MSG_DONTWAIT as usize], 0);
        call_on("memcpy", libc::memcpy as *const (), [to, from, 4096, 0], 0);
        // The kernel's object has the rest.
        call_on("clock", libc::clock_gettime as *const (), [libc::CLOCK_REALTIME as usize, to, 0, 0], 0);
    });
}

#[test]
fn callers_on_fibers_are_there() {
    in_child(|| {
        if !has_library() {
            return;
        }
        // Handlers have the memory below.
        let mut fiber = vec![0_u8; 256 * 1024];
        let stack = (fiber.as_mut_ptr().addr() + 192 * 1024) & !15;
        let (from, mut to) = (vec![7_u8; 4096], vec![0_u8; 4096]);
        let (from, to) = (from.as_ptr().addr(), to.as_mut_ptr().addr());
        call_on("memcpy", libc::memcpy as *const (), [to, from, 4096, 0], stack);
        drop(fiber);
    });
}
