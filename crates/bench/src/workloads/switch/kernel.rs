//! `kernel/EVENTS/SIZE`: processes that pass a token round a ring of pipes, as in `lat_ctx`, under
//! perf events that they inherit from this thread.
//!
//! As in `lat_ctx`, the price of writing and reading a pipe without any switch is measured by one
//! process alone and subtracted. All run on one processor, so that each hand-over is a switch. A
//! sample is the fastest of a few batches, each timed by the wall clock: other work on that
//! processor can only make them slower.
//!
//! # Safety
//!
//! The children are forked from a process that may have threads, so until their end they call
//! nothing but system calls on objects made before the fork.
#![allow(unsafe_code)]

use std::io::{PipeReader, PipeWriter, Read, pipe};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use dormouse_sys::perf::{Attr, KernelEvent, OpenEvent, Subject};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::rings::{HARDWARE, SIZES, spec};
use crate::affinity::Halves;
use crate::bench::Bench;
use crate::runner::Failure;

/// Batches of a sample.
const BATCHES: usize = 9;

/// Switches of a batch, at most.
const SWITCHES: usize = 256;

/// How long a batch should last at most, in nanoseconds: hardware counters can make a switch dear.
const BATCH_NS: u64 = 2_000_000;

const SOFTWARE: [KernelEvent; 8] = [
    KernelEvent::TaskClock,
    KernelEvent::ContextSwitches,
    KernelEvent::CpuMigrations,
    KernelEvent::PageFaults,
    KernelEvent::MinorFaults,
    KernelEvent::MajorFaults,
    KernelEvent::AlignmentFaults,
    KernelEvent::EmulationFaults,
];

/// Events of the rows, the empty list first.
pub(super) const EVENTS: [(&str, &[KernelEvent]); 5] = [
    ("none", &[]),
    ("2", SOFTWARE.split_at(2).0),
    ("8", &SOFTWARE),
    ("2hw", HARDWARE.split_at(2).0),
    ("4h4s", &HARDWARE),
];

fn names(events: &[KernelEvent]) -> Vec<&'static str> {
    events.iter().map(|event| event.name()).collect()
}

pub(super) fn note() -> String {
    let sets = EVENTS[1..].iter().map(|(name, events)| format!("{name}: {}", names(events).join(", ")));
    format!(
        "kernel rows: processes in a ring of pipes on one processor under perf events inherited from this thread; us \
         of wall time a switch, without what a pipe costs one process alone (lat_ctx -s 0); a value is the fastest \
         of {BATCHES} batches of at most {SWITCHES} switches. {}",
        sets.collect::<Vec<_>>().join("; ")
    )
}

pub(super) fn rows(bench: &mut Bench) {
    for (set, events) in EVENTS {
        for size in SIZES {
            let spec = spec(format!("kernel/{set}/{size}"), "us", size, &names(events))
                .with("clock", "wall")
                .with("batches", BATCHES)
                .with("switches", SWITCHES);
            bench.sample(spec, move || sample(events, size));
        }
    }
}

/// Microseconds a switch.
fn sample(events: &[KernelEvent], size: usize) -> Result<f64, Failure> {
    // Open while the children count; opened before they are forked, so that all children inherit
    // from us.
    let open = |&counted| OpenEvent::open_allowed(&Attr::count(counted).inherited(), Subject::ThisThread);
    let _events = events.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let times = Halves::of_this_thread().on_last(|| Ring::start(size)?.times())??;
    let (laps, times) = (times[0], &times[1..]);
    let (alone, handed) = times.split_at(BATCHES);
    let fastest = |times: &[u64]| times.iter().copied().min().unwrap_or(0) as f64;
    let switches = laps as f64 * size as f64;
    Ok((fastest(handed) / switches - fastest(alone) / SWITCHES as f64) / 1e3)
}

/// Laps of a batch; then the nanoseconds of each batch, by one process alone, then round the ring.
type Times = [u64; 1 + 2 * BATCHES];

/// The processes; they end with it.
struct Ring {
    children: Vec<libc::pid_t>,
    result: PipeReader,
}

