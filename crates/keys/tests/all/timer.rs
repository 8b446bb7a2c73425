//! When the thread is started that ends what is held for a time, and when it is not.
#![cfg(not(dormouse_fallback))]
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Barrier;
use std::time::Duration;

use dormouse_keys::{Error, static_key, unlikely};
use dormouse_testkit::{Filter, eventually, in_child};

static_key! {
    static KEY: "timer.key" = false;
}

#[inline(never)]
fn site() -> bool {
    unlikely!(KEY)
}

type Run = extern "C" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Run, *mut c_void) -> c_int;

static STARTS: Barrier = Barrier::new(2);

thread_local! {
    static LAST: Cell<bool> = const { Cell::new(false) };
}

/// Stands before the C library's: a thread that is one too many for the process is refused, after a
/// while.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    run: Run,
    argument: *mut c_void,
) -> c_int {
    if LAST.get() {
        STARTS.wait();
        STARTS.wait();
        return libc::EAGAIN;
    }
    // SAFETY: the C library's function of that name.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr());
        std::mem::transmute::<*mut c_void, Create>(next)(thread, attributes, run, argument)
    }
}

#[test]
fn a_hold_beside_a_failing_timer_ends() {
    in_child(|| {
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| {
                LAST.set(true);
                let refused = KEY.enable_for(Duration::from_millis(1)).unwrap_err();
                assert!(matches!(refused, Error::Denied { .. }), "{refused}");
            });
            STARTS.wait();
            // The first start is under way, and is going to fail.
            KEY.enable_for(Duration::from_millis(1)).unwrap();
            STARTS.wait();
            refused.join().unwrap();
        });
        eventually(|| !site());
    });
}

/// Refuses new threads, as a service may after it has begun.
fn refuse_threads() {
    Filter::refuse(&[libc::SYS_clone3, libc::SYS_clone]).install();
}

#[test]
fn a_started_timer_needs_no_thread() {
    in_child(|| {
        dormouse_keys::start_timer().unwrap();
        dormouse_keys::start_timer().unwrap();
        refuse_threads();
        KEY.enable_for(Duration::from_millis(1)).unwrap();
        eventually(|| !site());
        drop(KEY.acquire().unwrap().dwell(Duration::from_millis(1)).unwrap());
        eventually(|| !site());
        assert_eq!(std::fs::read_dir("/proc/self/task").unwrap().count(), 3, "the test has two");
    });
}

#[test]
fn what_does_not_linger_needs_no_timer() {
    in_child(|| {
        refuse_threads();
        let lease = KEY.acquire().unwrap().dwell(Duration::ZERO).unwrap();
        assert!(site());
        lease.release().unwrap();
        assert!(!site());
        let refused = KEY.acquire().unwrap().dwell(Duration::from_secs(1)).unwrap_err();
        assert!(refused.to_string().contains("start_timer"), "{refused}");
        assert!(!site());
    });
}
