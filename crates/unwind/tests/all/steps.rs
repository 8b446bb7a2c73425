//! The caller of a library's function at each of its instructions, stopped there by the
//! processor's trap flag.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use dormouse_testkit::in_child;
use dormouse_unwind::{CallFrame, CallerStep, RED_ZONE, libraries, prepare_libraries};

// `stepped_call(function, arguments, outside)` calls a function of four arguments with a number in
// the frame pointer that nobody else has there, and with the trap flag. `outside` is left the stack
// pointer of the call.
std::arch::global_asm!(
    ".pushsection .text.stepped, \"ax\", @progbits",
    "stepped_call:",
    "push rbp",
    "push rbx",
    "sub rsp, 8",
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
    ".popsection",
);

unsafe extern "C" {
    fn stepped_call(function: *const c_void, arguments: &[usize; 4], outside: *mut usize) -> usize;
    fn stepped_return();
}

const MARK: usize = 0x5dea_dbee;

/// The stack pointer of the call.
static OUTSIDE: AtomicUsize = AtomicUsize::new(0);
/// Instructions in libraries; those from which the steps led to the call; the last one from which
/// they did not; those in stubs; and the most steps.
static STEPS: AtomicUsize = AtomicUsize::new(0);
static RIGHT: AtomicUsize = AtomicUsize::new(0);
static OTHER: AtomicUsize = AtomicUsize::new(0);
static STUBS: AtomicUsize = AtomicUsize::new(0);
static DEEPEST: AtomicUsize = AtomicUsize::new(0);

extern "C" fn trapped(_signal: i32, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a context of this type.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let mut at = CallFrame {
        instruction: registers[libc::REG_RIP as usize] as usize,
        stack: registers[libc::REG_RSP as usize] as usize,
        frame: registers[libc::REG_RBP as usize] as usize,
    };
    let (from, Some(libraries)) = (at.instruction, libraries()) else { return };
    if !libraries.contains(from) {
        return;
    }
    STEPS.fetch_add(1, Ordering::Relaxed);
    let outside = OUTSIDE.load(Ordering::Relaxed);
    // Code that is interrupted may have words below its stack pointer, which the kernel spares.
    let (lowest, mut depth) = (at.stack - RED_ZONE, 0);
    while libraries.contains(at.instruction) {
        let word = |at: usize| {
            let is_there = (lowest..outside).contains(&at);
            // SAFETY: up to the stack pointer of the call lies this thread's stack.
            is_there.then(|| unsafe { std::ptr::with_exposed_provenance::<usize>(at).read_volatile() })
        };
        match libraries.caller(at, word) {
            CallerStep::Found(caller) => at = caller,
            CallerStep::Outermost | CallerStep::Unknown => break,
        }
        depth += 1;
    }
    let returns_to = stepped_return as *const () as usize;
    // SAFETY: an instruction that is about to run.
    let code = unsafe { std::ptr::with_exposed_provenance::<[u8; 6]>(from).read_volatile() };
    if at == (CallFrame { instruction: returns_to - 1, stack: outside, frame: MARK }) {
        RIGHT.fetch_add(1, Ordering::Relaxed);
        DEEPEST.fetch_max(depth, Ordering::Relaxed);
    } else if depth == 0 && (code.starts_with(&[0xff, 0x25]) || code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa])) {
        // A stub of the linker's: its table is an expression.
        STUBS.fetch_add(1, Ordering::Relaxed);
    } else {
        OTHER.store(from, Ordering::Relaxed);
    }
}

/// Calls a function, and looks for the caller at each of its instructions: how many they were, and
/// of how many functions the deepest stack.
fn step_through(name: &str, function: *const (), arguments: [usize; 4]) -> (usize, usize) {
    for counter in [&STEPS, &RIGHT, &OTHER, &STUBS, &DEEPEST] {
        counter.store(0, Ordering::Relaxed);
    }
    // SAFETY: each caller below passes what its function takes.
    unsafe { stepped_call(function.cast(), &arguments, OUTSIDE.as_ptr()) };
    let [steps, right, other, stubs, deepest] =
        [&STEPS, &RIGHT, &OTHER, &STUBS, &DEEPEST].map(|counter| counter.load(Ordering::Relaxed));
    println!("{name}: {right} of {steps} instructions, {stubs} in stubs, {deepest} deep");
    assert!(other == 0, "{name}: no caller at {other:#x}, {right} of {steps} have theirs");
    assert!(
        right > 0 && right + stubs == steps && stubs * 10 <= steps,
        "{name}: {right}, {stubs} of {steps}"
    );
    (steps, deepest)
}

#[test]
fn the_caller_is_right_at_every_instruction() {
    #![allow(clippy::disallowed_methods, reason = "no time is asked for")]
    in_child(|| {
        prepare_libraries();
        if dormouse_sys::loader::is_in_executable(libc::memcpy as *const () as usize) {
            return dormouse_testkit::skip("the C library is linked in");
        }
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
            assert!(steps > 10 && deepest >= 2, "{steps} {deepest}");
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
