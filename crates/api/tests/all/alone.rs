//! Without a host.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use dormouse_api::{Group, likely, probe, static_key, unlikely};
use dormouse_testkit::in_child;

thread_local! {
    static ALLOCATED: Cell<u32> = const { Cell::new(0) };
}

struct Counted;

// SAFETY: the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

static_key! {
    static OFF: "alone.off" = false;
    static ON: "alone.on" = true;
}
static POOL: Group = Group::new("pool");
/// Two names that the macro could have taken.
static KEY: &str = "green";
static PROBE: u8 = 7;

fn never(of: &str) -> u32 {
    panic!("{of} is evaluated")
}

#[test]
fn sites_keep_the_state_they_were_assembled_for() {
    assert!(!unlikely!(OFF) && !likely!(OFF) && !OFF.key().is_enabled());
    assert!(unlikely!(ON) && likely!(ON) && ON.key().is_enabled());
    assert_eq!((ON.key().name(), OFF.key().name()), ("alone.on", "alone.off"));
}

#[test]
fn nothing_is_evaluated_or_allocated() {
    in_child(|| {
        let before = ALLOCATED.get();
        for _ in 0..1000 {
            probe!("alone.probe", of = never("a field"), ?OFF, KEY, PROBE);
            let _entered = POOL.enter();
            assert_eq!(POOL.scope(|| 7), 7);
            let mut future = pin!(POOL.instrument(async { 8 }));
            let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(polled, Poll::Ready(8));
        }
        assert_eq!(ALLOCATED.get(), before);
        assert_eq!(std::fs::read_dir("/proc/self/task").unwrap().count(), 2, "this thread and libtest's");
    });
}
