//! Tests with an imitated kernel: every refusal, every turn, and closing while others read.
//!
//! # Safety
//!
//! The unsafe code implements the kernel's trait, and closes what the test has opened.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard};

use dormouse_sys::perf::{EventCount, UserPage};

use super::*;
use crate::pmu::perf::kernel::{Linux, Opened};

#[derive(Debug)]
struct Fake(Mutex<State>);

#[derive(Debug)]
struct State {
    may: Result<bool, String>,
    refuse: Option<i32>,
    next_fd: RawFd,
    open: BTreeMap<RawFd, EventCount>,
    pages: BTreeSet<RawFd>,
    /// New events have a page.
    with_page: bool,
    /// The counts in a page.
    page: Option<EventCount>,
    looks: u32,
    reads: u32,
    clock: u64,
    process: u64,
    limit: u64,
}

impl Fake {
    fn perf() -> &'static Perf<Self, 4> {
        let state = State {
            may: Ok(false),
            refuse: None,
            next_fd: 1000,
            open: BTreeMap::new(),
            pages: BTreeSet::new(),
            with_page: false,
            page: None,
            looks: 0,
            reads: 0,
            clock: 1000,
            process: 1,
            limit: 1000,
        };
        Box::leak(Box::new(Perf::new(Self(Mutex::new(state)))))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// How often a page was read, and how often the kernel was.
    fn asked(&self) -> (u32, u32) {
        let state = self.state();
        (state.looks, state.reads)
    }

    /// Open descriptors and pages.
    fn has_open(&self) -> (usize, usize) {
        let state = self.state();
        (state.open.len(), state.pages.len())
    }

    /// The thread runs for `ns`, of which its events are counted for `counted_ns`, and happen
    /// `count` times.
    fn run(&self, ns: u64, counted_ns: u64, count: u64) {
        let mut state = self.state();
        state.clock += ns;
        for held in state.open.values_mut() {
            held.count += count;
            held.waited_ns += ns - counted_ns;
        }
    }
}

impl Kernel for Fake {
    fn may(&self, _counted: KernelEvent) -> Result<bool, String> {
        self.state().may.clone()
    }

    fn open(&self, _counted: KernelEvent, _user_only: bool) -> io::Result<Opened> {
        let mut state = self.state();
        if let Some(errno) = state.refuse {
            return Err(io::Error::from_raw_os_error(errno));
        }
        state.next_fd += 1;
        let fd = state.next_fd;
        state.open.insert(fd, EventCount::default());
        let has_page = state.with_page;
        if has_page {
            state.pages.insert(fd);
        }
        // Nobody follows it.
        let page = if has_page { NonNull::dangling().as_ptr() } else { ptr::null_mut() };
        Ok(Opened { fd, page })
    }

    fn read(&self, fd: RawFd) -> Option<EventCount> {
        let mut state = self.state();
        state.reads += 1;
        Some(*state.open.get(&fd).expect("read only what is open"))
    }

    unsafe fn look(&self, _page: NonNull<UserPage>) -> Option<EventCount> {
        let mut state = self.state();
        state.looks += 1;
        assert!(state.with_page, "look only at what is mapped");
        state.page
    }

    unsafe fn close(&self, opened: Opened) {
        let mut state = self.state();
        state.open.remove(&opened.fd).expect("close only what is open, and once");
        if !opened.page.is_null() {
            assert!(state.pages.remove(&opened.fd), "unmap only what is mapped");
        }
    }

    fn clock(&self) -> u64 {
        self.state().clock
    }

    fn clock_of(&self, _tid: u32) -> Option<u64> {
        Some(self.state().clock)
    }

    fn process(&self) -> u64 {
        self.state().process
    }

    fn limit(&self) -> u64 {
        self.state().limit
    }
}

const CYCLES: [u32; 1] = [0];
const TID: u32 = 7;

fn read(perf: &Perf<Fake, 4>, row: usize) -> u64 {
    let mut value = [u64::MAX];
    perf.read(row, &CYCLES, &mut value);
    value[0]
}

fn times(perf: &Perf<Fake, 4>, row: usize) -> (u64, u64) {
    let Times { enabled_ns, running_ns } = perf.rows[row].slots[0].total().times;
    (enabled_ns, running_ns)
}

fn read_of(perf: &Perf<Fake, 4>, row: usize) -> Option<u64> {
    let mut value = [u64::MAX];
    perf.read_of(row, TID, &CYCLES, &mut value).then_some(value[0])
}

