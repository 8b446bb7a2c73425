//! Probes, in-process: what they record, when, and at what price.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dormouse::record::{Field, RecordKind};
use dormouse::{Group, Trace, TraceError, probe, probed, trace};
use dormouse_testkit::{Filter, in_child};

/// Counts the calling thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[expect(unsafe_code, reason = "an allocator is")]
// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|a| a.set(a.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Rings and the count of what they dropped are the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The records of a trace: name, phase, values as text, task, group.
fn collected(trace: &mut Trace) -> Vec<(String, RecordKind, Vec<String>, u64, u32)> {
    let mut all = Vec::new();
    trace.poll(|key, _, record| {
        let values = record.values.iter().map(Field::to_string).collect();
        all.push((key.name().to_owned(), record.phase, values, record.task, record.group));
    });
    all
}

fn values(trace: &mut Trace) -> Vec<Vec<String>> {
    collected(trace).into_iter().map(|r| r.2).collect()
}

#[test]
fn fields_of_every_form_are_recorded_in_order() {
    let _alone = alone();
    let mut trace = trace("probe.forms").unwrap();
    let (cups, kind, order, table) = (2u8, String::from("green"), Some(7), "window");
    probe!("probe.forms", cups, kind = &kind, hot = true, share = 0.5, order = ?order, ?order, where_to = %table, %table, none = None::<i32>, first = 'g',);
    assert_eq!(
        values(&mut trace),
        [["2", "\"green\"", "true", "0.5", "Some(7)", "Some(7)", "window", "window", "-", "\"g\""]]
    );
}

#[test]
fn asleep_nothing_is_evaluated() {
    let _alone = alone();
    let evaluated = Cell::new(0);
    let ask = || {
        evaluated.set(evaluated.get() + 1);
        evaluated.get()
    };
    let run = || {
        probe!("probe.lazy", n = ask());
    };
    run();
    assert_eq!(evaluated.get(), 0);
    let mut trace = trace("probe.lazy").unwrap();
    run();
    assert_eq!(values(&mut trace), [["1"]]);
    drop(trace);
    run();
    assert_eq!(evaluated.get(), 1);
}

#[test]
fn a_threads_first_record_allocates_nothing() {
    let _alone = alone();
    let mut trace = trace("probe.frugal").unwrap();
    std::thread::spawn(|| {
        let before = ALLOCATIONS.with(Cell::get);
        for n in 0..10 {
            probe!("probe.frugal", n, half = 0.5, name = "short");
        }
        assert_eq!(ALLOCATIONS.with(Cell::get), before);
    })
    .join()
    .unwrap();
    assert_eq!(values(&mut trace).len(), 10);
}

#[test]
fn a_first_record_maps_no_memory() {
    in_child(|| {
        let mut trace = trace("probe.frugal_too").unwrap();
        std::thread::spawn(|| {
            Filter::kill(&[libc::SYS_mmap, libc::SYS_mremap, libc::SYS_brk]).install();
            for n in 0..10 {
                probe!("probe.frugal_too", n, half = 0.5, name = "short");
            }
        })
        .join()
        .unwrap();
        assert_eq!(values(&mut trace).len(), 10);
    });
}

#[test]
fn a_slow_reader_is_told_its_losses() {
    let _alone = alone();
    let mut trace = trace("probe.flood").unwrap();
    let written = 10_000;
    for n in 0..written {
        probe!("probe.flood", n);
    }
    let seen = values(&mut trace).len() as u64;
    let lost = trace.dropped();
    assert!(lost.rings > 0);
    assert_eq!(seen + lost.rings, written);
    assert_eq!(trace.dropped().rings, 0, "each loss is told once");
    probe!("probe.flood", n = 1);
    assert_eq!(values(&mut trace).len(), 1, "an emptied ring works again");
}

#[test]
fn two_traces_each_get_what_they_asked_for() {
    let _alone = alone();
    let mut tea = trace("two.tea").unwrap();
    let mut both = trace("two.*").unwrap();
    probe!("two.tea", n = 1);
    probe!("two.cake", n = 2);
    assert_eq!(values(&mut tea), [["1"]]);
    assert_eq!(values(&mut both), [["1"], ["2"]]);
    drop(both);
    probe!("two.tea", n = 3);
    assert_eq!(values(&mut tea), [["3"]], "the other trace's end does not put it to sleep");
}

#[test]
fn a_trace_has_no_earlier_records() {
    let _alone = alone();
    let run = |n| probe!("probe.before", n);
    let key = dormouse::keys::all().into_iter().find(|k| k.key.name() == "probe.before").unwrap().key;
    key.enable().unwrap();
    run(1);
    let mut trace = trace("probe.before").unwrap();
    run(2);
    assert_eq!(values(&mut trace), [["2"]]);
    key.disable().unwrap();
}

#[test]
fn records_carry_task_and_group() {
    let _alone = alone();
    let mut trace = trace("probe.where").unwrap();
    let group = Group::new("probes of this test");
    let run = || probe!("probe.where");
    run();
    let entered = group.enter();
    run();
    drop(entered);
    let inside = group.enter();
    run();
    drop(inside);
    let found = collected(&mut trace);
    assert_eq!((found[0].3, found[0].4), (0, 0));
    assert_eq!((found[1].4, found[2].4), (group.id(), group.id()));
    assert_ne!(found[1].3, found[2].3, "two scopes are two tasks");
}

#[probed("fn.brew", fields(cups, strength = cups * 2))]
fn brew(cups: u32) -> u32 {
    if cups == 0 {
        return 7;
    }
    cups + 1
}

#[probed]
fn plain() {}

/// Keeps its attributes, generics and docs.
#[probed("fn.generic", fields(?value))]
#[must_use]
fn generic<T: std::fmt::Debug + Clone>(value: &T) -> T {
    value.clone()
}

#[probed("fn.steep", fields(cups))]
async fn steep(cups: u32) -> u32 {
    tokio::task::yield_now().await;
    cups
}

#[test]
fn a_probed_function_records_its_beginning_and_end() {
    let _alone = alone();
    let mut trace = trace("fn.*,all::probes::plain").unwrap();
    assert_eq!((brew(0), brew(2)), (7, 3));
    plain();
    assert_eq!(generic(&"x"), "x");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(steep(4)), 4);
    let found = collected(&mut trace);
    let shape: Vec<_> = found.iter().map(|r| (r.0.as_str(), r.1)).collect();
    let both = |name| [(name, RecordKind::Enter), (name, RecordKind::Exit)];
    let expected =
        [both("fn.brew"), both("fn.brew"), both("all::probes::plain"), both("fn.generic"), both("fn.steep")];
    assert_eq!(shape, expected.concat());
    assert_eq!(found[0].2, ["0", "0"]);
    assert_eq!(found[2].2, ["2", "4"]);
    for exit in found.iter().filter(|r| r.1 == RecordKind::Exit) {
        let elapsed: u64 = exit.2[0].parse().unwrap();
        assert!(elapsed < 60_000_000_000, "{elapsed} ns");
    }
}

#[test]
fn a_function_that_began_asleep_records_no_end() {
    #[probed("fn.midway")]
    fn midway(wake: impl FnOnce() -> Trace) -> Trace {
        wake()
    }
    let _alone = alone();
    let mut running = midway(|| trace("fn.midway").unwrap());
    assert_eq!(collected(&mut running), []);
}

#[test]
fn a_trace_of_nothing_says_so() {
    assert!(matches!(trace("no.such.probe"), Err(TraceError::NoMatch { glob }) if glob == "no.such.probe"));
    assert!(matches!(trace("["), Err(TraceError::Selector(_))));
}
