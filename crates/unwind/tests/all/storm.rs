//! Walks in a signal handler, a thousand times a second on each thread, while objects are loaded
//! and unloaded, threads come and go, the process forks, and generated code is unmapped.
#![cfg(all(target_os = "linux", not(miri)))]
#![allow(unsafe_code)]

use crate::arch;

use std::cell::Cell;
use std::ffi::c_void;
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_sys::own_stack;
use dormouse_testkit::{in_child, storm_time};
use dormouse_unwind::arch::{HAS_LINK, RED_ZONE};
use dormouse_unwind::{CallFrame, WalkEnd, claim, own, walk};

/// The time between two walks of a thread.
const PERIOD_NS: i64 = 1_000_000;
/// The calls of the steady thread.
const CALLS: usize = 40;

thread_local! {
    /// The bounds of the thread's stack, and its id.
    static OWN: Cell<(usize, usize, u32)> = const { Cell::new((0, 0, 0)) };
    static IS_STEADY: Cell<bool> = const { Cell::new(false) };
}

static END: AtomicBool = AtomicBool::new(false);
/// All walks, and those in generated code.
static WALKS: AtomicU64 = AtomicU64::new(0);
static GENERATED_WALKS: AtomicU64 = AtomicU64::new(0);
/// Where the generated code is.
static GENERATED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// The walks of the steady thread that met no function which is yet to be learned; and those among
/// them that came to the end of the stack.
static STEADY: AtomicU64 = AtomicU64::new(0);
static WHOLE: AtomicU64 = AtomicU64::new(0);

extern "C" fn walked(_signal: i32, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the thread's own `errno`; the kernel passes a context of this type.
    let (errno, registers) =
        unsafe { (*libc::__errno_location(), &(*context.cast::<libc::ucontext_t>()).uc_mcontext) };
    let from = arch::interrupted(registers);
    let (start, end, tid) = OWN.get();
    let own = if (start..end).contains(&from.stack) { from.stack - RED_ZONE..end } else { 0..0 };
    let (mut depth, mut last) = (0, 0);
    let take = |frame: CallFrame| {
        // No walk goes down, or in circles. A call that puts nothing on the stack leaves the first
        // function where its caller is.
        let is_up = frame.stack > last || HAS_LINK && depth == 1 && frame.stack == last;
        (depth, last) = (depth + 1, frame.stack);
        is_up && depth < 1000
    };
    let cache = claim(tid);
    // SAFETY: from its stack pointer on lies this thread's stack.
    let found = unsafe { walk(cache.as_deref(), from, &own, take) };
    drop(cache);
    WALKS.fetch_add(1, Relaxed);
    let generated = GENERATED[0].load(Relaxed)..GENERATED[1].load(Relaxed);
    GENERATED_WALKS.fetch_add(u64::from(generated.contains(&(from.instruction as u64))), Relaxed);
    if IS_STEADY.get() {
        // Below it are at least the functions in which the thread began.
        let is_whole = found.end == WalkEnd::Outermost && depth > 4;
        STEADY.fetch_add(u64::from(!found.is_missed), Relaxed);
        WHOLE.fetch_add(u64::from(!found.is_missed && is_whole), Relaxed);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

fn signal() -> i32 {
    libc::SIGRTMIN() + 5
}

/// The calling thread is interrupted until this is dropped.
struct Armed(libc::timer_t);

impl Armed {
    fn new() -> Self {
        let [start, length, guard] = own_stack::own_words().unwrap();
        let stack: Range<usize> = start + guard..start + length;
        // SAFETY: zeros are values of these; the timer is deleted by the thread that it interrupts.
        unsafe {
            let tid = libc::gettid();
            OWN.set((stack.start, stack.end, tid.cast_unsigned()));
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal();
            event.sigev_notify_thread_id = tid;
            let mut timer = std::ptr::null_mut();
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer), 0);
            let period = libc::timespec { tv_sec: 0, tv_nsec: PERIOD_NS };
            let every = libc::itimerspec { it_interval: period, it_value: period };
            assert_eq!(libc::timer_settime(timer, 0, &raw const every, std::ptr::null_mut()), 0);
            Self(timer)
        }
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        // SAFETY: made by `new`.
        unsafe { libc::timer_delete(self.0) };
    }
}

fn work(rounds: u64) -> u64 {
    (0..rounds).fold(1, |sum, n| black_box(sum ^ n))
}