#[test]
fn a_refused_thread_counts_nothing_and_says_why() {
    for (errno, refusal) in [
        (libc::EMFILE, Refusal::Limit),
        (libc::ENFILE, Refusal::Limit),
        (libc::EACCES, Refusal::Denied),
        (libc::EPERM, Refusal::Denied),
        (libc::ENOSYS, Refusal::Denied),
        (libc::ENOENT, Refusal::Absent),
        (libc::EOPNOTSUPP, Refusal::Absent),
        (libc::EBUSY, Refusal::Other),
        (libc::EINVAL, Refusal::Other),
    ] {
        let perf = Fake::perf();
        perf.begin(&CYCLES).unwrap();
        perf.kernel.state().refuse = Some(errno);
        let (value, before) = (read(perf, 0), times(perf, 0));
        perf.kernel.run(100, 100, 5);
        assert_eq!(read(perf, 0), value);
        assert_eq!(times(perf, 0), (before.0 + 100, before.1), "errno {errno}");
        assert_eq!(
            perf.refusals[refusal as usize].load(Ordering::Relaxed),
            1,
            "errno {errno}: once a thread"
        );
        // A new begin has the thread try again.
        perf.kernel.state().refuse = None;
        perf.begin(&CYCLES).unwrap();
        read(perf, 0);
        perf.kernel.run(100, 100, 5);
        assert_eq!(read(perf, 0), value + 5);
        assert_eq!(times(perf, 0).1, before.1 + 100);
    }
}

#[test]
fn a_forbidden_event_is_refused_at_begin() {
    let perf = Fake::perf();
    perf.kernel.state().may = Err("because".to_owned());
    assert_eq!(perf.begin(&CYCLES), Err((0, "because".to_owned())));
    assert_eq!(read(perf, 0), 0);
    assert_eq!(perf.kernel.state().next_fd, 1000, "nothing was opened");
    perf.kernel.state().may = Ok(true);
    let (event, reason) = perf.begin(&[0, MIGRATIONS]).unwrap_err();
    assert!(event == MIGRATIONS && reason.contains("kernel.perf_event_paranoid"), "{reason}");
    perf.begin(&CYCLES).unwrap();
}

#[test]
fn multiplexed_events_are_scaled_by_stretch() {
    let perf = Fake::perf();
    perf.begin(&CYCLES).unwrap();
    let (value, (enabled, running)) = (read(perf, 0), times(perf, 0));
    perf.kernel.run(100, 100, 1000);
    assert_eq!(read(perf, 0) - value, 1000);
    perf.kernel.run(100, 25, 10);
    assert_eq!(read(perf, 0) - value, 1040);
    perf.kernel.run(100, 0, 0);
    assert_eq!(read(perf, 0) - value, 1040);
    assert_eq!(times(perf, 0), (enabled + 300, running + 125));
    let share = perf.share(0);
    assert_eq!((share.enabled_ns, share.running_ns), (enabled + 300, running + 125), "the only thread's");
}

#[test]
fn an_unreadable_page_has_the_kernel_asked() {
    let perf = Fake::perf();
    perf.begin(&CYCLES).unwrap();
    perf.kernel.state().with_page = true;
    perf.kernel.state().page = Some(EventCount { count: 3, waited_ns: 0 });
    assert_eq!(read(perf, 0), 3);
    assert_eq!(perf.kernel.asked(), (1, 0));
    // It waits for its turn, or the permission is gone.
    perf.kernel.state().page = None;
    perf.kernel.run(10, 10, 8);
    assert_eq!(read(perf, 0), 8);
    assert_eq!(perf.kernel.asked(), (2, 1));
}

#[test]
fn a_remote_read_sees_unread_counts() {
    let perf = Fake::perf();
    assert_eq!(read_of(perf, 1), Some(0), "a thread that has not begun");
    perf.begin(&CYCLES).unwrap();
    let value = read(perf, 1);
    perf.kernel.run(100, 50, 10);
    assert_eq!(read_of(perf, 1), Some(value + 20));
    assert_eq!(read_of(perf, 1), Some(value + 20), "and changes nothing");
    assert_eq!(read(perf, 1), value + 20);
}

#[test]
fn the_last_end_closes_and_counts_continue() {
    let perf = Fake::perf();
    perf.kernel.state().with_page = true;
    perf.begin(&CYCLES).unwrap();
    perf.begin(&CYCLES).unwrap();
    (0..3).for_each(|row| _ = read(perf, row));
    perf.kernel.run(10, 10, 10);
    assert_eq!(read(perf, 0), 10);
    perf.end(&CYCLES);
    assert_eq!(perf.kernel.state().open.len(), 3);
    perf.end(&CYCLES);
    assert_eq!(perf.kernel.has_open(), (0, 0));
    assert_eq!(perf.open.load(Ordering::Relaxed), 0);
    assert_eq!(read(perf, 0), 10, "and nobody opens it again");
    perf.begin(&CYCLES).unwrap();
    read(perf, 0);
    perf.kernel.run(10, 10, 7);
    assert_eq!(read(perf, 0), 17);
}

