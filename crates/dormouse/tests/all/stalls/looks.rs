//! Reports on a long poll name the call or state of its thread.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::io::{Read as _, Write as _};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use dormouse::{Group, LongPoll, LongPolls, ThreadIn, long_polls};
use dormouse_sys::process::identity;
use dormouse_sys::process::kernel_view::KernelEntry;
use dormouse_testkit::{Filter, eventually, fork, in_child, skip};

use super::faults::Faulting;

fn watch() -> LongPolls {
    let polls = long_polls(Duration::from_millis(5)).unwrap();
    // The first scan reads the tables of callers.
    eventually(|| polls.between() > Duration::ZERO);
    polls
}

/// Has a poll of a group do something until `release` is called, once enough looks were seen;
/// returns the last report.
fn last_report(
    polls: &LongPolls,
    group: &'static str,
    block: impl FnOnce() + Send + 'static,
    enough: impl Fn(&LongPoll) -> bool,
    release: impl FnOnce(),
) -> LongPoll {
    let worker = thread::spawn(move || {
        let future = pin!(Group::new(group).instrument(async { block() }));
        assert!(future.poll(&mut Context::from_waker(Waker::noop())).is_ready());
    });
    let group = Group::new(group);
    let mut last = None;
    let mut take = |is_it: &dyn Fn(&LongPoll) -> bool| {
        let its = polls.take().into_iter().filter(|poll| poll.group == Some(group));
        its.for_each(|poll| last = Some(poll));
        last.as_ref().is_some_and(is_it)
    };
    eventually(|| take(&enough));
    release();
    worker.join().unwrap();
    eventually(|| take(&|poll| poll.is_over));
    last.unwrap()
}

/// How many looks have found the thread in one of these, and how many looks there were.
fn found(report: &LongPoll, names: &[&str]) -> (u64, u64) {
    let all = report.looks.iter().map(|(_, looks)| looks).sum();
    let is_it = |within: &ThreadIn| names.contains(&within.to_string().as_str());
    (report.looks.iter().filter(|(within, _)| is_it(within)).map(|(_, looks)| looks).sum(), all)
}

fn is_now(report: &LongPoll, name: &str) -> bool {
    report.now.as_ref().is_some_and(|now| now.within.to_string() == name)
}

#[test]
fn calls_are_named_with_their_arguments() {
    let polls = watch();
    let lock = Arc::new(std::sync::Mutex::new(()));
    let held = lock.lock().unwrap();
    let theirs = Arc::clone(&lock);
    let address = Arc::as_ptr(&lock).addr() as u64;
    let is_at_lock = |poll: &LongPoll| {
        let place = poll.now.as_ref().and_then(|now| now.arguments).map(|[first, ..]| first);
        is_now(poll, "futex") && place.is_some_and(|at| (address..address + 64).contains(&at))
    };
    let locks = move || drop(theirs.lock());
    let locked = last_report(&polls, "locks", locks, is_at_lock, || drop(held));
    let (futex, all) = found(&locked, &["futex"]);
    // A busy machine may find it on its way there.
    assert!(futex > 0 && futex <= all && locked.now.is_none(), "{locked:?}");

    let (mut from, mut to) = std::io::pipe().unwrap();
    let reads = move || from.read_exact(&mut [0]).unwrap();
    let reading = |poll: &LongPoll| is_now(poll, "read");
    let read = last_report(&polls, "reads", reads, reading, || to.write_all(b"x").unwrap());
    assert!(found(&read, &["read"]).0 > 0 && found(&read, &["futex"]).0 == 0, "{read:?}");
}

/// Whether the kernel hides the function in which a thread sleeps, which does so all the time.
fn hides_function(tid: u32) -> bool {
    let sleeps = || matches!(KernelEntry::of_own(tid), Ok(KernelEntry::Call(..)));
    let asleep = sleeps();
    let name = std::fs::read_to_string(format!("/proc/self/task/{tid}/wchan")).unwrap_or_default();
    asleep && matches!(&*name, "" | "0") && sleeps()
}

#[test]
fn the_kernels_function_is_in_a_report() {
    let polls = watch();
    let lock = Arc::new(std::sync::Mutex::new(()));
    let held = lock.lock().unwrap();
    let theirs = Arc::clone(&lock);
    let (name, is_hidden) = (RefCell::new(None), Cell::new(false));
    let is_seen = |poll: &LongPoll| {
        let now = poll.now.as_ref().filter(|_| is_now(poll, "futex"));
        name.replace(now.and_then(|now| now.kernel_function.clone()));
        is_hidden.set(now.is_some() && hides_function(poll.tid));
        name.borrow().is_some() || is_hidden.get()
    };
    last_report(&polls, "in the kernel", move || drop(theirs.lock()), is_seen, || drop(held));
    match name.into_inner() {
        Some(name) => assert!(name.contains("futex"), "{name}"),
        None => skip("this kernel does not show the function in which a thread sleeps (wchan)"),
    }
}

