//! Arming: a slot and a timer for a thread, by the sampler or by the thread itself.
//!
//! A thread that claims a block of dormouse's while a profile is being taken arms itself, so that a
//! thread is sampled even if it ends before the sampler sees it. While there is no profile that
//! costs one load.
//!
//! # Async-signal-safety
//!
//! A thread arms itself by signal-safe steps only, and leaves `errno` as it was: it may claim its
//! block in a signal handler.

use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};

use dormouse_sys::errno::keeping_errno;
use dormouse_sys::passing::signal_frame_bytes;
use dormouse_sys::perf::is_filtered;
use dormouse_sys::process::identity;
use dormouse_sys::thread::{self, ThreadBlock};
use dormouse_sys::{masks, signals};

use super::handler::{self, ROOM};
use super::signal;
use super::slots::{self, Claim, SlotId};
use super::timer;

/// The period of timers, in nanoseconds of CPU time; 0 while there is no profile.
static PERIOD: AtomicU64 = AtomicU64::new(0);
/// The process whose timers these are; 0 before the first profile.
static OWNER: AtomicU64 = AtomicU64::new(0);
/// Timers that there are.
static TIMERS: AtomicU64 = AtomicU64::new(0);
/// Timers that there may be.
static MOST: AtomicU64 = AtomicU64::new(0);
/// A row of numbers that look random.
static RANDOM: AtomicU64 = AtomicU64::new(0);

/// The reason why a thread has no timer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refused {
    /// No slot is free.
    Slots,
    /// A quarter of the user's limit is used.
    Limit,
    /// The signal's action is not ours any more.
    Taken,
    /// Its alternate signal stack is too small.
    Stack,
    /// An error of the kernel.
    Kernel(i32),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slots => write!(f, "{} threads can be sampled at most", slots::SLOTS),
            Self::Limit => f.write_str(
                "dormouse takes a quarter of the queued signals that a user may have (`ulimit -i`) for its \
                 timers at most: further threads have none",
            ),
            Self::Taken => f.write_str("the program has set another action for the signal of samples"),
            Self::Stack => write!(
                f,
                "threads have an alternate signal stack (`sigaltstack`) that is too small for a sample, or a \
                 handler of the program has left too little of it: a frame of the kernel{} and {ROOM} bytes",
                signal_frame_bytes().map(|bytes| format!(" ({bytes} bytes here)")).unwrap_or_default()
            ),
            Self::Kernel(error) => {
                let why = match *error {
                    libc::EAGAIN => {
                        "`ulimit -i` is how many signals a user may have queued, and timers count as such"
                    }
                    _ => "a filter of system calls, or an emulated kernel, may have no such timers",
                };
                let error = io::Error::from_raw_os_error(*error);
                write!(f, "the kernel refused threads a timer: {error} ({why})")
            }
        }
    }
}

/// The period of timers; 0 while there is no profile.
pub(super) fn period() -> u64 {
    PERIOD.load(Ordering::SeqCst)
}

/// From now on timers have this period, and threads that claim a block arm themselves. 0: they do
/// not.
pub(super) fn set_period(period: u64) {
    MOST.store(timer::limit(), Ordering::Relaxed);
    RANDOM.fetch_xor(
        std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64),
        Ordering::Relaxed,
    );
    // SeqCst, as the loads of threads that arm themselves: either the thread sees the new period,
    // or the sampler sees the slot that it has announced before.
    PERIOD.store(period, Ordering::SeqCst);
}

/// Has threads that claim a block arm themselves while a profile is being taken.
pub(super) fn hook() {
    thread::on_claim(arm_self);
}

/// Ends the timers that a sampler has left which was killed. The sampler calls it before it arms a
/// thread.
pub(super) fn end_abandoned() {
    set_period(0);
    slots::announced().for_each(|(_, id)| disarm(id));
    slots::abandoned().for_each(disarm);
}

/// Forgets the timers of another process, if this is a child of a fork. The sampler calls it before
/// everything else.
pub(super) fn begin_in_child() {
    let (owner, own) = (OWNER.load(Ordering::Relaxed), identity::id());
    if owner == own {
        return;
    }
    PERIOD.store(0, Ordering::SeqCst);
    TIMERS.store(0, Ordering::Relaxed);
    slots::begin_again();
    OWNER.store(own, Ordering::Relaxed);
}

/// Arms a thread; `None`: it is armed already. The sampler alone calls it.
pub(super) fn arm(tid: u32, period: u64) -> Result<Option<SlotId>, Refused> {
    arm_with(tid, period, |_| ())
}

