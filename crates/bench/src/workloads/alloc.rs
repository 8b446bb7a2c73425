//! `bench alloc`: what counting allocations adds to them, asleep and awake.
//!
//! A pair of an allocation and its release goes through the wrapper as through any global allocator, so the rows
//! need no program whose allocator it is. The pairs are of a small size, which the system's allocator serves from
//! a thread's own list: where it is as cheap as it gets, what is added is as plain as it gets.
//!
//! # Safety
//!
//! The unsafe code is an allocation and its release.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::OnceLock;

use dormouse::{Alloc, Key};
use dormouse_events::Event;

use super::{Measured, Settings};
use crate::clocks::cpu;
use crate::progress::Progress;
use crate::report::{Row, find};
use crate::runner::{Case, Failure, Spec, run as run_cases};

/// Bytes of an allocation.
const BYTES: usize = 64;

/// The key behind which the wrapper sleeps.
const KEY: &str = "dormouse.alloc";

static WRAPPED: Alloc = Alloc::new();

/// Runs the workload.
pub(crate) fn run(settings: &Settings, progress: &mut Progress) -> Measured {
    let plan = settings.plan(100, 6);
    progress.say("calibrating");
    let cases = vec![
        case(settings, "alloc/system", &System, false),
        case(settings, "alloc/dormouse-asleep", &WRAPPED, false),
        case(settings, "alloc/dormouse", &WRAPPED, true),
    ];
    let mut measured = Measured::of(run_cases(cases, &plan, progress, |_| false), &plan);
    measured.params.insert("bytes".to_owned(), BYTES.into());
    let rows = &measured.rows;
    let added = |name: &str| {
        let row = find(rows, &format!("alloc/{name}"));
        Row::minus(&format!("alloc-added/{name}"), "ns", &row, &find(rows, "alloc/system"))
    };
    let added = ["dormouse-asleep", "dormouse"].map(added);
    measured.rows.extend(added);
    measured.notes.push(
        "alloc rows: CPU time of an allocation and its release; asleep nobody counts, else four counts of the \
         thread are kept; alloc-added/X: X - alloc/system, of values of the same round"
            .to_owned(),
    );
    measured
}

fn case<A: GlobalAlloc>(
    settings: &Settings,
    name: &str,
    allocator: &'static A,
    awake: bool,
) -> Case<'static> {
    let spec = Spec::new(name, "ns").with("per", "pair").with("clock", "thread CPU time");
    Case::per_iteration(spec, settings.target(), move |iterations| {
        let _lease = if awake { Some(wake()?) } else { None };
        let layout = Layout::new::<[u8; BYTES]>();
        let before = counted();
        let (elapsed, ()) = cpu(|| {
            for _ in 0..iterations {
                pair(allocator, layout);
            }
        });
        match (counted() - before, if awake { iterations } else { 0 }) {
            (counted, made) if counted == made => Ok(elapsed),
            (counted, made) => Err(Failure::Wrong(format!("{counted} allocations counted of {made}"))),
        }
    })
}

#[inline(never)]
fn pair(allocator: &impl GlobalAlloc, layout: Layout) {
    // SAFETY: the layout is not empty, and what is released was allocated with it just now, or is null, which the C
    // library's `free` takes as nothing.
    unsafe { allocator.dealloc(black_box(allocator.alloc(layout)), layout) };
}

/// Allocations of this thread, as far as they went through the wrapper while somebody counted.
fn counted() -> u64 {
    let mut value = [0];
    Event::ALLOC_COUNT.pmu().read(&[Event::ALLOC_COUNT.number()], &mut value);
    value[0]
}

fn wake() -> Result<dormouse::Lease, Failure> {
    // Looked for once: after `bench keys` there are a hundred thousand.
    static FOUND: OnceLock<Option<&'static Key>> = OnceLock::new();
    let find = || dormouse::keys::all().iter().map(|used| used.key).find(|key| key.name() == KEY);
    let key = FOUND.get_or_init(find).ok_or_else(|| Failure::from("the wrapper has no key"))?;
    key.acquire().map_err(|error| Failure::from(error.to_string()))
}
