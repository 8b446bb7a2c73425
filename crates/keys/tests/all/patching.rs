//! Properties of patched sites alone: foreign bytes in the text, and threads that run what is being
//! changed.
#![cfg(not(dormouse_fallback))]
#![allow(unsafe_code)]

use crate::arch::{ASLEEP, HAS_INT3, PROTOCOLS, placed};
use crate::process::{self, writable_code};

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use dormouse_keys::{Batch, Error, Key, Lease, Protocol, StaticKey, prepare, static_key, unlikely};
use dormouse_testkit::{Answer, Filter, fork, in_child, skip, stress_time};

static_key! {
    static CLEAN: "text.clean" = false;
    static DIRTY: "text.dirty" = false;
}

#[inline(never)]
extern "C" fn clean() -> bool {
    unlikely!(CLEAN)
}

#[inline(never)]
extern "C" fn dirty() -> bool {
    unlikely!(DIRTY)
}

/// Where in `function` the bytes of a sleeping site are.
fn find_site(function: extern "C" fn() -> bool) -> *mut u8 {
    let code = function as *const () as *mut u8;
    // SAFETY: the function is longer than that, or others follow it.
    let bytes = unsafe { std::slice::from_raw_parts(code, 64) };
    let at = bytes.windows(ASLEEP.len()).position(|here| here == ASLEEP).unwrap();
    // SAFETY: inside the 64 bytes.
    unsafe { code.add(at) }
}

/// Writes one byte of code as a debugger would.
fn write_text(at: *mut u8, byte: u8) {
    let size = rustix::param::page_size();
    let page = (at as usize & !(size - 1)) as *mut libc::c_void;
    // SAFETY: whole pages of this binary's text; nobody runs the function meanwhile.
    unsafe {
        assert_eq!(libc::mprotect(page, 2 * size, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC), 0);
        at.write_volatile(byte);
        assert_eq!(libc::mprotect(page, 2 * size, libc::PROT_READ | libc::PROT_EXEC), 0);
    }
}

#[test]
fn a_foreign_byte_refuses_the_batch() {
    in_child(|| {
        let site = find_site(dirty);
        write_text(site, 0xcc);
        let error = Batch::new().enable(&CLEAN).enable(&DIRTY).apply().unwrap_err();
        let Error::UnexpectedText { key, addr, expected, found } = error else { panic!("{error}") };
        assert_eq!((key, addr), ("text.dirty", site as usize));
        assert_eq!((expected[0], found[0]), (ASLEEP[0], 0xcc));
        assert_eq!(expected[1..], found[1..]);
        assert!(!CLEAN.is_enabled() && !clean());
        assert!(!DIRTY.is_enabled());
        // A lease is refused just so, and holds nothing.
        assert!(DIRTY.acquire().is_err());
        assert_eq!(DIRTY.leases(), 0);
        // The foreign byte gone, the same batch works.
        write_text(site, ASLEEP[0]);
        Batch::new().enable(&CLEAN).enable(&DIRTY).apply().unwrap();
        assert!(clean() && dirty());
    });
}

#[test]
fn a_lease_that_cannot_end_is_held() {
    in_child(|| {
        let site = find_site(dirty);
        let lease = DIRTY.acquire().unwrap();
        // SAFETY: a byte of this binary's text.
        let awake = unsafe { site.read() };
        write_text(site, 0xcc);
        let refused = lease.release().unwrap_err();
        assert!(matches!(refused.error, Error::UnexpectedText { .. }));
        assert_eq!(DIRTY.leases(), 1);
        write_text(site, awake);
        drop(refused.lease);
        assert!(!DIRTY.is_enabled() && !dirty());
    });
}