/// `claimed` is called before others see the slot.
fn arm_with(tid: u32, period: u64, claimed: impl FnOnce(&slots::Slot)) -> Result<Option<SlotId>, Refused> {
    if !signal::is_ours(handler::handle) {
        return Err(Refused::Taken);
    }
    let index = match slots::claim(tid) {
        Claim::New(index) => index,
        Claim::Known => return Ok(None),
        Claim::Full => return Err(Refused::Slots),
    };
    let slot = slots::at(index);
    claimed(slot);
    let id = slots::next_id(index);
    // Relaxed: it only counts.
    if TIMERS.fetch_add(1, Ordering::Relaxed) >= MOST.load(Ordering::Relaxed) {
        TIMERS.fetch_sub(1, Ordering::Relaxed);
        slot.free();
        return Err(Refused::Limit);
    }
    let made = timer::create(tid, signal::number(), id.to_value()).and_then(|made| {
        slot.begin(id, made);
        timer::set(made, 1 + random() % period, period).inspect_err(|_| timer::delete(made))
    });
    match made {
        Ok(()) => Ok(Some(id)),
        Err(error) => {
            TIMERS.fetch_sub(1, Ordering::Relaxed);
            let _none = slot.end(id);
            slot.free();
            Err(Refused::Kernel(error.raw_os_error().unwrap_or(libc::EINVAL)))
        }
    }
}

/// Makes a timer that is not set yet for the thread that is asked for its stack, which has this
/// slot.
pub(super) fn make_asking(index: u32, tid: u32) -> Result<SlotId, Refused> {
    if !signal::is_ours(handler::handle) {
        return Err(Refused::Taken);
    }
    let id = slots::next_id(index);
    // The sampler's are as many; this one is one more.
    if TIMERS.load(Ordering::Relaxed) >= timer::limit() {
        return Err(Refused::Limit);
    }
    let made = timer::create(tid, signal::number(), id.to_value());
    let made = made.map_err(|error| Refused::Kernel(error.raw_os_error().unwrap_or(libc::EINVAL)))?;
    slots::at(index).begin(id, made);
    Ok(id)
}

/// Ends the timer of a slot, unless its thread does, and gives the slot back: once for each slot
/// that the sampler has armed, or was given by [`slots::announced`]. The sampler alone calls it.
pub(super) fn disarm(id: SlotId) {
    end(id);
    slots::at(id.index).free();
}

/// Ends the timer of a slot, unless another thread does.
fn end(id: SlotId) {
    if let Some(timer) = slots::at(id.index).end(id) {
        timer::delete(timer);
        TIMERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Gives the timer of a slot another period.
pub(super) fn change(id: SlotId, period: u64) {
    if let Some(slot) = id.slot() {
        // A thread that has ended meanwhile has none.
        let _ = timer::set(slot.timer(), 1 + random() % period, period);
    }
}

/// On a thread that has just claimed its block.
fn arm_self(block: &'static ThreadBlock) {
    let period = period();
    // A child has its parent's period until it profiles itself.
    if period == 0 || OWNER.load(Ordering::Relaxed) != identity::id() {
        return;
    }
    let tid = identity::tid();
    // A filter may end the process for a timer of this thread's making, but not for the sampler's.
    if signals::is_ours(tid) || is_filtered() || masks::is_blocked_here(signal::number()) {
        return;
    }
    // It may be in the midst of the host's code.
    keeping_errno(|| arm_here(tid, period, block));
}

fn arm_here(tid: u32, period: u64, block: &'static ThreadBlock) {
    // The sampler is refused the same, and counts it.
    let Ok(Some(id)) = arm_with(tid, period, |slot| {
        slot.will_announce();
        slot.set_block(block);
    }) else {
        return;
    };
    slots::announce(id);
    let mut set = period;
    loop {
        match self::period() {
            // The slot is in the sampler's list, so it is the sampler's to free.
            0 => return end(id),
            now if now == set => return,
            now => {
                change(id, now);
                set = now;
            }
        }
    }
}

/// The next number: `splitmix64`.
pub(super) fn random() -> u64 {
    let mut bits = RANDOM.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
#[allow(unsafe_code, reason = "sets the action of a signal")]
mod tests {
    use super::*;

    #[test]
    fn a_thread_arms_itself_for_the_newest_period() {
        let [old, new] = [1_000_000_000_000, 2_000_000_000_000];
        dormouse_testkit::in_child(|| {
            begin_in_child();
            set_period(new);
            signal::take(handler::handle).unwrap();
            arm_here(identity::tid(), old, thread::current().unwrap());
            let (_, id) = slots::announced().next().unwrap();
            assert_eq!(timer::period(slots::at(id.index).timer()).unwrap(), new);
            disarm(id);
        });
    }

    #[test]
    fn no_timer_is_made_without_our_handler() {
        const PERIOD_NS: u64 = 1_000_000_000_000;
        dormouse_testkit::in_child(|| {
            begin_in_child();
            set_period(PERIOD_NS);
            assert!(matches!(arm(identity::tid(), PERIOD_NS), Err(Refused::Taken)), "not taken yet");
            signal::take(handler::handle).unwrap();
            let id = arm(identity::tid(), PERIOD_NS).unwrap().unwrap();
            disarm(id);
            // SAFETY: the default action.
            unsafe { libc::signal(signal::number(), libc::SIG_DFL) };
            assert!(matches!(arm(identity::tid(), PERIOD_NS), Err(Refused::Taken)));
            assert!(matches!(make_asking(slots::asked().0, identity::tid()), Err(Refused::Taken)));
            assert_eq!(TIMERS.load(Ordering::Relaxed), 0);
        });
    }
}
