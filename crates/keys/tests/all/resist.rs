//! Processes that resist being written to.
#![cfg(all(target_os = "linux", not(dormouse_fallback)))]
#![allow(unsafe_code)]

use crate::arch::{HAS_INT3, OPENS, PROTOCOLS, answer_call};
use crate::process;
use crate::sites;

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use dormouse_keys::{Batch, Error, Protocol, capability, prepare};
use dormouse_testkit::{Answer, Filter, fork, in_child, skip};
use process::{Mapped, mapping_at, no_writable_code, refuse_exec_gain, writable_code};
use sites::{KEY, assert_all, assert_switchable, site, switch, text};

/// The protocol changes nothing, for this reason.
fn assert_refused_by(protocol: Protocol, reason: impl Fn(&Error) -> bool) {
    let before = text();
    let error = switch(true, protocol).unwrap_err();
    assert!(reason(&error), "{error}");
    assert_all(false);
    assert_eq!(text(), before);
}

/// No protocol changes anything, for this reason.
fn assert_refused(reason: impl Fn(&Error) -> bool) {
    for &protocol in PROTOCOLS {
        assert_refused_by(protocol, &reason);
    }
}

/// A line of the capability report: what is seen, and what to change.
fn report(name: &str) -> (String, Option<String>) {
    let line = capability().into_iter().find(|line| line.name == name).unwrap();
    (line.detail.into_owned(), line.fix.map(std::borrow::Cow::into_owned))
}

/// Runs in a child of the test's own child, which it may leave with fewer rights.
fn assert_in_fork(name: &str, body: impl FnOnce()) {
    let status = fork(body);
    assert!(status.success(), "{name}: {status}");
}

/// Seals this binary's code; false where the kernel cannot.
fn seal_code() -> bool {
    const MSEAL: libc::c_long = 462;
    let own = site as *const () as usize;
    let code = mapping_at(own).range;
    // SAFETY: has the kernel refuse changes of this mapping, no more.
    unsafe { libc::syscall(MSEAL, code.start, code.len(), 0) == 0 }
}

#[test]
fn without_obstacle_pages_become_writable() {
    in_child(|| {
        assert_switchable();
        assert_eq!(report("keys.write").0, "by mprotect");
        assert_eq!(report("keys.write.mprotect").1, None);
        assert_eq!(report("keys.write.memory").1, None);
    });
}

#[test]
fn sealed_code_is_written_through_the_memory_file() {
    in_child(|| {
        let through_the_file = |fix: Option<&str>| {
            assert_switchable();
            if let Some(fix) = fix {
                assert!(report("keys.write").0.starts_with("through /proc/thread-self/mem"));
                assert!(report("keys.write.mprotect").1.unwrap().contains(fix));
            } else {
                assert!(report("keys.write").0.starts_with("not tried"));
            }
            // The mapping is what it was: private, of its file, not writable.
            let own = site as *const () as usize;
            let Mapped { perms, name, .. } = mapping_at(own);
            let exe = std::env::current_exe().unwrap();
            assert!(perms == "r-xp" && name == exe.to_string_lossy(), "{perms} {name}");
        };
        assert_in_fork("MDWE", || {
            if !refuse_exec_gain() {
                return;
            }
            through_the_file(Some("MemoryDenyWriteExecute=no"));
        });
        assert_in_fork("a filter", || {
            no_writable_code().install();
            through_the_file(None);
        });
        assert_in_fork("a seal", || {
            if seal_code() {
                through_the_file(Some("unsealed"));
            } else {
                skip("this kernel has no mseal");
            }
        });
    });
}

#[test]
fn an_unwritable_site_names_both_refusals() {
    in_child(|| {
        if !process::is_root() {
            return skip("leaving /proc takes root");
        }
        let is_unwritable = |setting: &'static str| {
            move |error: &Error| {
                matches!(error, Error::Unwritable { .. }) && error.to_string().contains(setting)
            }
        };
        assert_in_fork("MDWE without /proc", || {
            if !refuse_exec_gain() {
                return;
            }
            process::leave_proc();
            let error = Batch::new().enable(&KEY).apply().unwrap_err();
            assert!(is_unwritable("mount /proc")(&error), "{error}");
            assert!(!site() && !KEY.is_enabled());
            assert_eq!(report("keys.write").0, "neither step of the ladder works");
        });
        assert_in_fork("MDWE, undumpable", || {
            process::become_undumpable();
            if !refuse_exec_gain() {
                return;
            }
            assert_refused(is_unwritable("prepare()"));
            assert!(report("keys.write.memory").1.unwrap().contains("prepare()"));
        });
        assert_in_fork("a filter of mprotect and open", || {
            no_writable_code().install();
            Filter::refuse(OPENS).install();
            let error = Batch::new().enable(&KEY).apply().unwrap_err();
            assert!(is_unwritable("prepare()")(&error), "{error}");
            assert!(!site());
        });
    });
}

