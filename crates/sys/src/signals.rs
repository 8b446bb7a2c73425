//! Threads that dormouse starts in a host. The host's signals are kept off them, so that the host's
//! handlers run on the host's threads, and what they use is known, so that it is not taken for the
//! host's use. Also the signals that are blocked while a handler runs, of ours or of the host's.
//!
//! # Safety
//!
//! Plain calls of `sigfillset`, `sigdelset` and `pthread_sigmask` on local sets,
//! `rt_sigprocmask`, and `clock_gettime`.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::process::identity;
use crate::rseq::thread_pointer;
use crate::sync::answer;
use crate::{array_of, bare_thread, clock, shared};

crate::atomics!(AtomicU64, AtomicUsize);

/// Signals that a thread raises by its own instructions. If they were blocked, they would kill the
/// process all the same, but without the host's handler. (SIGSYS comes from a filter, and its
/// handler answers system calls in the kernel's stead.)
pub const SYNCHRONOUS: [libc::c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];

/// The C library's control block of a thread is no longer.
const CONTROL_BLOCK: usize = 4096;

/// The longest wait for a thread that does not begin: a filter may have ended it.
const PATIENCE: Duration = Duration::from_secs(1);

/// The places for running threads.
const PLACES: usize = if cfg!(all(test, loom)) { 1 } else { 32 };

shared! {
    /// The running threads, as [`own`] numbers them; 0 for a free entry. A fork leaves the parent's
    /// threads here, whose process is not the child's.
    static OWN: [AtomicU64; PLACES] = array_of![AtomicU64::new(0); PLACES];

    /// The stacks of the running threads, by their places in [`OWN`]: the address of the thread's
    /// control block, which is at the upper end, and the length.
    static STACKS: [[AtomicUsize; 2]; PLACES] = array_of![array_of![AtomicUsize::new(0); 2]; PLACES];

    /// CPU time of those that have ended, in nanoseconds.
    static ENDED_NS: AtomicU64 = AtomicU64::new(0);

    /// The signals of samplers, by bits.
    static SAMPLERS: AtomicU64 = AtomicU64::new(0);
}

/// A thread of this process: the process's number above 32 bits of thread id.
fn own(tid: u32) -> u64 {
    identity::id() << 32 | u64::from(tid)
}

