//! `bench alloc`: the price of counting and of sampling allocations, asleep and awake.
//!
//! A pair of an allocation and its release goes through the wrapper as through any global
//! allocator, so the rows need no program whose allocator it is. The pairs are of a small size,
//! which the system's allocator serves from a list of the thread: with the cheapest pair an added
//! cost shows best.
//!
//! For the sampled rows there is a listener, a profile: at the usual period nearly no pair is
//! picked, and the row is the price of pairs that are not; at a period of one byte each is, with a
//! stack of the frames that the bench has.
//!
//! Peer: the system's allocator without the wrapper. There is no origin. Figures that others
//! publish: jemalloc, a sample in 512 KiB: less than 1 % of the CPU; Neon with that in 2 MiB:
//! allocations 3 % slower. Neither distinguishes groups.
//!
//! # Safety
//!
//! The unsafe code is an allocation and its release.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use dormouse::keys::Selector;
use dormouse::{Alloc, Key};
use dormouse_events::Event;
use dormouse_profile::{Options, ProfileKind, Profiling};
use dormouse_sys::heap::{Heap, Listener, Subscription};

use crate::bench::Bench;
use crate::clocks::cpu;
use crate::row::Spec;
use crate::runner::Failure;

/// Bytes of an allocation.
const BYTES: usize = 64;

/// The usual period.
const USUAL: u64 = 512 * 1024;

/// Samples that the queue has room for, with some for others.
const PART: u64 = 1000;

/// The key behind which the wrapper sleeps, and the one behind which it counts.
const KEYS: &str = "dormouse.alloc,dormouse.alloc.counted";

/// How long to wait until a profile has ended.
const PATIENCE: Duration = Duration::from_secs(10);

static WRAPPED: Alloc = Alloc::new();

pub(crate) fn run(bench: &mut Bench) {
    bench.param("bytes", BYTES);
    bench.say("calibrating");
    row(bench, "system", &System, false);
    row(bench, "dormouse-asleep", &WRAPPED, false);
    row(bench, "dormouse", &WRAPPED, true);
    sampled(bench, "unpicked", USUAL, false);
    sampled(bench, "unpicked-live", USUAL, true);
    sampled(bench, "picked", 1, false);
    sampled(bench, "picked-live", 1, true);
    bench.measure("reps", bench.plan(100, 6));
    let rows = ["dormouse-asleep", "dormouse", "unpicked", "unpicked-live", "picked", "picked-live"];
    bench.added("alloc", "system", &rows);
    bench.explain(include_str!("notes.txt"));
}

fn row<A: GlobalAlloc>(bench: &mut Bench, name: &str, allocator: &'static A, awake: bool) {
    let spec = Spec::new(format!("alloc/{name}"), "ns").per("pair").cpu();
    bench.per_iteration(spec, move |iterations| {
        until_asleep()?;
        let _lease = if awake { Some(wake()?) } else { None };
        let layout = Layout::new::<[u8; BYTES]>();
        let before = allocations();
        let (elapsed, ()) = cpu(|| {
            for _ in 0..iterations {
                pair(allocator, layout);
            }
        });
        match (allocations() - before, if awake { iterations } else { 0 }) {
            (counted, made) if counted == made => Ok(elapsed),
            (counted, made) => Err(Failure::wrong(format!("{counted} allocations counted of {made}"))),
        }
    });
}

/// The wrapper, which is not asked whether it is this program's allocator.
#[derive(Debug)]
struct Unasked;

impl Heap for Unasked {
    fn why_not(&self) -> Option<String> {
        None
    }

    fn sample(&self, listener: &'static Listener) -> Result<Box<dyn Subscription>, String> {
        dormouse_events::heap().sample(listener)
    }

    fn set_period(&self, bytes: u64) {
        dormouse_events::heap().set_period(bytes);
    }

    fn watch_frees(&self) -> Result<Box<dyn Subscription>, String> {
        dormouse_events::heap().watch_frees()
    }
}

/// A profile of the wrapper's allocations is taken. The picked ones come in parts for which there
/// is room, which are read apart.
fn sampled(bench: &mut Bench, name: &str, period: u64, live: bool) {
    let spec = Spec::new(format!("alloc/{name}"), "ns").per("pair").cpu();
    let is_picked = period == 1;
    bench.per_iteration(spec, move |iterations| {
        let mut options = Options::default();
        (options.kind, options.bytes, options.live) = (ProfileKind::Alloc, period, live);
        options.heap = Some(&Unasked);
        let profiling = Profiling::start(&options).map_err(|error| Failure::wrong(error.to_string()))?;
        let layout = Layout::new::<[u8; BYTES]>();
        let (mut elapsed, mut left) = (Duration::ZERO, iterations);
        while left > 0 {
            let part = if is_picked { left.min(PART) } else { left };
            elapsed += cpu(|| (0..part).for_each(|_| pair(&WRAPPED, layout))).0;
            left -= part;
            if is_picked {
                profiling.read();
            }
        }
        let coverage = profiling.read().coverage;
        let seen = coverage.samples + coverage.dropped;
        if is_picked && (coverage.dropped > 0 || seen < iterations) {
            return Err(Failure::wrong(format!("{seen} samples of {iterations}, {} lost", coverage.dropped)));
        }
        Ok(elapsed)
    });
}

#[inline(never)]
fn pair(allocator: &impl GlobalAlloc, layout: Layout) {
    // SAFETY: the layout is not empty. The released block was allocated with it just now, or is
    // null, which the C library's `free` accepts.
    unsafe { allocator.dealloc(black_box(allocator.alloc(layout)), layout) };
}

/// Allocations that this thread made through the wrapper while they were counted.
fn allocations() -> u64 {
    let mut value = [0];
    Event::ALLOC_COUNT.pmu().read(&[Event::ALLOC_COUNT.number()], &mut value);
    value[0]
}

fn keys() -> Result<&'static [&'static Key], Failure> {
    // Looked for once: after `bench keys` there are a hundred thousand keys.
    static FOUND: OnceLock<Vec<&'static Key>> = OnceLock::new();
    let found = if let Some(found) = FOUND.get() {
        found
    } else {
        let keys = Selector::parse(KEYS)?.keys();
        FOUND.get_or_init(|| keys.iter().map(|used| used.key).collect())
    };
    match found.len() {
        2 => Ok(found),
        _ => Err(Failure::wrong(format!("the wrapper has {} keys of {KEYS}", found.len()))),
    }
}

fn wake() -> Result<dormouse::Lease, Failure> {
    Ok(dormouse::Lease::of(keys()?.iter().copied())?)
}

/// A profile that is over is ended by its own thread, a moment later.
fn until_asleep() -> Result<(), Failure> {
    let (keys, deadline) = (keys()?, Instant::now() + PATIENCE);
    while keys.iter().any(|key| key.leases() > 0) {
        if Instant::now() > deadline {
            return Err(Failure::wrong("the wrapper does not fall asleep"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
