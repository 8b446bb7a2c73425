//! An allocator with fork handlers of its own, as jemalloc is: it takes its locks before a fork,
//! and gives them back after. It installs the handlers at its first allocation. A fork takes
//! dormouse's locks first, under which other threads allocate, and then the allocator's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;

use dormouse_sys::process::fork::is_forking;
use dormouse_sys::process::identity::tid;
use dormouse_testkit::fork;

#[global_allocator]
static ALLOCATOR: Locking = Locking;

/// The thread whose fork has the allocator; 0: none.
static FORKER: AtomicU32 = AtomicU32::new(0);
/// How many allocations are under way.
static INSIDE: AtomicU64 = AtomicU64::new(0);
/// Whether forks take the allocator.
static LOCKS: AtomicBool = AtomicBool::new(false);
/// Forks that had dormouse's locks when they took the allocator.
static IN_ORDER: AtomicU64 = AtomicU64::new(0);

struct Locking;

// SAFETY: the system's.
unsafe impl GlobalAlloc for Locking {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        begin();
        // SAFETY: the caller's.
        let memory = unsafe { System.alloc(layout) };
        INSIDE.fetch_sub(1, Ordering::SeqCst);
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        begin();
        // SAFETY: the caller's.
        unsafe { System.dealloc(memory, layout) };
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

fn begin() {
    static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
    if !IS_INSTALLED.swap(true, Ordering::Relaxed) {
        // SAFETY: plain functions of this program.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
    }
    loop {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        match FORKER.load(Ordering::SeqCst) {
            0 => return,
            forker if forker == tid() => {
                // It would wait for itself.
                eprintln!("the thread that forks uses the allocator");
                std::process::abort();
            }
            _ => {
                INSIDE.fetch_sub(1, Ordering::SeqCst);
                thread::yield_now();
            }
        }
    }
}

extern "C" fn before() {
    if LOCKS.load(Ordering::Relaxed) {
        IN_ORDER.fetch_add(u64::from(is_forking()), Ordering::Relaxed);
        FORKER.store(tid(), Ordering::SeqCst);
        while INSIDE.load(Ordering::SeqCst) > 0 {
            thread::yield_now();
        }
    }
}

extern "C" fn after() {
    FORKER.store(0, Ordering::SeqCst);
}

extern "C" fn in_child() {
    // Of threads that the child does not have.
    INSIDE.store(0, Ordering::SeqCst);
    after();
}

pub(crate) fn main() {
    const FORKS: u64 = 200;
    let _agent = dormouse::init().unwrap();
    LOCKS.store(true, Ordering::Relaxed);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for name in ["one", "other"] {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let group = dormouse::Group::new(name);
                    drop(dormouse::start_counting(&[dormouse::Event::TASK_CLOCK]));
                    std::hint::black_box((dormouse::keys::all(), group.read()));
                }
            });
        }
        for _ in 0..FORKS {
            let status = fork(|| drop(std::hint::black_box(dormouse::keys::all())));
            assert!(status.success(), "{status}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(IN_ORDER.load(Ordering::Relaxed), FORKS, "dormouse's locks come first");
    println!("1 passed, 0 failed");
}