impl Ring {
    fn start(size: usize) -> Result<Self, Failure> {
        let pipes: Vec<(PipeReader, PipeWriter)> = (0..size).map(|_| pipe()).collect::<Result<_, _>>()?;
        let (result, report) = pipe()?;
        let mut ring = Self { children: Vec::with_capacity(size), result };
        for place in 0..size {
            let links = Links {
                from: pipes[place].0.as_raw_fd(),
                own: pipes[place].1.as_raw_fd(),
                to: pipes[(place + 1) % size].1.as_raw_fd(),
                report: report.as_raw_fd(),
            };
            // SAFETY: the child makes only calls that are safe in a signal handler, and never
            // returns.
            match unsafe { libc::fork() } {
                0 => links.child(place == 0, SWITCHES / size),
                -1 => return Err(std::io::Error::last_os_error().into()),
                child => ring.children.push(child),
            }
        }
        Ok(ring)
    }

    /// The report of the first process.
    fn times(&mut self) -> Result<Times, Failure> {
        let wait = Timespec { tv_sec: 20, tv_nsec: 0 };
        let mut ready = [PollFd::from_borrowed_fd(self.result.as_fd(), PollFlags::IN)];
        if poll(&mut ready, Some(&wait))? == 0 {
            return Err(Failure::from("the ring of processes stood still for 20 s"));
        }
        let mut bytes = [0; size_of::<Times>()];
        self.result.read_exact(&mut bytes)?;
        let mut times = Times::default();
        for (time, bytes) in times.iter_mut().zip(bytes.as_chunks().0) {
            *time = u64::from_ne_bytes(*bytes);
        }
        Ok(times)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for &child in &self.children {
            // SAFETY: numbers only; a child that was not waited for keeps its process id.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        for &child in &self.children {
            // SAFETY: the status is not asked for.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }
}

/// A child's descriptors.
#[derive(Clone, Copy)]
struct Links {
    from: RawFd,
    /// The other end of `from`.
    own: RawFd,
    to: RawFd,
    report: RawFd,
}

impl Links {
    /// A child's whole life.
    fn child(self, keeps_time: bool, most_laps: usize) -> ! {
        // SAFETY: numbers only. The death of the parent ends the child.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        if keeps_time {
            let mut times = Times::default();
            let [laps, batches @ ..] = &mut times;
            let (alone, handed) = batches.split_at_mut(BATCHES);
            for time in alone {
                *time = timed(|| (0..SWITCHES).for_each(|_| hand_on(self.own, self.from)));
            }
            // The first lap wakes all processes for the first time.
            hand_on(self.to, self.from);
            let lap = timed(|| hand_on(self.to, self.from));
            *laps = (BATCH_NS / lap.max(1)).clamp(1, most_laps as u64);
            for time in handed {
                *time = timed(|| (0..*laps).for_each(|_| hand_on(self.to, self.from)));
            }
            // SAFETY: `times` is as many bytes. A report that comes short is found out by its
            // reader.
            unsafe { libc::write(self.report, times.as_ptr().cast(), size_of_val(&times)) };
        } else {
            loop {
                receive(self.from);
                send(self.to);
            }
        }
        end()
    }
}

fn hand_on(to: RawFd, from: RawFd) {
    send(to);
    receive(from);
}

fn send(to: RawFd) {
    let token = [0_u8];
    // SAFETY: one byte to read.
    if unsafe { libc::write(to, token.as_ptr().cast(), 1) } != 1 {
        end();
    }
}

fn receive(from: RawFd) {
    let mut token = [0_u8];
    // SAFETY: one byte to write.
    if unsafe { libc::read(from, token.as_mut_ptr().cast(), 1) } != 1 {
        end();
    }
}

/// Nanoseconds that `work` takes.
#[allow(clippy::disallowed_methods, reason = "times of the benchmark's own")]
fn timed(work: impl FnOnce()) -> u64 {
    let now = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a valid place, and the clock exists.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let begin = now();
    work();
    now() - begin
}

/// Ends a child without running anything of its parent's.
fn end() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_hand_round_and_are_gone_afterwards() {
        for size in SIZES {
            let mut ring = Ring::start(size).unwrap();
            let times = ring.times().unwrap();
            assert!(times.iter().all(|&time| time > 0));
            let children = ring.children.clone();
            drop(ring);
            for child in children {
                // SAFETY: signal 0 only checks for existence.
                assert_eq!(unsafe { libc::kill(child, 0) }, -1, "{child} is still there");
            }
        }
    }
}