#[test]
fn a_dropped_lease_is_tried_again() {
    in_child(|| {
        let site = find_site(dirty);
        let lease = Lease::of([CLEAN.key(), DIRTY.key()]).unwrap();
        // SAFETY: a byte of this binary's text.
        let awake = unsafe { site.read() };
        write_text(site, 0xcc);
        drop(lease);
        // An obstacle to one key keeps no other on.
        let start = Instant::now();
        while CLEAN.is_enabled() {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
        assert!(!clean() && DIRTY.is_enabled() && DIRTY.leases() == 1);
        write_text(site, awake);
        while DIRTY.is_enabled() {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
        assert!(!dirty() && DIRTY.leases() == 0);
    });
}

#[test]
fn code_is_read_only_again_after_a_batch() {
    in_child(|| {
        assert_eq!(writable_code(), []);
        let keys = || sites().into_iter().map(|(_, key)| key);
        for &protocol in PROTOCOLS {
            for on in [true, false] {
                let batch = Batch::new().protocol(protocol);
                let batch = if on { batch.enable_all(keys()) } else { batch.disable_all(keys()) };
                let report = batch.apply().unwrap();
                assert!(report.pages > 2, "{report:?}");
                assert_eq!((writable_code(), report.unsealed), (vec![], 0), "{protocol:?}");
            }
        }
        if !HAS_INT3 {
            return skip("no int3 on this processor: nothing refuses a batch once it writes");
        }
        // Its first barrier is refused, when the first bytes are written.
        let barrier = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE as u64;
        Filter::refuse(&[]).and_where(libc::SYS_membarrier, 0, u64::MAX, &[barrier]).install();
        let error = Batch::new().protocol(Protocol::INT3).enable_all(keys()).apply().unwrap_err();
        assert!(error.to_string().starts_with("membarrier"), "{error}");
        assert_eq!(writable_code(), []);
        assert!(sites().into_iter().all(|(site, key)| !site() && !key.is_enabled()));
    });
}

/// Functions of one site each, at whatever alignments the compiler gives them, with their keys.
macro_rules! sites {
    ($($n:literal)*) => {
        [$({
            static KEY: StaticKey<false> = StaticKey::new(concat!("stress.", $n), file!(), line!());
            #[inline(never)]
            extern "C" fn site() -> bool {
                unlikely!(KEY)
            }
            (site as extern "C" fn() -> bool, KEY.key())
        }),*]
    };
}

type Site = (extern "C" fn() -> bool, &'static Key);

/// At whatever places the compiler gives them.
static COMPILED: [Site; 48] = sites! {
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23
    24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47
};

// At the end of a cache line and of a page, cut in every way that there is.
placed! {
    line_1: 1 before 1 << 6;
    line_2: 2 before 1 << 6;
    line_3: 3 before 1 << 6;
    line_4: 4 before 1 << 6;
    page_1: 1 before 1 << 12;
    page_2: 2 before 1 << 12;
    page_3: 3 before 1 << 12;
    page_4: 4 before 1 << 12;
}

macro_rules! placed_sites {
    ($($name:ident)*) => {
        [$(($name::SITE, $name::KEY.key())),*]
    };
}

static STRADDLING: [Site; 8] = placed_sites! { line_1 line_2 line_3 line_4 page_1 page_2 page_3 page_4 };
fn sites() -> Vec<Site> {
    [&COMPILED[..], &STRADDLING].concat()
}

const FLIPPERS: usize = 2;
const RUNNERS: usize = 8;

/// Small, seeded, good enough to choose keys (xorshift64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The states that a flipper has last brought about, with a number that is odd while it is at it.
struct Truth {
    epoch: AtomicU64,
    states: AtomicU64,
    checks: AtomicU64,
}

impl Truth {
    const fn new() -> Self {
        Self { epoch: AtomicU64::new(0), states: AtomicU64::new(0), checks: AtomicU64::new(0) }
    }
}

/// Whether any thread has run into an `int3`.
static TRAPPED: AtomicBool = AtomicBool::new(false);

/// The data that the threads of a stress test share.
struct Stress {
    protocol: Protocol,
    sites: Vec<Site>,
    truths: [Truth; FLIPPERS],
    stop: AtomicBool,
}

impl Stress {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn batches(&self) -> u64 {
        self.truths.iter().map(|t| t.epoch.load(Ordering::Relaxed) / 2).sum()
    }

    /// Switches random subsets on and off, some of them by leases. Says how many rounds, and how
    /// many traps they took.
    fn flip(&self, which: usize) -> (u64, u64) {
        let truth = &self.truths[which];
        let mut random = Random(which as u64 + 1);
        let own: Vec<usize> = (0..self.sites.len()).filter(|i| i % FLIPPERS == which).collect();
        let keys = |set: u64| own.iter().filter(move |&&i| set & (1 << i) != 0).map(|&i| self.sites[i].1);
        let (mut rounds, mut traps, mut lease) = (0, 0, None::<Lease>);
        while !self.is_over() {
            let (wanted, mut leased) = (random.next(), 0);
            truth.epoch.fetch_add(1, Ordering::SeqCst);
            drop(lease.take());
            let batch = || Batch::new().protocol(self.protocol);
            let report = batch().enable_all(keys(wanted)).disable_all(keys(!wanted)).apply().unwrap();
            traps += report.traps;
            if wanted % 4 == 0 {
                leased = random.next();
                let held = batch().acquire(keys(leased)).unwrap();
                traps += held.report().traps;
                lease = Some(held);
            }
            TRAPPED.fetch_or(traps > 0, Ordering::Relaxed);
            truth.states.store(wanted | leased, Ordering::SeqCst);
            truth.epoch.fetch_add(1, Ordering::SeqCst);
            rounds += 1;
            // Until some threads have looked at what this one has done.
            let seen = truth.checks.load(Ordering::Relaxed);
            while truth.checks.load(Ordering::Relaxed) < seen + 16 && !self.is_over() {
                std::thread::yield_now();
            }
        }
        drop(lease);
        (rounds, traps)
    }

    /// Calls sites; whenever no batch was under way from before to after a call, the answer must be
    /// the truth.
    fn run(&self, which: usize) -> (u64, u64) {
        let mut random = Random(1000 + which as u64);
        let (mut calls, mut checked) = (0, 0);
        while !self.is_over() {
            let i = random.next() as usize % self.sites.len();
            let truth = &self.truths[i % FLIPPERS];
            let before = truth.epoch.load(Ordering::SeqCst);
            let expected = truth.states.load(Ordering::SeqCst) & (1 << i) != 0;
            fence(Ordering::SeqCst);
            let answer = self.sites[i].0();
            fence(Ordering::SeqCst);
            calls += 1;
            if calls % 256 == 0 {
                // There are more runners than processors; who flips shall have its turn.
                std::thread::yield_now();
            }
            if before.is_multiple_of(2) && truth.epoch.load(Ordering::SeqCst) == before {
                checked += 1;
                truth.checks.fetch_add(1, Ordering::Relaxed);
                assert_eq!(answer, expected, "site {i} after {calls} calls");
            }
        }
        (calls, checked)
    }

    /// Forks children, each of which finds whole text and switches keys of its own. Says how many.
    fn fork(&self) -> u64 {
        let mut forks = 0;
        while !self.is_over() {
            let status = fork(|| {
                for (function, key) in &self.sites {
                    assert_eq!(function(), key.is_enabled(), "{}", key.name());
                    assert_eq!(key.leases(), 0);
                }
                let keys = || self.sites.iter().map(|s| s.1);
                Batch::new().enable_all(keys()).protocol(self.protocol).apply().unwrap();
                assert!(self.sites.iter().all(|s| s.0()));
            });
            assert!(status.success(), "fork {forks}: {status}");
            forks += 1;
            // Not the forks are under test.
            let seen = self.batches();
            while self.batches() < seen + 8 && !self.is_over() {
                std::thread::yield_now();
            }
        }
        forks
    }
}

fn stress(protocol: Protocol) {
    let end = Instant::now() + stress_time();
    prepare().unwrap();
    let stress = &Stress {
        protocol,
        sites: sites(),
        truths: [const { Truth::new() }; FLIPPERS],
        stop: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let runners: Vec<_> = (0..RUNNERS)
            .map(|n| {
                scope.spawn(move || {
                    if n == 0 && protocol == Protocol::Flip {
                        block_signals();
                    }
                    stress.run(n)
                })
            })
            .collect();
        let flippers: Vec<_> = (0..FLIPPERS).map(|n| scope.spawn(move || stress.flip(n))).collect();
        let forker = scope.spawn(|| stress.fork());
        // The length of the run; on a busy machine longer, until enough has happened to show
        // something.
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        let give_up = end + Duration::from_secs(60);
        let trapped = || protocol == Protocol::Flip || TRAPPED.load(Ordering::Relaxed);
        while (stress.batches() < 200 || !trapped()) && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(10));
        }
        stress.stop.store(true, Ordering::Relaxed);
        let sum = |all: (u64, u64), one: (u64, u64)| (all.0 + one.0, all.1 + one.1);
        let (rounds, traps) = flippers.into_iter().map(|t| t.join().unwrap()).fold((0, 0), sum);
        let (calls, checked) = runners.into_iter().map(|t| t.join().unwrap()).fold((0, 0), sum);
        let forks = forker.join().unwrap();
        println!(
            "{protocol:?}: {rounds} rounds, {traps} traps, {forks} forks, {calls} calls, {checked} of them checked"
        );
        assert!(
            rounds >= 100 && checked > 1000 && forks > 0,
            "{rounds} rounds, {checked} checks, {forks} forks"
        );
        match protocol {
            Protocol::Flip => assert_eq!(traps, 0),
            _ => assert!(traps > 0, "nobody ran into {rounds} rounds"),
        }
    });
    for (i, (function, key)) in stress.sites.iter().enumerate() {
        assert_eq!(key.leases(), 0);
        assert_eq!((function(), key.is_enabled()), (key.baseline(), key.baseline()), "site {i}");
    }
    Batch::new().disable_all(stress.sites.iter().map(|site| site.1)).apply().unwrap();
}

