//! Rings of threads that fork, end, or leave a write by a signal handler that does not return.
#![cfg(target_env = "gnu")]
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use dormouse_sys::records::{self, RINGS};
use dormouse_testkit::{Child, fork, in_child};
use rustix::param::page_size;

fn drained() -> Vec<u8> {
    let mut all = Vec::new();
    records::drain_each(&mut Vec::new(), |_, _, bytes| all.extend_from_slice(bytes));
    all
}

/// Runs `body` while `RINGS` other threads have a ring each, with a record in it.
fn while_all_rings_are_taken(body: impl FnOnce()) {
    let (taken, done) = (Barrier::new(RINGS + 1), Barrier::new(RINGS + 1));
    std::thread::scope(|scope| {
        for _ in 0..RINGS {
            scope.spawn(|| {
                assert!(records::push(b"theirs"));
                taken.wait();
                done.wait();
            });
        }
        taken.wait();
        body();
        done.wait();
    });
}

#[test]
fn a_fork_child_finds_the_pool_empty() {
    in_child(|| {
        while_all_rings_are_taken(|| {
            assert!(!records::push(b"mine"));
            assert_eq!(records::dropped(), 1);
            let status = fork(|| {
                assert_eq!(records::dropped(), 0);
                assert!(records::push(b"child's"));
                assert_eq!(drained(), b"child's");
            });
            assert!(status.success(), "{status}");
            assert!(!records::push(b"mine"), "the parent's rings are still taken");
        });
    });
}

#[test]
fn rings_that_nobody_uses_cost_no_memory() {
    in_child(|| {
        // By its pages: the sum in `status` may be some hundred KiB behind.
        let anonymous = || {
            let pages = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
            let line = pages.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
        };
        anonymous();
        let before = anonymous();
        assert_eq!((drained().len(), records::dropped()), (0, 0));
        let read = anonymous();
        assert!(read < before + 64, "{} KiB by looking", read - before);
        while records::dropped() == 0 {
            assert!(records::push(&[b'r'; 1000]));
        }
        let used = anonymous() - read;
        // And what the first record of a thread touches, by whole pages.
        assert!((60..100).contains(&used), "{used} KiB by a ring that was full");
    });
}

/// A record that cannot be copied whole: its second half is on a page that must not be read.
fn record() -> &'static [u8] {
    // SAFETY: a new mapping of two pages, which stays; the slice is read by `push` alone, whose
    // fault the handlers expect.
    unsafe {
        let pages = libc::mmap(
            ptr::null_mut(),
            2 * page_size(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(pages, libc::MAP_FAILED);
        let start = pages.cast::<u8>().add(page_size() - 16);
        start.write_bytes(b'r', 32);
        let second = pages.cast::<u8>().add(page_size());
        assert_eq!(libc::mprotect(second.cast(), page_size(), libc::PROT_NONE), 0);
        UNREADABLE.store(second, Ordering::Relaxed);
        std::slice::from_raw_parts(start, 32)
    }
}

static UNREADABLE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

fn on_fault(handler: extern "C" fn(i32), flags: i32) {
    // SAFETY: an all-zero action is valid.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()), 0);
    }
}

static NESTED: AtomicBool = AtomicBool::new(true);

extern "C" fn record_and_return(_signal: i32) {
    NESTED.store(records::push(b"nested"), Ordering::Relaxed);
    // SAFETY: the page of `record`.
    unsafe { libc::mprotect(UNREADABLE.load(Ordering::Relaxed).cast(), page_size(), libc::PROT_READ) };
}

#[test]
fn a_record_inside_another_is_dropped() {
    Child::new().with_each(&[&[], &[("ALTERNATE", "1")]]).run(|| {
        let other = std::env::var_os("ALTERNATE").is_some();
        let mut stack = vec![0_u8; 1 << 16];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if other {
                    let stack =
                        libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
                    // SAFETY: the memory outlives the thread.
                    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) }, 0);
                }
                on_fault(record_and_return, if other { libc::SA_ONSTACK } else { 0 });
                assert!(records::push(b"first"));
                assert!(records::push(record()));
                assert!(!NESTED.load(Ordering::Relaxed));
                assert_eq!(records::dropped(), 1);
                assert_eq!(drained(), [b"first".as_slice(), &[b'r'; 32]].concat());
                let none = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
                // SAFETY: no stack any more, before its memory goes.
                assert_eq!(unsafe { libc::sigaltstack(&raw const none, ptr::null_mut()) }, 0);
            });
        });
    });
}

