//! Calls of `dl_iterate_phdr`, and forks.
//!
//! `dl_iterate_phdr` takes a lock that the C library's fork leaves as it is. A child that is forked
//! while another thread holds that lock waits for ever at its own first call, which may be made by
//! the host's unwinder. So forks wait for our calls, and our calls for forks: each at most
//! [`PATIENCE`], because the lock may be held by a host's callback that waits for either.
//!
//! # Safety
//!
//! The unsafe code passes two functions to the table of forks.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::futex;

use crate::process::fork::{self, Phase, Side, Stage};

/// The most milliseconds that each waits.
const PATIENCE: u32 = 100;

/// Threads that look.
static LOOKING: AtomicU32 = AtomicU32::new(0);
/// Threads that fork.
static FORKING: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Readings of the thread itself: a callback, or a signal handler over one, may look or fork.
    static OWN: Cell<u32> = const { Cell::new(0) };
}

/// A reading.
pub(super) struct Inside;

impl Inside {
    pub(super) fn enter() -> Self {
        // SAFETY: the functions are of this stage.
        static STAGE: Stage = unsafe { Stage::custom(Phase::Loader, before_fork, after_fork) };
        STAGE.join();
        let is_first = OWN.get() == 0 && !fork::is_forking();
        OWN.set(OWN.get() + 1);
        for _ in 0..PATIENCE {
            // Either the fork sees this reading, or this reading sees the fork. SeqCst, since each
            // side stores and then loads the other's word: pairs with the addition and the load in
            // `before_fork`.
            LOOKING.fetch_add(1, Ordering::SeqCst);
            if !is_first || FORKING.load(Ordering::SeqCst) == 0 {
                return Self;
            }
            LOOKING.fetch_sub(1, Ordering::SeqCst);
            wait_for_change(&FORKING);
        }
        LOOKING.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        OWN.set(OWN.get() - 1);
        // SeqCst: pairs with the addition of `FORKING` and the load of `LOOKING` in `before_fork`,
        // so no wake-up is lost.
        LOOKING.fetch_sub(1, Ordering::SeqCst);
        if FORKING.load(Ordering::SeqCst) > 0 {
            futex::wake(&LOOKING, i32::MAX.cast_unsigned());
        }
    }
}

/// Waits for a millisecond, or until `word`, which is not 0, is another.
fn wait_for_change(word: &AtomicU32) {
    let moment = Duration::from_millis(1).try_into().ok();
    // SeqCst: in the order of the additions and loads of `enter`, `drop` and `before_fork`.
    let seen = word.load(Ordering::SeqCst);
    if seen > 0 {
        let _ = futex::wait(word, seen, moment.as_ref());
    }
}

unsafe fn before_fork(_: *const Stage) -> bool {
    // SeqCst: pairs with `enter` and `drop`.
    FORKING.fetch_add(1, Ordering::SeqCst);
    for _ in 0..PATIENCE {
        if LOOKING.load(Ordering::SeqCst) <= OWN.get() {
            break;
        }
        wait_for_change(&LOOKING);
    }
    true
}

unsafe fn after_fork(_: *const Stage, side: Side) {
    match side {
        // No fork is counted in the child of a handler's fork in the middle of this one.
        Side::Parent => {
            let less = |forks: u32| forks.checked_sub(1);
            // SeqCst: pairs with the load in `enter`.
            let _before = FORKING.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        }
        Side::Child { .. } | Side::ChildInside { .. } => {
            LOOKING.store(OWN.get(), Ordering::Relaxed);
            FORKING.store(0, Ordering::Relaxed);
        }
    }
    futex::wake(&FORKING, i32::MAX.cast_unsigned());
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::Inside;
    use crate::loader;

    #[test]
    fn a_fork_gives_up_waiting_for_a_reading() {
        dormouse_testkit::in_child(|| {
            let (begun, done) = (Barrier::new(2), Barrier::new(2));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _reading = Inside::enter();
                    begun.wait();
                    done.wait();
                });
                begun.wait();
                let before = Instant::now();
                let status = dormouse_testkit::fork(|| {
                    let waited = before.elapsed().as_millis();
                    assert!((90..5000).contains(&waited), "{waited} ms");
                    assert!(loader::is_in_executable(&raw const super::LOOKING as usize));
                });
                done.wait();
                assert!(status.success(), "{status}");
            });
        });
    }

    #[test]
    fn a_child_forked_during_looks_can_look() {
        static END: AtomicBool = AtomicBool::new(false);
        let look = || loader::is_in_executable(&raw const END as usize);
        std::thread::scope(|scope| {
            let lookers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        while !END.swap(false, super::Ordering::Relaxed) {
                            look();
                        }
                    })
                })
                .collect();
            let mut right = 0;
            for _ in 0..100 {
                let status = dormouse_testkit::fork(|| assert!(look()));
                right += u32::from(status.success());
                if !status.success() {
                    break;
                }
            }
            while !lookers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                END.store(true, super::Ordering::Relaxed);
                std::thread::yield_now();
            }
            assert_eq!(right, 100);
        });
    }
}