/// The calling thread's place among those that run. Beyond the last place a thread is known when it
/// has ended.
struct Running(Option<&'static AtomicU64>);

impl Running {
    fn begin(stack: usize) -> Self {
        let own = own(identity::tid());
        let take = |(_, place): &(usize, &AtomicU64)| {
            let there = place.load(Ordering::Relaxed);
            let is_free = there >> 32 != own >> 32;
            is_free && place.compare_exchange(there, own, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let taken = OWN.iter().enumerate().find(take);
        if let Some((at, _)) = taken {
            STACKS[at][0].store(thread_pointer() as usize, Ordering::Relaxed);
            STACKS[at][1].store(stack, Ordering::Relaxed);
        }
        Self(taken.map(|(_, place)| place))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let used = clock::ask(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0);
        if let Some(place) = self.0 {
            place.store(0, Ordering::Relaxed);
        }
        // Late rather than twice. Release: pairs with the load in `own_cpu_ns`.
        ENDED_NS.fetch_add(used, Ordering::Release);
    }
}

/// Runs `run` with all signals but the synchronous ones blocked, so that no handler of the host's
/// can interrupt it and leave it by a jump.
///
/// # Async-signal-safety
///
/// Two system calls, which change `errno` where a filter refuses them; then nothing is blocked.
pub fn blocked<T>(run: impl FnOnce() -> T) -> T {
    let all = !SYNCHRONOUS.iter().fold(0_u64, |set, signal| set | 1 << (signal - 1));
    let mut before = 0_u64;
    let size = size_of::<u64>();
    // SAFETY: the kernel reads and writes sets of 64 bits, which these are. (The C library's own
    // function would keep two signals of its own free, whose handlers do not jump.)
    let call = |how: libc::c_int, set: *const u64, old: *mut u64| unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, set, old, size)
    };
    // Not set: what is blocked already stays so.
    let is_blocked = call(libc::SIG_BLOCK, &raw const all, &raw mut before) == 0;
    let result = run();
    if is_blocked {
        call(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
    }
    result
}

/// The signals that are blocked while a handler of ours runs: all but those of a thread's own
/// faults.
///
/// SIGTRAP is included; the kernel allows that for events of its own (perf, from 5.19 on). A signal
/// frame takes `AT_MINSIGSTKSZ` (3,376 bytes with AVX-512), and std's alternate stacks have 8 KiB:
/// a second handler that interrupts the first, for a page fault in it that is a sample, or for a
/// hit, would overflow them, and that ends the process. So nothing that a handler calls may branch
/// on a static key.
///
/// The C library's own signals are included, too, because the cancellation of a thread unwinds.
/// From these [`crate::masks`] recognises that the thread blocks signals only for a moment.
pub fn all_but_faults() -> libc::sigset_t {
    // SAFETY: a set is bits; `sigfillset` would leave out those of the C library.
    unsafe {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        set.as_mut_ptr().write_bytes(0xff, 1);
        let mut set = set.assume_init();
        for signal in SYNCHRONOUS.into_iter().filter(|signal| *signal != libc::SIGTRAP) {
            libc::sigdelset(&raw mut set, signal);
        }
        set
    }
}

/// Records that a sampler has taken this signal. It keeps it for good.
pub fn is_of_a_sampler(signal: libc::c_int) {
    SAMPLERS.fetch_or(1 << (signal - 1), Ordering::Relaxed);
}

/// The signals that samplers have taken, by bits.
pub(crate) fn of_samplers() -> u64 {
    SAMPLERS.load(Ordering::Relaxed)
}

/// Whether dormouse has started the running thread with this id. False for a thread for which the
/// table had no room.
pub fn is_ours(tid: u32) -> bool {
    let own = own(tid);
    OWN.iter().any(|place| place.load(Ordering::Relaxed) == own)
}

/// CPU time that threads of dormouse have used in this process, in nanoseconds: of those that have
/// ended, and of those that run, for which `cpu_of` returns the time by thread id.
pub fn own_cpu_ns(cpu_of: impl Fn(u32) -> Option<u64>) -> u64 {
    let process = own(0);
    // Acquire, and first: a thread whose time is in it has no place any more.
    let ended = ENDED_NS.load(Ordering::Acquire);
    let places = OWN.iter().map(|place| place.load(Ordering::Relaxed));
    let running = places.filter(|own| own >> 32 == process >> 32);
    ended + running.filter_map(|own| cpu_of(own as u32)).sum::<u64>()
}

/// The stacks of the threads that dormouse runs in this process, with their thread-local data.
/// Where the control block is not known there are none.
pub fn own_stacks() -> impl Iterator<Item = Range<usize>> + Clone {
    let process = own(0);
    OWN.iter().zip(STACKS.iter()).filter_map(move |(place, stack)| {
        let [block, length] = stack.each_ref().map(|word| word.load(Ordering::Relaxed));
        let is_running = place.load(Ordering::Relaxed) >> 32 == process >> 32 && block != 0;
        is_running.then(|| block.saturating_sub(length)..block + CONTROL_BLOCK)
    })
}

/// Starts a thread with all signals but the synchronous ones blocked, and returns when it has
/// begun. So the call that a thread makes at its beginning, for its name, comes before a filter
/// that the caller installs next.
pub fn spawn(name: &str, stack: usize, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // A thread's start is a kilobyte of code: once for all.
    spawn_boxed(name, stack, Box::new(run))
}

fn spawn_boxed(name: &str, stack: usize, run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    let (begun, begins) = answer();
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initialises `all`; the other calls read it, and write `before` if they
    // succeed.
    let is_masked = !cfg!(miri)
        && unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for signal in SYNCHRONOUS {
                libc::sigdelset(all.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
        };
    // The thread inherits the mask.
    let begin = move || {
        let _running = Running::begin(stack);
        begun.give(());
        run();
    };
    let spawned = bare_thread::spawn(name, stack, Box::new(begin));
    if is_masked {
        // SAFETY: the first call succeeded, so `before` is the mask that it stored.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    spawned?;
    let _ = begins.wait(PATIENCE);
    Ok(())
}

#[cfg(all(test, loom))]
mod interleavings;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn time_of_running_and_ended_threads_is_known() {
        let (tell, told) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        spawn("own", 256 * 1024, move || {
            tell.send(identity::tid()).unwrap();
            let _ = ends.recv();
        })
        .unwrap();
        let tid = told.recv().unwrap();
        let seconds = |of| move |other| (other == of).then_some(1_000_000_000_000);
        let base = own_cpu_ns(|_| None);
        assert_eq!(own_cpu_ns(seconds(tid)) / 1_000_000_000_000, 1);
        drop(end);
        while own_cpu_ns(seconds(tid)) >= 1_000_000_000_000 {
            thread::yield_now();
        }
        while own_cpu_ns(|_| None) == base {
            thread::yield_now();
        }
    }
}
