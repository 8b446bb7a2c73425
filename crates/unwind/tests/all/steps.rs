//! The caller of a library's function at each of its instructions, stopped there by the
//! processor's trap flag. Other processors have none that a program may use.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use dormouse_testkit::in_child;
use dormouse_unwind::arch::RED_ZONE;
use dormouse_unwind::{CallFrame, ThreadCache, WalkEnd, frames, own, walk};

// `stepped_call(function, arguments, outside)` calls a function of four arguments with a number in
// the frame pointer that nobody else has there, and with the trap flag. `outside` is left the stack
// pointer of the call.
std::arch::global_asm!(
    ".pushsection .text.stepped, \"ax\", @progbits",
    "stepped_call:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbp, 0",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "mov rax, rdi",
    "mov r10, rsi",
    "mov [rdx], rsp",
    "mov rdi, [r10]",
    "mov rsi, [r10 + 8]",
    "mov rdx, [r10 + 16]",
    "mov rcx, [r10 + 24]",
    "mov r11, rax",
    "mov rbp, 0x5deadbee",
    "xor eax, eax",
    "pushfq",
    "or qword ptr [rsp], 0x100",
    "popfq",
    "call r11",
    "stepped_return:",
    "pushfq",
    "and qword ptr [rsp], -0x101",
    "popfq",
    "add rsp, 8",
    "pop rbx",
    "pop rbp",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

unsafe extern "C" {
    fn stepped_call(function: *const c_void, arguments: &[usize; 4], outside: *mut usize) -> usize;
    fn stepped_return();
}

/// The stack pointer of the call, and the end of the stack.
static OUTSIDE: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// Instructions outside of the call; those from which the walk led to it, and to the end of the
/// stack; the last one from which it did not; the most frames up to the call; and the frames from
/// there on.
static STEPS: AtomicUsize = AtomicUsize::new(0);
static RIGHT: AtomicUsize = AtomicUsize::new(0);
static OTHER: AtomicUsize = AtomicUsize::new(0);
static DEEPEST: AtomicUsize = AtomicUsize::new(0);
static OUTER: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CACHE: ThreadCache = const { ThreadCache::new() };
}

extern "C" fn trapped(_signal: i32, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a context of this type.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let from = CallFrame {
        instruction: registers[libc::REG_RIP as usize] as usize,
        stack: registers[libc::REG_RSP as usize] as usize,
        frame: registers[libc::REG_RBP as usize] as usize,
        link: 0,
    };
    let returns_to = stepped_return as *const () as usize;
    if (stepped_call as *const () as usize..returns_to + 16).contains(&from.instruction) {
        return;
    }
    STEPS.fetch_add(1, Ordering::Relaxed);
    let (mut found, mut depth, own) = ([0; 200], 0, from.stack - RED_ZONE..END.load(Ordering::Relaxed));
    let take = |frame: CallFrame| frames::take(frame.instruction, &mut depth, &mut found);
    // SAFETY: from its stack pointer on lies this thread's stack.
    let end = CACHE.with(|cache| unsafe { walk(Some(cache), from, &own, take) }).end;
    let depth = depth as usize;
    let call = found[..depth].iter().position(|&frame| frame == returns_to - 1);
    let outer = call.map_or(0, |call| depth - call);
    OUTER.compare_exchange(0, outer, Ordering::Relaxed, Ordering::Relaxed).ok();
    if end == WalkEnd::Outermost && outer > 2 && outer == OUTER.load(Ordering::Relaxed) {
        RIGHT.fetch_add(1, Ordering::Relaxed);
        DEEPEST.fetch_max(depth - outer, Ordering::Relaxed);
    } else {
        OTHER.store(from.instruction, Ordering::Relaxed);
    }
}

/// Calls a function, and looks for the caller at each of its instructions: how many they were, and
/// of how many functions the deepest stack.
fn step_through(name: &str, function: *const (), arguments: [usize; 4]) -> (usize, usize) {
    for counter in [&STEPS, &RIGHT, &OTHER, &DEEPEST, &OUTER] {
        counter.store(0, Ordering::Relaxed);
    }
    // SAFETY: each caller below passes what its function takes.
    unsafe { stepped_call(function.cast(), &arguments, OUTSIDE.as_ptr()) };
    let [steps, right, other, deepest] =
        [&STEPS, &RIGHT, &OTHER, &DEEPEST].map(|counter| counter.load(Ordering::Relaxed));
    println!("{name}: {right} of {steps} instructions, {deepest} deep");
    assert!(other == 0, "{name}: no caller at {other:#x}, {right} of {steps} have theirs");
    assert!(right > 0 && right == steps, "{name}: {right} of {steps}");
    (steps, deepest)
}