#[inline(never)]
fn deep(calls: usize) -> u64 {
    if calls == 0 { work(50_000) } else { black_box(deep(calls - 1)) + 1 }
}

fn steady() {
    IS_STEADY.set(true);
    black_box(deep(CALLS));
    IS_STEADY.set(false);
}

/// Runs code of objects that are unloaded after it.
fn loads() {
    // SAFETY: the names end in a zero; the functions have these types, and no state.
    unsafe {
        for (name, function) in [
            (c"libz.so.1", c"crc32"),
            (c"libanl.so.1", c"nothing"),
            (c"libresolv.so.2", c"nothing"),
            (c"libutil.so.1", c"nothing"),
        ] {
            let object = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
            if object.is_null() {
                continue;
            }
            let found = libc::dlsym(object, function.as_ptr());
            if !found.is_null() {
                let sum: extern "C" fn(u64, *const u8, u32) -> u64 = std::mem::transmute(found);
                let bytes = [7_u8; 4096];
                (0..200).for_each(|_| _ = black_box(sum(0, bytes.as_ptr(), 4096)));
            }
            assert_eq!(libc::dlclose(object), 0);
        }
    }
}

/// A child's stack is walked, too. While the parent forks it takes no signals: the kernel begins a
/// fork again that one interrupts, and a large process takes longer than a period.
fn forks() {
    // SAFETY: sets of signals on the stack.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal());
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        let child = dormouse_testkit::fork(|| {
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
            let before = WALKS.load(Relaxed);
            (0..3).for_each(|_| _ = libc::raise(signal()));
            assert!(WALKS.load(Relaxed) >= before + 3);
        });
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        assert!(child.success());
    }
}

fn threads() {
    let threads: Vec<_> = (0..4)
        .map(|_| {
            thread::spawn(|| {
                let _armed = Armed::new();
                work(200_000)
            })
        })
        .collect();
    for thread in threads {
        black_box(thread.join().unwrap());
    }
}

/// Generated code runs for some periods, and goes: once without a frame pointer, once with it.
fn generates() {
    for [begin, end] in arch::FRAME {
        let code = [begin, arch::COUNTS, end].concat();
        // SAFETY: a mapping of our own, whose code keeps to the calling convention.
        unsafe {
            let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = libc::mmap(std::ptr::null_mut(), 4096, all, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            std::ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), code.len());
            arch::written(std::slice::from_raw_parts(page.cast(), code.len()));
            GENERATED[1].store(page.addr() as u64 + 4096, Relaxed);
            GENERATED[0].store(page.addr() as u64, Relaxed);
            let run: extern "C" fn() = std::mem::transmute(page);
            run();
            GENERATED[1].store(0, Relaxed);
            assert_eq!(libc::munmap(page, 4096), 0);
        }
    }
}

/// Is at it until the end, interrupted; returns how often.
fn storm(at_it: fn()) -> thread::JoinHandle<u64> {
    thread::spawn(move || {
        let _armed = Armed::new();
        let mut rounds = 0;
        while !END.load(Relaxed) {
            at_it();
            rounds += 1;
        }
        rounds
    })
}

#[test]
fn stacks_stay_whole_in_a_storm() {
    in_child(|| {
        own_stack::learn();
        own::begin().unwrap();
        // SAFETY: an all-zero action is valid; the handler does what handlers may.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = walked as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            assert_eq!(libc::sigaction(signal(), &raw const action, std::ptr::null_mut()), 0);
        }
        let states: [(&str, fn()); 5] = [
            ("steady", steady),
            ("loads", loads),
            ("forks", forks),
            ("threads", threads),
            ("generates", generates),
        ];
        let states = states.map(|(name, at_it)| (name, storm(at_it)));
        let end = Instant::now() + storm_time();
        // As the lookout does; and at least until each state has been met.
        let is_met = || WHOLE.load(Relaxed) > 100 && GENERATED_WALKS.load(Relaxed) > 0;
        while Instant::now() < end || !is_met() {
            own::step();
            thread::sleep(Duration::from_millis(1));
        }
        END.store(true, Relaxed);
        for (name, thread) in states {
            let rounds = thread.join().unwrap();
            println!("{name}: {rounds}");
            assert!(rounds > 0, "{name}");
        }
        let [walks, steady, whole] = [&WALKS, &STEADY, &WHOLE].map(|count| count.load(Relaxed));
        println!("{walks} walks, {whole} of {steady} whole, {} bytes of tables", own::size());
        assert_eq!(whole, steady, "whole stacks");
    });
}
