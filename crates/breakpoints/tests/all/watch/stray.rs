//! SIGTRAPs that are no hits, and signals that come amid hits.

use std::os::unix::process::ExitStatusExt as _;
use std::os::unix::thread::JoinHandleExt as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use dormouse_sys::trap;
use dormouse_testkit::{AlternateStack, Child, eventually, fork, skip, stress_rounds};

use super::support::{in_child, of_value, write};
use crate::arch::{LOSES_CAUSES, LOST_AND_CRAMPED, raise_exception};

/// The kernel's codes for an exception without a cause, and for one of a free register.
const CODES: [libc::c_int; 2] = [1, 4];

/// A hypervisor that loses DR6 makes such signals of hits.
#[test]
fn exceptions_without_a_cause_are_swallowed() {
    if !LOSES_CAUSES {
        return skip("this processor does not lose causes");
    }
    in_child(|| {
        let watch = of_value().arm().unwrap();
        CODES.into_iter().for_each(send_here);
        assert_eq!(trap::unexplained(), 2);
        write(1);
        assert_eq!(watch.report().hits, 1);
        drop(watch);
        // One that comes late.
        CODES.into_iter().for_each(send_here);
        assert_eq!(trap::unexplained(), 4);
    });
}

#[test]
fn without_a_watch_they_end_the_process() {
    Child::new().dies_of(libc::SIGTRAP).run(|| CODES.into_iter().for_each(send_here));
}

#[test]
fn int1_of_the_program_is_its_own() {
    let without = fork(raise_exception);
    if without.signal() != Some(libc::SIGTRAP) {
        return skip(format!("int1 ends no program here, but: {without}"));
    }
    Child::new().dies_of(libc::SIGTRAP).run(|| {
        let _watch = of_value().arm().inspect_err(|error| skip(error)).ok();
        raise_exception();
    });
}

/// Sends SIGTRAP to this thread as the kernel does.
fn send_here(code: libc::c_int) {
    // SAFETY: plain calls, with a structure that is whole when zeroed; the kernel reads it.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        info.si_signo = libc::SIGTRAP;
        info.si_code = code;
        let (pid, tid) = (libc::getpid(), libc::gettid());
        let sent = libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, libc::SIGTRAP, &raw const info);
        assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
    }
}

#[test]
fn hits_without_room_are_lost_and_counted() {
    in_child(|| {
        let watch = of_value().arm().unwrap();
        let write_twice = |room| {
            let stack = AlternateStack::new(room);
            write(1);
            write(2);
            stack.used()
        };
        let used = [8, 512].map(|room| thread::spawn(move || write_twice(room)).join().unwrap());
        assert_eq!(used, [0, 0], "the handler has used the stack");
        let (lost, cramped) = LOST_AND_CRAMPED;
        eventually(|| watch.report().lost == lost);
        let report = watch.report();
        assert_eq!((report.hits, report.delivered, report.lost), (lost, 0, lost));
        assert_eq!(trap::cramped(), cramped);
        // The room for which the handler asks is enough.
        let used = thread::spawn(move || write_twice(32 * 1024)).join().unwrap();
        let room = if cfg!(debug_assertions) { 4736 } else { 3072 };
        println!("a hit takes {used} of {room} bytes");
        assert!((1..=room).contains(&used), "{used} of {room}");
        assert_eq!(watch.report().delivered, 2);
    });
}

/// The signals that came.
static CAME: AtomicU32 = AtomicU32::new(0);

extern "C" fn note(_: libc::c_int) {
    CAME.fetch_add(1, Ordering::Relaxed);
}

/// A thread of std's has an alternate stack of 8 KiB, where one frame of the kernel fits in, and
/// not two. A handler that did not ask for that stack has it all the same, if it comes amid ours.
#[test]
fn signals_of_the_host_find_room() {
    in_child(|| {
        let signals: u32 = stress_rounds(2000, 100_000);
        // SAFETY: the handler adds to an atomic.
        unsafe { libc::signal(libc::SIGUSR1, note as *const () as usize) };
        let watch = of_value().arm().unwrap();
        let writer = thread::spawn(move || {
            while CAME.load(Ordering::Relaxed) < signals {
                write(1);
            }
        });
        while CAME.load(Ordering::Relaxed) < signals {
            // SAFETY: a thread that is joined below.
            unsafe { libc::pthread_kill(writer.as_pthread_t(), libc::SIGUSR1) };
        }
        writer.join().unwrap();
        assert!(watch.report().hits > 0);
    });
}