#[test]
fn a_prepared_process_may_give_up_rights() {
    in_child(|| {
        if !process::is_root() {
            return skip("giving up root takes root");
        }
        assert_in_fork("MDWE, undumpable", || {
            prepare().unwrap();
            process::become_undumpable();
            if !refuse_exec_gain() {
                return;
            }
            assert_switchable();
        });
        assert_in_fork("MDWE without /proc", || {
            prepare().unwrap();
            if !refuse_exec_gain() {
                return;
            }
            process::leave_proc();
            Batch::new().enable(&KEY).apply().unwrap();
            assert!(site());
            if !HAS_INT3 {
                return;
            }
            // Threads that block SIGTRAP cannot be found without /proc.
            let error = Batch::new().disable(&KEY).protocol(Protocol::INT3).apply().unwrap_err();
            assert!(matches!(error, Error::Denied { .. }) && error.to_string().contains("/proc"), "{error}");
            assert!(site());
        });
    });
}

fn is_memory(fd: libc::c_int) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|to| to.ends_with("mem"))
}

#[test]
fn a_closed_memory_file_is_opened_anew() {
    in_child(|| {
        if !refuse_exec_gain() {
            return;
        }
        prepare().unwrap();
        let number = (3..100).find(|&fd| is_memory(fd)).unwrap();
        // SAFETY: asks.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        assert_eq!(flags, libc::FD_CLOEXEC);
        // The host closes what it has not opened, and opens a file of its own.
        let path = std::env::temp_dir().join(format!("dormouse-resist-{}", std::process::id()));
        // SAFETY: nobody writes code meanwhile.
        unsafe { libc::close(number) };
        let file = std::fs::File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.as_raw_fd(), number, "the lowest free number");
        assert_switchable();
        assert_eq!(file.metadata().unwrap().len(), 0);
        assert!((3..100).any(is_memory));
    });
}

/// Has `handler` answer for the kernel to calls that a filter traps.
fn answer_by(handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void)) {
    // SAFETY: a handler of a test's own; it interrupts this thread at a system call, not inside the
    // allocator.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// A file of the host's, and how often it took the number of the memory file.
static HOSTS: AtomicI32 = AtomicI32::new(-1);
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// The host closes what it has not opened, and opens a file of its own in its place.
extern "C" fn take_number(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    let number = (3..100).find(|&fd| is_memory(fd));
    // SAFETY: descriptors of this process, and what the kernel passes to a handler with SA_SIGINFO.
    unsafe {
        if let Some(number) = number {
            libc::dup2(HOSTS.load(Ordering::Relaxed), number);
            TAKEN.fetch_add(1, Ordering::Relaxed);
        }
        answer_call(&mut (*context.cast::<libc::ucontext_t>()).uc_mcontext, 0);
    }
}

#[test]
fn a_number_taken_amid_a_batch_is_noticed() {
    in_child(|| {
        if !HAS_INT3 {
            return skip("no int3 on this processor, and flip has no call between its writes");
        }
        if !refuse_exec_gain() {
            return;
        }
        prepare().unwrap();
        // In memory, because no other file is as long as an address is high.
        // SAFETY: a constant name; the descriptor is new.
        let file = unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"hosts".as_ptr(), 0)) };
        HOSTS.store(file.as_raw_fd(), Ordering::Relaxed);
        answer_by(take_number);
        Filter::answer(Answer::Trap, &[libc::SYS_membarrier]).install();
        let switched = switch(true, Protocol::INT3);
        assert_eq!(file.metadata().unwrap().len(), 0, "code in the host's file: {switched:?}");
        assert_eq!((switched.unwrap().barriers, TAKEN.load(Ordering::Relaxed)), (3, 4));
        assert_all(true);
    });
}

#[test]
fn pages_that_stay_writable_are_counted() {
    in_child(|| {
        assert_switchable();
        assert_eq!(writable_code(), []);
        let sealed = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let no_memory = Answer::Errno(libc::ENOMEM);
        Filter::answer(no_memory, &[]).and_where(libc::SYS_mprotect, 2, u64::MAX, &[sealed]).install();
        let report = switch(true, Protocol::Flip).unwrap();
        let bytes: usize = writable_code().iter().map(ExactSizeIterator::len).sum();
        assert!(report.unsealed >= report.pages && report.pages > 1, "{report:?}");
        assert_eq!(report.unsealed * rustix::param::page_size(), bytes, "{report:?}");
        assert_all(true);
    });
}

