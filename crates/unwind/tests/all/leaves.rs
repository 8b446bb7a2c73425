//! Callers of a function that a signal has interrupted before it has saved anything, from the
//! registers of the interruption, and from inside of the handler.
#![cfg(not(miri))]
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use dormouse_sys::stack;
use dormouse_testkit::{in_child, skip};
use dormouse_unwind::{CallFrame, WalkEnd, arch, frames, own, walk};

/// The functions of a walk, and how it ended.
struct Found {
    frames: [AtomicUsize; 100],
    depth: AtomicUsize,
    is_whole: AtomicUsize,
}

impl Found {
    const fn none() -> Self {
        let frames = [const { AtomicUsize::new(0) }; 100];
        Self { frames, depth: AtomicUsize::new(0), is_whole: AtomicUsize::new(0) }
    }

    fn take(&self, from: CallFrame) {
        let (mut depth, mut room) = (0, [0; 100]);
        let own = from.stack.saturating_sub(arch::RED_ZONE)..END.load(Ordering::Relaxed);
        // SAFETY: from its stack pointer on lies this thread's stack.
        let walked =
            unsafe { walk(None, from, &own, |frame| frames::take(frame.instruction, &mut depth, &mut room)) };
        self.frames.iter().zip(room).for_each(|(into, found)| into.store(found, Ordering::Relaxed));
        self.depth.store(depth as usize, Ordering::Relaxed);
        let is_whole = walked.end == WalkEnd::Outermost && !walked.is_missed;
        self.is_whole.store(is_whole.into(), Ordering::Relaxed);
    }

    fn functions(&self) -> Vec<usize> {
        let depth = self.depth.load(Ordering::Relaxed);
        self.frames.iter().take(depth).map(|frame| frame.load(Ordering::Relaxed)).collect()
    }
}

/// The end of the stack.
static END: AtomicUsize = AtomicUsize::new(0);
static OUTSIDE: Found = Found::none();
static INSIDE: Found = Found::none();

extern "C" fn interrupted(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's context.
    OUTSIDE.take(unsafe { stack::interrupted(context) });
    INSIDE.take(stack::here());
}

/// Is interrupted in the C library's `syscall`, a leaf.
#[inline(never)]
fn interrupt() {
    // SAFETY: a signal of this thread.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGUSR1) };
    assert_eq!(sent, 0);
}

/// Is interrupted in a function that no table covers, and that saves nothing.
#[inline(never)]
fn interrupt_in(uncovered: crate::arch::Uncovered) {
    // SAFETY: a signal of this thread.
    let sent = unsafe { uncovered(libc::getpid(), libc::gettid(), libc::SIGUSR1) };
    assert_eq!(sent, 0);
}

/// Runs `body` in a child in which all code is learned and the signal is handled.
fn with_handler(body: impl FnOnce()) {
    in_child(|| {
        own::begin().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        for line in maps.lines().filter(|line| line.contains(" r-xp ")) {
            own::learn_object(u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap());
        }
        dormouse_sys::own_stack::learn();
        let local = 0_u8;
        END.store(dormouse_sys::own_stack::from((&raw const local).addr()).end, Ordering::Relaxed);
        // SAFETY: an all-zero action is valid; the handler reads memory that is there.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = interrupted as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
        }
        body();
    });
}

#[test]
fn callers_of_interrupted_leaves_are_found() {
    with_handler(|| {
        interrupt();
        // The kernel's code for handlers is learned when a walk has met it.
        own::learn_missed();
        interrupt();
        let (outside, inside) = (OUTSIDE.functions(), INSIDE.functions());
        let leaf = libc::syscall as *const () as usize;
        assert!((leaf..leaf + 200).contains(&outside[0]), "{outside:x?} {leaf:x}");
        let caller = interrupt as *const () as usize;
        assert!((caller..caller + 1000).contains(&outside[1]), "{outside:x?} {caller:x}");
        assert_eq!(OUTSIDE.is_whole.load(Ordering::Relaxed), 1, "{outside:x?}");
        // The handler, the kernel's code, and then the same.
        assert!(inside.ends_with(&outside), "{inside:x?} {outside:x?}");
        assert!(inside.len() > outside.len() + 1, "{inside:x?} {outside:x?}");
        assert_eq!(INSIDE.is_whole.load(Ordering::Relaxed), 1, "{inside:x?}");
    });
}

/// On processors where a call leaves the return address on the stack such a function keeps a frame
/// pointer, or its caller is left out.
#[test]
fn the_caller_of_uncovered_code_is_found() {
    let Some(uncovered) = crate::arch::UNCOVERED else {
        return skip("a call leaves the return address on the stack: uncovered code keeps a frame pointer");
    };
    with_handler(|| {
        interrupt_in(uncovered);
        // Code that no table covers is learned when a walk has met it.
        own::learn_missed();
        interrupt_in(uncovered);
        let functions = OUTSIDE.functions();
        let leaf = uncovered as *const () as usize;
        assert!((leaf..leaf + 32).contains(&functions[0]), "{functions:x?} {leaf:x}");
        let caller = interrupt_in as *const () as usize;
        assert!((caller..caller + 1000).contains(&functions[1]), "{functions:x?} {caller:x}");
        assert_eq!(OUTSIDE.is_whole.load(Ordering::Relaxed), 1, "{functions:x?}");
    });
}
