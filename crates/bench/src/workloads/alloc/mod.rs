//! `bench alloc`: the price of counting allocations, asleep and awake.
//!
//! A pair of an allocation and its release goes through the wrapper as through any global
//! allocator, so the rows need no program whose allocator it is. The pairs are of a small size,
//! which the system's allocator serves from a list of the thread: the cheapest pair shows an
//! addition best.
//!
//! Peer: the system's allocator without the wrapper. There is no origin.
//!
//! # Safety
//!
//! The unsafe code is an allocation and its release.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::OnceLock;

use dormouse::keys::Selector;
use dormouse::{Alloc, Key};
use dormouse_events::Event;

use crate::bench::Bench;
use crate::clocks::cpu;
use crate::row::Spec;
use crate::runner::Failure;

/// Bytes of an allocation.
const BYTES: usize = 64;

/// The key behind which the wrapper sleeps.
const KEY: &str = "dormouse.alloc";

static WRAPPED: Alloc = Alloc::new();

pub(crate) fn run(bench: &mut Bench) {
    bench.param("bytes", BYTES);
    bench.say("calibrating");
    row(bench, "system", &System, false);
    row(bench, "dormouse-asleep", &WRAPPED, false);
    row(bench, "dormouse", &WRAPPED, true);
    bench.measure("reps", bench.plan(100, 6));
    bench.added("alloc", "system", &["dormouse-asleep", "dormouse"]);
    bench.explain(include_str!("notes.txt"));
}

fn row<A: GlobalAlloc>(bench: &mut Bench, name: &str, allocator: &'static A, awake: bool) {
    let spec = Spec::new(format!("alloc/{name}"), "ns").per("pair").cpu();
    bench.per_iteration(spec, move |iterations| {
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

fn wake() -> Result<dormouse::Lease, Failure> {
    // Looked for once: after `bench keys` there are a hundred thousand keys.
    static FOUND: OnceLock<Option<&'static Key>> = OnceLock::new();
    let key = if let Some(key) = FOUND.get() {
        key
    } else {
        let keys = Selector::parse(KEY)?.keys();
        FOUND.get_or_init(|| keys.first().map(|used| used.key))
    };
    Ok(key.ok_or("the wrapper has no key")?.acquire()?)
}
