//! Forks, spawns, signal handlers and ends of threads and processes, in the middle of batches.
#![cfg(all(target_os = "linux", not(dormouse_fallback)))]
#![allow(unsafe_code)]

use crate::arch::{ASLEEP, BREAKPOINT, HAS_INT3, OPENS, PROTOCOLS, answer_call, call_number, placed};
use crate::process;
use crate::sites;

use std::cell::RefCell;
use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use dormouse_keys::{
    Batch, Error, Lease, Protocol, StaticKey, all, capability, list, prepare, static_key, unlikely,
};
use dormouse_testkit::{Answer, Filter, StopOnDrop, eventually, fork, in_child, join, skip};
use process::refuse_exec_gain;

static_key! {
    static KEY: "fork.key" = false;
    static BASED: "fork.based" = false;
    static OTHER: "fork.other" = false;
}

placed! {
    across_pages: 3 before 1 << 12;
}

#[inline(never)]
extern "C" fn site() -> bool {
    unlikely!(KEY)
}

#[inline(never)]
extern "C" fn based() -> bool {
    unlikely!(BASED)
}

#[inline(never)]
extern "C" fn other() -> bool {
    unlikely!(OTHER)
}

type Site = (extern "C" fn() -> bool, &'static StaticKey<false>);

const SITES: [Site; 3] = [(site, &KEY), (based, &BASED), (across_pages::SITE, &across_pages::KEY)];

fn assert_sites_agree_with_keys() {
    for (function, key) in SITES {
        assert_eq!(function(), key.is_enabled(), "{}", key.name());
    }
}

fn switch(on: bool, protocol: Protocol) -> Result<(), Error> {
    let batch = Batch::new().protocol(protocol);
    let keys = SITES.map(|(_, key)| key.key());
    if on {
        batch.enable_all(keys).apply()?
    } else {
        batch.disable_all(keys).apply()?
    };
    Ok(())
}

/// Flips all keys until told to stop, and counts the batches. A batch by int3 may be refused while
/// another thread makes a process.
fn flip(stop: &AtomicBool, batches: &AtomicUsize) {
    while !stop.load(Ordering::Relaxed) {
        for &protocol in PROTOCOLS {
            for on in [true, false] {
                match switch(on, protocol) {
                    Ok(()) => _ = batches.fetch_add(1, Ordering::Relaxed),
                    Err(error) => assert!(matches!(error, Error::TrapsBlocked { .. }), "{error}"),
                }
            }
        }
    }
}

/// Runs `body` while other threads flip keys, until they have made `batches` batches.
fn while_flipping(batches: usize, mut body: impl FnMut()) {
    let (stop, made) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        (0..2).for_each(|_| _ = scope.spawn(|| flip(&stop, &made)));
        eventually(|| {
            body();
            made.load(Ordering::Relaxed) >= batches
        });
    });
}

#[test]
fn a_child_finds_whole_text_and_free_locks() {
    in_child(|| {
        prepare().unwrap();
        while_flipping(100, || {
            for _ in 0..40 {
                let status = fork(|| {
                    assert_sites_agree_with_keys();
                    for &protocol in PROTOCOLS {
                        for on in [true, false] {
                            switch(on, protocol).unwrap();
                            assert_sites_agree_with_keys();
                        }
                    }
                    assert!(all().len() >= 3);
                    // A child of the child.
                    assert!(fork(|| switch(true, Protocol::Flip).unwrap()).success());
                    assert!(!site());
                });
                assert!(status.success(), "{status}");
            }
        });
    });
}

#[test]
fn a_child_has_no_leases() {
    in_child(|| {
        let keys = || SITES.map(|(_, key)| key.key());
        let child = || {
            assert_eq!(keys().map(dormouse_keys::Key::leases), [0; 3]);
            assert_eq!(keys().map(dormouse_keys::Key::is_enabled), [false, true, false]);
            assert_sites_agree_with_keys();
            let lease = KEY.acquire().unwrap();
            assert!(site() && KEY.leases() == 1);
            drop(lease);
            assert!(!site());
        };
        let parent = || {
            BASED.enable().unwrap();
            let lease = Lease::of(keys()).unwrap();
            assert!(fork(child).success());
            assert_eq!(keys().map(dormouse_keys::Key::leases), [1; 3]);
            assert!(SITES.iter().all(|(function, _)| function()));
            lease.release().unwrap();
        };
        parent();
        // Also where the child cannot make its code writable.
        let status = fork(|| {
            if !refuse_exec_gain() {
                return;
            }
            parent();
        });
        assert!(status.success(), "{status}");
    });
}

