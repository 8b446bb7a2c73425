//! The static key behind which locks are noted, and the runs in which they are.
//!
//! Notes belong to a run. A run begins when somebody asks and nobody did before; an entry of an
//! earlier run may have been left behind, because its guard was dropped while the key
//! was off, so nobody believes it.
//!
//! The key is on before a run begins, and a run ends before the key goes off. So a lock that was
//! taken in a run finds the key on when it is left, unless the run is over by then. If the key is
//! suspended, the next run begins just after that.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_keys::{static_key, unlikely};

static_key! {
    /// On while somebody asks for locks.
    pub(crate) static LOCKS: "dormouse.locks" = false;
}

/// How many live, how many of these want the time of each hold, and the number of the run: 16, 16
/// and 32 bits. One word, so that all change at once.
static STATE: AtomicU64 = AtomicU64::new(0);
const ONE: u64 = 1;
const ONE_ALL: u64 = 1 << 16;
const RUN: u64 = 1 << 32;

/// The part of the state that one live value adds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Units {
    One,
    /// One that wants the time of each hold.
    OneOfAll,
}

impl Units {
    fn number(self) -> u64 {
        match self {
            Self::One => ONE,
            Self::OneOfAll => ONE + ONE_ALL,
        }
    }
}

fn live(state: u64) -> u64 {
    state % ONE_ALL
}

fn change(to: impl Fn(u64) -> u64) {
    // Release: a run's beginning is seen after the key is on.
    let _ = STATE.fetch_update(Ordering::Release, Ordering::Relaxed, |state| Some(to(state)));
}

/// Adds one that lives, with which a run begins if there is none.
pub(crate) fn begin(units: Units) {
    change(|state| {
        let begun = if live(state) == 0 { state.wrapping_add(RUN) } else { state };
        begun + units.number()
    });
}

/// Removes one.
pub(crate) fn end(units: Units) {
    change(|state| state - units.number());
}

/// Begins another run, with those that live.
pub(crate) fn next_run() {
    change(|state| state.wrapping_add(RUN));
}

/// In a forked child: none lives, and entries of the parent are of an earlier run.
pub(crate) fn forget_runs() {
    change(|state| (state >> 32).wrapping_add(1) << 32);
}

/// Whether locks are noted, for a thread that takes or leaves one: a sleeping instruction.
#[inline(always)]
pub(crate) fn are_noted() -> bool {
    unlikely!(LOCKS)
}

/// The number of the present run.
#[inline]
pub(crate) fn run() -> Option<u32> {
    let state = STATE.load(Ordering::Relaxed);
    (live(state) != 0).then_some((state >> 32) as u32)
}

/// Whether somebody wants the time of each hold.
#[inline]
pub(crate) fn are_all_timed() -> bool {
    STATE.load(Ordering::Relaxed) % RUN >= ONE_ALL
}
