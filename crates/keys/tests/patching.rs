//! What only patched sites can show: foreign bytes in the text, and threads that run what is being changed.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]
#![allow(unsafe_code)]

mod child;

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use child::in_child;
use dormouse_keys::{Batch, Error, Key, Lease, Protocol, StaticKey, static_key, unlikely};

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

/// Where in `function` the five bytes of a sleeping site are.
fn find_site(function: extern "C" fn() -> bool) -> *mut u8 {
    let code = function as *const () as *mut u8;
    // SAFETY: the function is longer than that, or others follow it.
    let bytes = unsafe { std::slice::from_raw_parts(code, 64) };
    let at = bytes.iter().position(|&b| b == 0xa9).unwrap();
    // SAFETY: inside the 64 bytes.
    unsafe { code.add(at) }
}

/// Writes one byte of code as a debugger would.
fn write_text(at: *mut u8, byte: u8) {
    let page = (at as usize & !4095) as *mut libc::c_void;
    // SAFETY: whole pages of this binary's text; nobody runs the function meanwhile.
    unsafe {
        assert_eq!(libc::mprotect(page, 8192, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC), 0);
        at.write_volatile(byte);
        assert_eq!(libc::mprotect(page, 8192, libc::PROT_READ | libc::PROT_EXEC), 0);
    }
}

#[test]
fn a_foreign_byte_at_one_site_leaves_the_whole_batch_untouched_and_is_named() {
    in_child("a_foreign_byte_at_one_site_leaves_the_whole_batch_untouched_and_is_named", || {
        let site = find_site(dirty);
        write_text(site, 0xcc);
        let error = Batch::new().enable(&CLEAN).enable(&DIRTY).apply().unwrap_err();
        let Error::UnexpectedText { key, addr, expected, found } = error else { panic!("{error}") };
        assert_eq!((key, addr), ("text.dirty", site as usize));
        assert_eq!((expected[0], found[0]), (0xa9, 0xcc));
        assert_eq!(expected[1..], found[1..]);
        assert!(!CLEAN.is_enabled() && !clean());
        assert!(!DIRTY.is_enabled());
        // A lease is refused just so, and holds nothing.
        assert!(DIRTY.acquire().is_err());
        assert_eq!(DIRTY.leases(), 0);
        // The foreign byte gone, the same batch works.
        write_text(site, 0xa9);
        Batch::new().enable(&CLEAN).enable(&DIRTY).apply().unwrap();
        assert!(clean() && dirty());
    });
}

#[test]
fn a_lease_that_cannot_be_given_back_stays_held() {
    in_child("a_lease_that_cannot_be_given_back_stays_held", || {
        let site = find_site(dirty);
        let lease = DIRTY.acquire().unwrap();
        write_text(site, 0xcc);
        let refused = lease.release().unwrap_err();
        assert!(matches!(refused.error, Error::UnexpectedText { .. }));
        assert_eq!(DIRTY.leases(), 1);
        write_text(site, 0xe9);
        drop(refused.lease);
        assert!(!DIRTY.is_enabled() && !dirty());
    });
}

#[test]
fn a_dropped_lease_that_cannot_be_given_back_is_given_back_as_soon_as_it_can() {
    in_child("a_dropped_lease_that_cannot_be_given_back_is_given_back_as_soon_as_it_can", || {
        let site = find_site(dirty);
        let lease = Lease::of([CLEAN.key(), DIRTY.key()]).unwrap();
        write_text(site, 0xcc);
        drop(lease);
        // What stands in the way of one key keeps no other on.
        let start = Instant::now();
        while CLEAN.is_enabled() {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
        assert!(!clean() && DIRTY.is_enabled() && DIRTY.leases() == 1);
        write_text(site, 0xe9);
        while DIRTY.is_enabled() {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
        assert!(!dirty() && DIRTY.leases() == 0);
    });
}

/// Mappings that are writable and executable at once, as lines of the maps file.
fn writable_code() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|l| l.contains("rwx")).map(str::to_owned).collect()
}

#[test]
fn code_is_read_only_again_after_a_batch() {
    in_child("code_is_read_only_again_after_a_batch", || {
        assert_eq!(writable_code(), [""; 0]);
        CLEAN.enable().unwrap();
        assert!(clean());
        assert_eq!(writable_code(), [""; 0]);
    });
}

/// Functions of one site each, at whatever alignments the compiler gives them, with their keys.
macro_rules! sites {
    ($($n:literal)*) => {
        [$({
            static KEY: StaticKey<false> = StaticKey::new(concat!("stress.", $n), file!(), line!());
            #[inline(never)]
            fn site() -> bool {
                unlikely!(KEY)
            }
            (site as fn() -> bool, KEY.key())
        }),*]
    };
}

