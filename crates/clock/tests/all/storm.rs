//! Forks in the middle of first uses: nothing that another thread was at keeps a child waiting.
#![allow(unsafe_code)]

use crate::meters;

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Duration;

use dormouse_clock::{Budget, capability, point, thread_cpu_ns, thread_cpu_time, tier};
use dormouse_testkit::{in_child, stress_rounds};
use meters::OfThread;

/// Forks, and runs `body` in the child, which an alarm kills if it does not end.
fn start(body: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child uses clocks and threads, for which glibc's allocator is ready after its
    // fork, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: takes a number.
        unsafe { libc::alarm(20) };
        let is_right = body();
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    child
}

fn ends_well(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: `status` is a valid place.
    unsafe { libc::waitpid(child, &raw mut status, 0) == child && status == 0 }
}

/// Everything whose first use makes something for the process; `order` says what comes first.
fn use_everything(order: usize) -> bool {
    for step in 0..4 {
        match (step + order) % 4 {
            0 => _ = black_box(thread_cpu_time()),
            1 => _ = black_box((point(), tier())),
            2 => {
                let budget = Budget::new(OfThread::current(), Duration::from_micros(100)).unwrap();
                while budget.end().is_none() {
                    thread_cpu_ns();
                }
            }
            _ => _ = black_box(capability()),
        }
    }
    true
}

#[test]
fn children_of_forks_during_first_uses_use_everything() {
    in_child(|| {
        let rounds = stress_rounds(4, 100);
        for round in 0..rounds {
            // Nobody here has used a clock yet.
            let process = start(|| {
                let together = &Barrier::new(4);
                std::thread::scope(|scope| {
                    for thread in 0..3 {
                        scope.spawn(move || {
                            together.wait();
                            use_everything(2 * thread + round)
                        });
                    }
                    together.wait();
                    let children: Vec<_> = (0..6).map(|order| start(|| use_everything(order))).collect();
                    children.into_iter().all(ends_well)
                })
            });
            assert!(ends_well(process), "in round {round}");
        }
    });
}