/// A mutex of the C library's.
struct CMutex(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: only the C library touches it.
unsafe impl Sync for CMutex {}

static IN_C: CMutex = CMutex(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));

fn lock_in_c() {
    // SAFETY: a static, which is locked and unlocked in turn by each thread.
    assert_eq!(unsafe { libc::pthread_mutex_lock(IN_C.0.get()) }, 0);
}

fn unlock_in_c() {
    // SAFETY: as above.
    assert_eq!(unsafe { libc::pthread_mutex_unlock(IN_C.0.get()) }, 0);
}

#[cfg(target_env = "gnu")]
#[test]
fn a_mutex_in_c_names_its_owner() {
    let polls = watch();
    lock_in_c();
    let own = identity::tid();
    let is_owned = |poll: &LongPoll| poll.now.as_ref().is_some_and(|now| now.mutex_owner == Some(own));
    let waits = || {
        lock_in_c();
        unlock_in_c();
    };
    let report = last_report(&polls, "locks in C", waits, is_owned, unlock_in_c);
    assert!(found(&report, &["futex"]).0 > 0, "{report:?}");
}

#[test]
fn a_page_fault_is_told_from_calls() {
    let faulting = match Faulting::new(1) {
        Ok(faulting) => Arc::new(faulting),
        Err(why) => return skip(format_args!("no faults that wait: {why}")),
    };
    let polls = watch();
    let theirs = Arc::clone(&faulting);
    let faults = |poll: &LongPoll| is_now(poll, "page fault");
    let report = last_report(&polls, "faults", move || theirs.touch(0), faults, || faulting.fill(0));
    assert!(found(&report, &["page fault"]).0 > 0, "{report:?}");
}

#[test]
fn a_thread_that_computes_is_in_no_call() {
    let polls = watch();
    let over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&over);
    let computes = move || while !ends.load(Ordering::Relaxed) {};
    // A busy machine may never let it run while somebody looks, so only some looks find it there.
    let is_seen = |poll: &LongPoll| found(poll, &["on a CPU"]).0 > 0;
    let release = || over.store(true, Ordering::Relaxed);
    let report = last_report(&polls, "computes", computes, is_seen, release);
    let (in_user_mode, all) = found(&report, &["on a CPU", "runnable"]);
    assert_eq!(in_user_mode, all, "{report:?}");
}

/// Has a poll wait for a lock, and returns why it is not known what its thread is in.
fn unknown_for(polls: &LongPolls, group: &'static str) -> &'static str {
    let lock = Arc::new(std::sync::Mutex::new(()));
    let held = lock.lock().unwrap();
    let theirs = Arc::clone(&lock);
    let is_unknown = |within: &ThreadIn| matches!(within, ThreadIn::Unknown(_));
    let enough = |poll: &LongPoll| poll.now.as_ref().is_some_and(|now| is_unknown(&now.within));
    let report = last_report(polls, group, move || drop(theirs.lock()), enough, || drop(held));
    let unknown = report.looks.iter().find_map(|(within, _)| match within {
        ThreadIn::Unknown(why) => Some(*why),
        _ => None,
    });
    unknown.unwrap()
}

#[test]
fn a_filter_is_a_reason() {
    in_child(|| {
        let polls = watch();
        Filter::refuse(&[libc::SYS_openat]).install_on_all_threads();
        let why = unknown_for(&polls, "filtered");
        assert!(why.contains("EPERM") && !polls.is_over(), "{why}");
    });
}

#[test]
fn a_change_of_user_is_a_reason() {
    in_child(|| {
        const NOBODY: libc::uid_t = 65_534;
        let polls = watch();
        // SAFETY: plain calls: that of one thread, as others have their own users.
        unsafe {
            if libc::geteuid() != 0 {
                return skip("only root can change its user");
            }
            assert_eq!(libc::setuid(NOBODY), 0);
        }
        let why = unknown_for(&polls, "changed");
        assert!(why.contains("change of user"), "{why}");
    });
}

#[test]
fn a_child_looks_for_itself() {
    in_child(|| {
        let parents = watch();
        let status = fork(|| {
            let polls = watch();
            let (mut from, mut to) = std::io::pipe().unwrap();
            let reads = move || from.read_exact(&mut [0]).unwrap();
            let reading = |poll: &LongPoll| is_now(poll, "read");
            last_report(&polls, "child", reads, reading, || to.write_all(b"x").unwrap());
        });
        assert!(status.success(), "{status:?}");
        assert!(parents.take().is_empty());
    });
}