#[test]
fn a_refused_call_refuses_the_batch_first() {
    in_child(|| {
        if !HAS_INT3 {
            return skip("no int3 on this processor");
        }
        let denied = |what: &'static str| {
            move |e: &Error| matches!(e, Error::Denied { .. }) && e.to_string().starts_with(what)
        };
        assert_in_fork("rt_sigaction", || {
            Filter::refuse(&[libc::SYS_rt_sigaction]).install();
            let error = switch(true, Protocol::INT3).unwrap_err();
            assert!(denied("a handler for SIGTRAP")(&error), "{error}");
            KEY.enable().unwrap();
            assert!(site(), "flip needs no handler");
        });
    });
}

/// The time that stands in for a barrier.
const WAIT: Duration = Duration::from_nanos(dormouse_sys::barrier::SETTLE_NS);

#[test]
fn without_membarrier_flip_waits_and_int3_refuses() {
    in_child(|| {
        let assert_waits = || {
            Filter::answer(Answer::Errno(libc::ENOSYS), &[libc::SYS_membarrier]).install();
            // Under a filter the report only looks.
            assert!(report("keys.write").0.starts_with("not tried"));
            prepare().unwrap();
            let before = text();
            for on in [true, false] {
                let report = switch(on, Protocol::Flip).unwrap();
                assert_eq!((report.keys, report.barriers), (3, 0));
                assert!(report.elapsed >= WAIT, "{report:?}");
                assert_all(on);
            }
            assert_eq!(text(), before);
            if !HAS_INT3 {
                return;
            }
            assert_refused_by(Protocol::INT3, |error| {
                let text = error.to_string();
                matches!(error, Error::Denied { .. })
                    && text.starts_with("membarrier")
                    && text.contains("the flip protocol")
            });
        };
        assert_in_fork("from the start", assert_waits);
        assert_in_fork("after a batch", || {
            assert_switchable();
            assert_waits();
        });
        assert_in_fork("through the memory file", || {
            if !refuse_exec_gain() {
                return;
            }
            assert_waits();
        });
    });
}

/// Which membarriers are refused, counted from 1; and how many there were.
static REFUSED: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
static BARRIERS: AtomicU32 = AtomicU32::new(0);

/// Answers for the kernel.
extern "C" fn answer(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    let count = BARRIERS.fetch_add(1, Ordering::Relaxed) + 1;
    let [from, to] = [&REFUSED[0], &REFUSED[1]].map(|bound| bound.load(Ordering::Relaxed));
    let answer = if (from..to).contains(&count) { -i64::from(libc::EPERM) } else { 0 };
    // SAFETY: what the kernel passes to a handler with SA_SIGINFO.
    unsafe { answer_call(&mut (*context.cast::<libc::ucontext_t>()).uc_mcontext, answer) };
}

#[test]
fn a_barrier_refused_half_way_splits_no_batch() {
    in_child(|| {
        // Registering, then the flips' barrier, or three by int3.
        let cases = [(Protocol::Flip, 2), (Protocol::INT3, 4)];
        let cases = cases.into_iter().filter(|(protocol, _)| PROTOCOLS.contains(protocol));
        let each = |(protocol, barriers)| (1..=barriers).map(move |from| (protocol, from));
        for (protocol, from, for_good) in
            cases.flat_map(each).flat_map(|(by, from)| [(by, from, false), (by, from, true)])
        {
            for through_the_file in [false, true] {
                let name = format!(
                    "{protocol:?} {from}, for good: {for_good}, through the file: {through_the_file}"
                );
                assert_in_fork(&name, || {
                    REFUSED[0].store(from, Ordering::Relaxed);
                    REFUSED[1].store(if for_good { u32::MAX } else { from + 1 }, Ordering::Relaxed);
                    answer_by(answer);
                    let before = text();
                    Filter::answer(Answer::Trap, &[libc::SYS_membarrier]).install();
                    if through_the_file {
                        no_writable_code().install();
                    }
                    let switched = switch(true, protocol);
                    assert!(BARRIERS.load(Ordering::Relaxed) >= from);
                    if protocol == Protocol::Flip {
                        assert_eq!(switched.unwrap().barriers, usize::from(from == 1 && !for_good));
                        return assert_all(true);
                    }
                    let error = switched.unwrap_err();
                    assert!(matches!(error, Error::Denied { .. }), "{error}");
                    assert_eq!(text(), before);
                    assert_all(false);
                });
            }
        }
    });
}