#[test]
fn the_caller_is_right_at_every_instruction() {
    #![allow(clippy::disallowed_methods, reason = "no time is asked for")]
    in_child(|| {
        own::begin().unwrap();
        let maps = std::fs::read("/proc/self/maps").unwrap();
        // SAFETY: looks up a list that the kernel has made.
        let kernels = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
        for line in String::from_utf8_lossy(&maps).lines().filter(|line| line.contains(" r-xp ")) {
            let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
            assert!(own::learn_object(start) || start == 0xffff_ffff_ff60_0000, "{line}");
        }
        println!("{} bytes of tables, the kernel's at {kernels:#x}", own::size());
        dormouse_sys::own_stack::learn();
        let local = 0_u8;
        let stack = dormouse_sys::own_stack::from((&raw const local).addr());
        assert!(!stack.is_empty());
        END.store(stack.end, Ordering::Relaxed);
        // SAFETY: an all-zero action is valid; the handler reads memory that is there.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = trapped as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()), 0);
        }
        let (from, mut to) = ([7_u8; 9000], [0_u8; 9000]);
        let (from, to) = (from.as_ptr().addr(), to.as_mut_ptr().addr());
        for length in [0, 1, 15, 16, 33, 100, 300, 5000] {
            step_through("memcpy", libc::memcpy as *const (), [to, from, length, 0]);
            step_through("memmove", libc::memmove as *const (), [to + 1, to, length, 0]);
            step_through("memset", libc::memset as *const (), [to, 3, length, 0]);
            step_through("memcmp", libc::memcmp as *const (), [to, to, length, 0]);
        }
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let time_at = (&raw mut time).addr();
        // The library's function, and the kernel's below it.
        for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME, libc::CLOCK_THREAD_CPUTIME_ID] {
            let (steps, deepest) = step_through(
                "clock_gettime",
                libc::clock_gettime as *const (),
                [clock as usize, time_at, 0, 0],
            );
            assert!(steps > 10 && deepest >= 2 || kernels == 0, "{steps} {deepest}");
        }
        let mut pair = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()) }, 0);
        let [near, far] = pair.map(|descriptor| descriptor as usize);
        // They keep the kind of cancellation in the frame pointer if there is another thread.
        let other = std::thread::spawn(std::thread::park);
        step_through("send", libc::send as *const (), [near, from, 100, 0]);
        step_through("recv", libc::recv as *const (), [far, to, 50, 0]);
        step_through("write", libc::write as *const (), [near, from, 100, 0]);
        step_through("read", libc::read as *const (), [far, to, 50, 0]);
        let mut asked = libc::pollfd { fd: pair[1], events: libc::POLLIN, revents: 0 };
        step_through("poll", libc::poll as *const (), [(&raw mut asked).addr(), 1, 0, 0]);
        other.thread().unpark();
        other.join().unwrap();
        for size in [24, 1000, 100_000, 10_000_000] {
            step_through("malloc", libc::malloc as *const (), [size, 0, 0, 0]);
            // SAFETY: any length.
            let made = unsafe { libc::malloc(size) };
            step_through("realloc", libc::realloc as *const (), [made.addr(), 2 * size, 0, 0]);
            // SAFETY: as above.
            let made = unsafe { libc::malloc(size) };
            step_through("free", libc::free as *const (), [made.addr(), 0, 0, 0]);
        }
        let format = c"%d cups and %x";
        let (steps, deepest) =
            step_through("snprintf", libc::snprintf as *const (), [to, 100, format.as_ptr().addr(), 5]);
        assert!(steps > 500 && deepest >= 3, "{steps} {deepest}");
        step_through("getenv", libc::getenv as *const (), [c"PATH".as_ptr().addr(), 0, 0, 0]);
    });
}