#[test]
fn a_key_unwritable_in_a_child_stays_on() {
    in_child(|| {
        let lease = KEY.acquire().unwrap();
        let at = sites::site_in(site);
        let mut awake = [0; ASLEEP.len()];
        // SAFETY: code of this binary.
        unsafe { std::ptr::copy_nonoverlapping(at as *const u8, awake.as_mut_ptr(), awake.len()) };
        // A file of our own, because the one that is kept is for batches.
        let memory = std::fs::OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
        let write = |memory: &std::fs::File, bytes: &[u8]| {
            std::os::unix::fs::FileExt::write_all_at(memory, bytes, at as u64).unwrap();
        };
        write(&memory, &BREAKPOINT[..awake.len()]);
        let status = fork(|| {
            assert_eq!((KEY.is_enabled(), KEY.baseline(), KEY.leases()), (true, false, 0));
            let memory = std::fs::OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
            write(&memory, &awake);
            KEY.disable().unwrap();
            assert!(!site());
        });
        assert!(status.success(), "{status}");
        write(&memory, &awake);
        drop(lease);
    });
}

/// The descriptors of this process that are some process's memory.
fn memory_files() -> usize {
    let is_memory = |fd: libc::c_int| {
        std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|to| to.ends_with("mem"))
    };
    (0..100).filter(|&fd| is_memory(fd)).count()
}

#[test]
fn a_child_leaves_its_parents_memory_alone() {
    in_child(|| {
        if !refuse_exec_gain() {
            return;
        }
        prepare().unwrap();
        assert_eq!(memory_files(), 1);
        // A system call, so that nothing of the C library's sees the fork.
        for behind_its_back in [false, true] {
            let body = || {
                assert_eq!(memory_files(), usize::from(behind_its_back));
                switch(true, Protocol::Flip).unwrap();
                assert_sites_agree_with_keys();
                assert_eq!(memory_files(), 1);
            };
            let status = if behind_its_back {
                // SAFETY: one thread matters, and it leaves by `_exit`.
                let child =
                    unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as libc::pid_t;
                if child == 0 {
                    let ended = std::panic::catch_unwind(body);
                    // SAFETY: as above.
                    unsafe { libc::_exit(i32::from(ended.is_err())) };
                }
                join(child)
            } else {
                fork(body)
            };
            assert!(status.success(), "{behind_its_back}: {status}");
            assert!(!site() && !KEY.is_enabled());
            assert_sites_agree_with_keys();
        }
    });
}

#[test]
fn processes_are_spawned_in_the_middle_of_batches() {
    in_child(|| {
        while_flipping(100, || {
            for _ in 0..100 {
                assert!(Command::new("/bin/true").status().unwrap().success());
            }
        });
    });
}

/// Stops a child that shares this process's memory, as one between `vfork` and `exec` does.
static STOP: AtomicBool = AtomicBool::new(false);
static RUNS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn run_sites(_: *mut c_void) -> libc::c_int {
    while !STOP.load(Ordering::Relaxed) {
        for (function, _) in SITES {
            std::hint::black_box(function());
        }
        RUNS.fetch_add(1, Ordering::Relaxed);
    }
    0
}

/// Such a child; it runs sites until it is stopped.
fn share_memory(stack: &mut [u8]) -> libc::pid_t {
    let top = stack.as_mut_ptr_range().end as usize & !15;
    // SAFETY: the child has a stack of its own, uses no thread-local, and ends before the stack
    // does.
    let child = unsafe {
        libc::clone(run_sites, top as *mut c_void, libc::CLONE_VM | libc::SIGCHLD, std::ptr::null_mut())
    };
    assert!(child > 0);
    let seen = RUNS.load(Ordering::Relaxed);
    while RUNS.load(Ordering::Relaxed) == seen {
        std::thread::yield_now();
    }
    child
}

#[test]
fn a_vfork_child_runs_through_batches() {
    in_child(|| {
        // A copy of the handler, as it is when the child is made.
        switch(true, *PROTOCOLS.last().unwrap()).unwrap();
        let mut stack = vec![0; 1 << 16];
        let child = share_memory(&mut stack);
        for _ in 0..20 {
            for &protocol in PROTOCOLS {
                for on in [true, false] {
                    switch(on, protocol).unwrap();
                    let seen = RUNS.load(Ordering::Relaxed);
                    while RUNS.load(Ordering::Relaxed) == seen {
                        std::thread::yield_now();
                    }
                }
            }
        }
        STOP.store(true, Ordering::Relaxed);
        assert!(join(child).success());
    });
}

#[test]
fn a_deaf_vfork_child_dies_alone_of_int3() {
    in_child(|| {
        if !HAS_INT3 {
            return skip("no int3 on this processor");
        }
        let mut stack = vec![0; 1 << 16];
        // SAFETY: a local set, this thread's mask; the child inherits it.
        let child = unsafe {
            let mut blocked = std::mem::zeroed();
            libc::sigemptyset(&raw mut blocked);
            libc::sigaddset(&raw mut blocked, libc::SIGTRAP);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, std::ptr::null_mut());
            let child = share_memory(&mut stack);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const blocked, std::ptr::null_mut());
            child
        };
        for _ in 0..200 {
            for on in [true, false] {
                let keys = [KEY.key(), BASED.key()];
                let batch = Batch::new();
                if on { batch.enable_all(keys) } else { batch.disable_all(keys) }.apply().unwrap();
            }
        }
        let mut status = 0;
        // SAFETY: asks for a child of ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) }, 0, "it lives");
        loop {
            switch(true, Protocol::INT3).unwrap();
            switch(false, Protocol::INT3).unwrap();
            // SAFETY: as above.
            if unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child {
                break;
            }
        }
        assert_eq!(ExitStatus::from_raw(status).signal(), Some(libc::SIGTRAP));
        assert_sites_agree_with_keys();
    });
}