#[test]
fn no_branch_is_wrong_under_flips() {
    in_child(|| {
        stress(Protocol::Flip);
    });
}

#[test]
fn no_branch_is_wrong_without_membarrier() {
    in_child(|| {
        Filter::answer(Answer::Errno(libc::ENOSYS), &[libc::SYS_membarrier]).install();
        stress(Protocol::Flip);
        // The memory file has the kernel interrupt nobody.
        if !process::refuse_exec_gain() {
            return;
        }
        stress(Protocol::Flip);
    });
}

#[test]
fn no_branch_is_wrong_under_int3() {
    in_child(|| {
        if !HAS_INT3 {
            return skip("no int3 on this processor");
        }
        stress(Protocol::INT3);
    });
}

#[test]
fn no_branch_is_wrong_through_the_memory_file() {
    in_child(|| {
        if !process::refuse_exec_gain() {
            return;
        }
        stress(if HAS_INT3 { Protocol::INT3 } else { Protocol::Flip });
    });
}

#[test]
fn int3_takes_three_barriers_a_queue() {
    in_child(|| {
        if !HAS_INT3 {
            return skip("no int3 on this processor");
        }
        let sites = sites();
        let keys = || sites.iter().map(|s| s.1);
        for (capacity, barriers) in [(56, 3), (256, 3), (10, 18), (1, 168)] {
            let protocol = Protocol::Int3 { capacity: NonZero::new(capacity).unwrap() };
            let report = Batch::new().enable_all(keys()).protocol(protocol).apply().unwrap();
            assert_eq!((report.sites, report.barriers), (56, barriers), "queues of {capacity}");
            assert!(sites.iter().all(|s| s.0()));
            Batch::new().disable_all(keys()).protocol(protocol).apply().unwrap();
            assert!(sites.iter().all(|s| !s.0()));
        }
    });
}

/// Blocks all signals on the calling thread.
fn block_signals() {
    // SAFETY: a local set, this thread's mask.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

#[test]
fn a_deaf_thread_refuses_int3_alone() {
    in_child(|| {
        if !HAS_INT3 {
            return skip("no int3 on this processor");
        }
        let (ready, is_ready) = channel();
        let (end, ended) = channel::<()>();
        let thread = std::thread::Builder::new().name("deaf".into()).spawn(move || {
            block_signals();
            ready.send(()).unwrap();
            let _ = ended.recv();
            clean()
        });
        is_ready.recv().unwrap();
        let error = Batch::new().enable(&CLEAN).protocol(Protocol::INT3).apply().unwrap_err();
        let Error::TrapsBlocked { threads } = &error else { panic!("{error}") };
        assert_eq!(threads.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["deaf"]);
        assert!(error.to_string().contains("deaf"), "{error}");
        assert!(!CLEAN.is_enabled() && !clean());
        CLEAN.enable().unwrap();
        drop(end);
        assert!(thread.unwrap().join().unwrap());
        CLEAN.disable().unwrap();
        Batch::new().enable(&CLEAN).protocol(Protocol::INT3).apply().unwrap();
        assert!(clean());
    });
}