#[test]
fn a_freed_descriptor_goes_to_a_starved_thread() {
    let perf = Fake::perf();
    perf.kernel.state().limit = 11;
    perf.begin(&CYCLES).unwrap();
    (0..4).for_each(|row| _ = read(perf, row));
    assert_eq!(perf.kernel.state().open.len(), 2);
    assert_eq!(perf.refusals[Refusal::Budget as usize].load(Ordering::Relaxed), 2);
    perf.leave(0);
    read(perf, 2);
    assert!(perf.rows[2].slots[0].is_open());
    assert_eq!(perf.kernel.state().open.len(), 2);
    // The next thread in the row is a different one: it opens its own events.
    read(perf, 0);
    assert_eq!(perf.refusals[Refusal::Budget as usize].load(Ordering::Relaxed), 3);
}

#[test]
fn a_fork_child_opens_its_own_descriptors() {
    for hook in [true, false] {
        let perf = Fake::perf();
        perf.kernel.state().with_page = true;
        perf.begin(&CYCLES).unwrap();
        read(perf, 0);
        perf.kernel.run(10, 10, 10);
        let value = read(perf, 0);
        // The child has no pages.
        perf.kernel.state().process = 2;
        perf.kernel.state().pages.clear();
        perf.kernel.state().with_page = false;
        let looks = perf.kernel.state().looks;
        if hook {
            perf.forget();
            // The parent's begin is not undone here.
            assert_eq!(read(perf, 0), value);
            assert_eq!(perf.kernel.has_open(), (0, 0));
            perf.begin(&CYCLES).unwrap();
        }
        assert_eq!(read(perf, 0), value);
        assert_eq!(perf.kernel.state().looks, looks);
        assert_eq!(perf.kernel.state().open.keys().collect::<Vec<_>>(), [&1002], "hook {hook}");
        perf.kernel.run(10, 10, 3);
        assert_eq!(read(perf, 0), value + 3);
        perf.end(&CYCLES);
        assert_eq!(perf.kernel.has_open(), (0, 0), "the child's last one has ended");
    }
}

#[test]
fn a_read_left_by_siglongjmp_blocks_nobody() {
    let perf = Fake::perf();
    perf.begin(&CYCLES).unwrap();
    read(perf, 0);
    std::mem::forget(perf.rows[0].enter_own().unwrap());
    perf.end(&CYCLES);
    assert_eq!(perf.kernel.has_open(), (1, 0), "its thread may be in the middle of it");
    perf.leave(0);
    assert_eq!(perf.kernel.has_open(), (0, 0));
    assert_eq!(perf.open.load(Ordering::Relaxed), 0);
    // The next thread in the row.
    perf.begin(&CYCLES).unwrap();
    read(perf, 0);
    perf.end(&CYCLES);
    assert_eq!(perf.kernel.has_open(), (0, 0));
}

#[test]
fn a_nested_read_returns_the_last_totals() {
    let perf = Fake::perf();
    perf.begin(&CYCLES).unwrap();
    read(perf, 0);
    perf.kernel.run(10, 10, 10);
    let inside = perf.rows[0].enter_own().unwrap();
    assert_eq!(read(perf, 0), 0);
    drop(inside);
    assert_eq!(read(perf, 0), 10);
}

/// The fake panics when anything is read after it was closed, or closed twice.
#[test]
fn no_closed_descriptor_is_read() {
    let perf = Fake::perf();
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        for row in 0..3 {
            scope.spawn(move || {
                let mut last = 0;
                while !stop.load(Ordering::Relaxed) {
                    perf.kernel.run(10, 5, 1);
                    let now = read(perf, row);
                    assert!(now >= last);
                    last = now;
                    if now.is_multiple_of(64) {
                        perf.leave(row);
                    }
                }
                perf.leave(row);
            });
        }
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                (0..3).for_each(|row| _ = read_of(perf, row));
            }
        });
        for _ in 0..200 {
            perf.begin(&CYCLES).unwrap();
            std::thread::yield_now();
            perf.end(&CYCLES);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(perf.kernel.state().open.len(), 0);
    assert_eq!(perf.open.load(Ordering::Relaxed), 0);
}

/// The path of the processor's events, with the kernel's own, which every machine has.
#[test]
fn software_events_count_through_descriptors() {
    let kernel = Linux::new();
    for counted in [KernelEvent::PageFaults, KernelEvent::CpuClock, KernelEvent::TaskClock] {
        let opened = match kernel.may(counted) {
            Ok(user_only) => kernel.open(counted, user_only).unwrap(),
            Err(reason) => return dormouse_testkit::skip(reason),
        };
        assert!(opened.page.is_null());
        let before = kernel.read(opened.fd).unwrap();
        let mut memory = vec![0_u8; 1000 * 4096];
        memory.chunks_mut(4096).for_each(|page| page[0] = std::hint::black_box(1));
        std::hint::black_box(&memory);
        let after = kernel.read(opened.fd).unwrap();
        assert!(after.count > before.count, "{counted:?} {before:?} {after:?}");
        assert!(after.waited_ns < 1_000_000, "the kernel's own take no turns: {after:?}");
        // SAFETY: it comes from `open`, and is used nowhere else.
        unsafe { kernel.close(opened) };
    }
}