/// The findings of a handler of SIGSYS that comes in the middle of a batch, or of a listing.
static REFUSED: AtomicU32 = AtomicU32::new(0);
static FORKED: AtomicU32 = AtomicU32::new(0);

/// Stands in for a signal at an awkward moment: the kernel sends SIGSYS at a system call that the
/// crate makes.
extern "C" fn at_the_call(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let refused = [OTHER.enable().map(drop), OTHER.acquire().map(drop), prepare()];
    assert!(refused.iter().all(|r| matches!(r, Err(Error::Reentrant))), "{refused:?}");
    assert_eq!(capability().len(), 1);
    REFUSED.fetch_add(1, Ordering::Relaxed);
    if FORKED.load(Ordering::Relaxed) == 0 {
        // A dump, say. The child goes on with the batch if it returns.
        let status = fork(|| assert!(matches!(OTHER.enable(), Err(Error::Reentrant))));
        FORKED.fetch_add(1 + u32::from(!status.success()), Ordering::Relaxed);
    }
    // SAFETY: what the kernel passes to a handler with SA_SIGINFO. The call is said to have worked,
    // with 0, or, for an `open`, to have not.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        let is_barrier = call_number(registers) == libc::SYS_membarrier;
        answer_call(registers, if is_barrier { 0 } else { -i64::from(libc::ENOENT) });
        assert_eq!((*info).si_signo, libc::SIGSYS);
    }
}

#[test]
fn a_handler_over_a_batch_is_refused() {
    in_child(|| {
        // SAFETY: the handler above; it interrupts this thread at a system call, not inside the
        // allocator.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = at_the_call as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()), 0);
        }
        let interrupt = |calls| Filter::answer(Answer::Trap, calls).install();
        let in_a_listing = fork(|| {
            interrupt(OPENS);
            // SAFETY: a call that is interrupted, under the lock that a listing has.
            let listed = list(|_| unsafe { libc::open(c"/".as_ptr(), libc::O_RDONLY) });
            assert!(listed.len() >= 3);
            assert_eq!(REFUSED.load(Ordering::Relaxed) as usize, listed.len());
        });
        assert!(in_a_listing.success(), "{in_a_listing}");
        let in_a_batch = fork(|| {
            interrupt(&[libc::SYS_membarrier]);
            KEY.enable().unwrap();
            assert!(site());
            // Registering, and the barrier.
            assert_eq!(REFUSED.load(Ordering::Relaxed), 2);
            assert_eq!(FORKED.load(Ordering::Relaxed), 1);
            assert!(!OTHER.is_enabled() && !other());
        });
        assert!(in_a_batch.success(), "{in_a_batch}");
        OTHER.enable().unwrap();
    });
}

#[test]
fn a_key_is_switched_inside_its_branch() {
    #[inline(never)]
    fn once(protocol: Protocol) -> bool {
        if unlikely!(KEY) {
            Batch::new().disable(&KEY).protocol(protocol).apply().unwrap();
            return true;
        }
        false
    }
    in_child(|| {
        for &protocol in PROTOCOLS {
            KEY.enable().unwrap();
            assert!(once(protocol));
            assert!(!once(protocol) && !KEY.is_enabled());
        }
    });
}

thread_local! {
    static AT_THE_END: RefCell<Option<Lease>> = const { RefCell::new(None) };
}

#[test]
fn a_threads_destructor_gives_a_lease_back() {
    in_child(|| {
        std::thread::spawn(|| {
            AT_THE_END.with(|end| *end.borrow_mut() = Some(KEY.acquire().unwrap()));
            assert!(site());
        })
        .join()
        .unwrap();
        assert_eq!(KEY.leases(), 0);
        assert!(!site());
    });
}

extern "C" fn at_exit() {
    let last = PROTOCOLS[PROTOCOLS.len() - 1];
    let switched = switch(true, Protocol::Flip).and_then(|()| switch(false, last));
    // SAFETY: ends the process.
    unsafe { libc::_exit(if switched.is_ok() && !site() { 42 } else { 43 }) };
}

#[test]
fn keys_are_switched_at_exit() {
    in_child(|| {
        let status = fork(|| {
            // SAFETY: a plain function; `exit` runs it.
            unsafe {
                assert_eq!(libc::atexit(at_exit), 0);
                libc::exit(1);
            }
        });
        assert_eq!(status.code(), Some(42), "{status}");
    });
}