/// Where a handler goes that does not return.
static OUT: AtomicPtr<libc::ucontext_t> = AtomicPtr::new(ptr::null_mut());
static LEFT: AtomicU64 = AtomicU64::new(0);

extern "C" fn leave(_signal: i32) {
    LEFT.fetch_add(1, Ordering::Relaxed);
    // SAFETY: a context that waits in `entered`.
    unsafe { libc::setcontext(OUT.load(Ordering::Relaxed)) };
}

/// Runs `body` on the stack `stack`, and comes back when it ends or calls `setcontext` on [`OUT`].
fn entered(stack: &mut [u8], body: extern "C" fn()) {
    let mut out = MaybeUninit::<libc::ucontext_t>::zeroed();
    let mut inside = MaybeUninit::<libc::ucontext_t>::zeroed();
    let before = OUT.swap(out.as_mut_ptr(), Ordering::Relaxed);
    // SAFETY: both contexts are filled before they are used, and live until the last jump to them.
    unsafe {
        assert_eq!(libc::getcontext(inside.as_mut_ptr()), 0);
        let context = inside.assume_init_mut();
        context.uc_stack.ss_sp = stack.as_mut_ptr().cast();
        context.uc_stack.ss_size = stack.len();
        context.uc_link = out.as_mut_ptr();
        libc::makecontext(context, body, 0);
        assert_eq!(libc::swapcontext(out.as_mut_ptr(), inside.as_ptr()), 0);
    }
    OUT.store(before, Ordering::Relaxed);
}

static STACK: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
const HALF: usize = 1 << 18;

extern "C" fn push_what_faults() {
    records::push(record());
}

/// In the upper half of the stack; what faults is in the lower half, as a deeper call of it would
/// be.
extern "C" fn leave_writes_by_handlers() {
    // SAFETY: no other code uses the lower half.
    let below = unsafe { std::slice::from_raw_parts_mut(STACK.load(Ordering::Relaxed), HALF) };
    for round in 1..=100 {
        entered(below, push_what_faults);
        assert_eq!(LEFT.load(Ordering::Relaxed), round);
        assert!(records::push(b"after"), "mute after {round} writes that were left");
        assert_eq!(drained(), b"after");
    }
}

#[test]
fn a_write_that_a_handler_left_mutes_nobody() {
    in_child(|| {
        assert!(records::push(b"first"));
        assert_eq!(drained(), b"first");
        on_fault(leave, 0);
        let mut stack = vec![0_u8; 2 * HALF];
        STACK.store(stack.as_mut_ptr(), Ordering::Relaxed);
        entered(&mut stack[HALF..], leave_writes_by_handlers);
        assert_eq!((LEFT.load(Ordering::Relaxed), records::dropped()), (100, 0));
    });
}

extern "C" fn leave_writes_into_a_full_ring() {
    // SAFETY: no other code uses the lower half.
    let below = unsafe { std::slice::from_raw_parts_mut(STACK.load(Ordering::Relaxed), HALF) };
    for number in 0..200_000_u64 {
        if number % 1000 == 0 {
            entered(below, push_what_faults);
        }
        assert!(records::push(&number.to_le_bytes()), "mute at {number}");
    }
    let newest = drained();
    let numbers: Vec<u64> =
        newest.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    assert_eq!(numbers, (200_000 - numbers.len() as u64..200_000).collect::<Vec<_>>());
    assert_eq!(numbers.len() as u64 + records::dropped(), 200_000);
}

#[test]
fn a_left_write_keeps_a_full_ring_moving() {
    in_child(|| {
        assert!(records::push(b"first"));
        assert_eq!(drained(), b"first");
        on_fault(leave, 0);
        let mut stack = vec![0_u8; 2 * HALF];
        STACK.store(stack.as_mut_ptr(), Ordering::Relaxed);
        entered(&mut stack[HALF..], leave_writes_into_a_full_ring);
        assert_eq!(LEFT.load(Ordering::Relaxed), 200);
    });
}