type Site = (fn() -> bool, &'static Key);

static SITES: [Site; 64] = sites! {
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
};
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

/// What a flipper has last brought about, with a number that is odd while it is at it.
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

/// Says how many batches it has made, and how many traps they took.
fn flip(which: usize, protocol: Protocol, truth: &Truth, stop: &AtomicBool) -> (u64, u64) {
    let mut random = Random(which as u64 + 1);
    let own: Vec<usize> = (0..SITES.len()).filter(|i| i % FLIPPERS == which).collect();
    let (mut batches, mut traps) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let wanted = random.next();
        let is_on = |i: &&usize| wanted & (1 << **i) != 0;
        truth.epoch.fetch_add(1, Ordering::SeqCst);
        let keys = |on: bool| own.iter().filter(move |i| is_on(i) == on).map(|&i| SITES[i].1);
        let batch = Batch::new().enable_all(keys(true)).disable_all(keys(false)).protocol(protocol);
        traps += batch.apply().unwrap().traps;
        TRAPPED.fetch_or(traps > 0, Ordering::Relaxed);
        truth.states.store(wanted, Ordering::SeqCst);
        truth.epoch.fetch_add(1, Ordering::SeqCst);
        batches += 1;
        // Until some threads have looked at what this one has done.
        let seen = truth.checks.load(Ordering::Relaxed);
        while truth.checks.load(Ordering::Relaxed) < seen + 16 && !stop.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }
    (batches, traps)
}

/// Calls sites; whenever no batch was under way from before to after a call, the answer must be the truth.
fn run(which: usize, truths: &[Truth], stop: &AtomicBool) -> (u64, u64) {
    let mut random = Random(1000 + which as u64);
    let (mut calls, mut checked) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let i = random.next() as usize % SITES.len();
        let truth = &truths[i % FLIPPERS];
        let before = truth.epoch.load(Ordering::SeqCst);
        let expected = truth.states.load(Ordering::SeqCst) & (1 << i) != 0;
        fence(Ordering::SeqCst);
        let answer = SITES[i].0();
        fence(Ordering::SeqCst);
        calls += 1;
        if before.is_multiple_of(2) && truth.epoch.load(Ordering::SeqCst) == before {
            checked += 1;
            truth.checks.fetch_add(1, Ordering::Relaxed);
            assert_eq!(answer, expected, "site {i} after {calls} calls");
        }
    }
    (calls, checked)
}

/// Seconds by default; `DORMOUSE_STRESS_SECONDS` makes them more.
fn stress(protocol: Protocol) {
    let seconds = std::env::var("DORMOUSE_STRESS_SECONDS").map_or(2, |s| s.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(seconds);
    let stop = &AtomicBool::new(false);
    let truths = &[const { Truth::new() }; FLIPPERS];
    std::thread::scope(|scope| {
        let flippers: Vec<_> =
            (0..FLIPPERS).map(|n| scope.spawn(move || flip(n, protocol, &truths[n], stop))).collect();
        let runners: Vec<_> = (0..RUNNERS).map(|n| scope.spawn(move || run(n, truths, stop))).collect();
        // The length of the run; on a busy machine longer, until enough has happened to show something.
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        let give_up = end + Duration::from_secs(60);
        let batches = || truths.iter().map(|t| t.epoch.load(Ordering::Relaxed) / 2).sum::<u64>();
        let trapped = || protocol == Protocol::Flip || TRAPPED.load(Ordering::Relaxed);
        while (batches() < 200 || !trapped()) && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
        let sum = |all: (u64, u64), one: (u64, u64)| (all.0 + one.0, all.1 + one.1);
        let (batches, traps) = flippers.into_iter().map(|t| t.join().unwrap()).fold((0, 0), sum);
        let (calls, checked) = runners.into_iter().map(|t| t.join().unwrap()).fold((0, 0), sum);
        println!("{protocol:?}: {batches} batches, {traps} traps, {calls} calls, {checked} of them checked");
        assert!(batches >= 100 && checked > 1000, "{batches} batches, {checked} checks");
        match protocol {
            Protocol::Flip => assert_eq!(traps, 0),
            _ => assert!(traps > 0, "nobody ran into {batches} batches"),
        }
    });
}

#[test]
fn no_thread_sees_a_wrong_branch_while_others_flip_as_fast_as_they_can() {
    in_child("no_thread_sees_a_wrong_branch_while_others_flip_as_fast_as_they_can", || {
        stress(Protocol::Flip);
    });
}

#[test]
fn no_thread_sees_a_wrong_branch_while_others_patch_by_int3_as_fast_as_they_can() {
    in_child("no_thread_sees_a_wrong_branch_while_others_patch_by_int3_as_fast_as_they_can", || {
        stress(Protocol::INT3);
    });
}

#[test]
fn a_batch_by_int3_takes_three_barriers_a_queue() {
    in_child("a_batch_by_int3_takes_three_barriers_a_queue", || {
        let keys = || SITES.iter().map(|s| s.1);
        for (capacity, barriers) in [(64, 3), (256, 3), (10, 21), (1, 192)] {
            let protocol = Protocol::Int3 { capacity: NonZero::new(capacity).unwrap() };
            let report = Batch::new().enable_all(keys()).protocol(protocol).apply().unwrap();
            assert_eq!((report.sites, report.barriers), (64, barriers), "queues of {capacity}");
            assert!(SITES.iter().all(|s| s.0()));
            Batch::new().disable_all(keys()).protocol(protocol).apply().unwrap();
            assert!(SITES.iter().all(|s| !s.0()));
        }
    });
}

/// Blocks SIGTRAP on the calling thread.
fn block_sigtrap() {
    // SAFETY: a local set, this thread's mask.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTRAP);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

#[test]
fn int3_is_refused_while_a_thread_blocks_its_signal_and_flip_is_not() {
    in_child("int3_is_refused_while_a_thread_blocks_its_signal_and_flip_is_not", || {
        let (ready, is_ready) = channel();
        let (end, ended) = channel::<()>();
        let thread = std::thread::Builder::new().name("deaf".into()).spawn(move || {
            block_sigtrap();
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
