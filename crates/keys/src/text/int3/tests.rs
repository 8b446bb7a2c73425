//! Tests in which every barrier and every store is refused in turn, on a memory that checks the
//! rules.

#![allow(unsafe_code, reason = "handlers, and a site of this crate's own")]

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;

use dormouse_sys::trap::Verdict;
use dormouse_testkit::in_child;

use super::*;
use crate::object::Site;
use crate::{Batch, Protocol, StaticKey, static_key, unlikely};

/// A memory and its rules; a barrier or a store that fails when its turn comes.
#[derive(Default)]
struct Fake {
    memory: BTreeMap<usize, [u8; LENGTH]>,
    /// Which part of a site was written since the last barrier: the first byte, or the tail.
    unseen: BTreeMap<usize, bool>,
    table: Option<Vec<Resume>>,
    syncs: usize,
    failing_sync: Option<usize>,
    /// Whether no barrier works after the one that has failed.
    for_good: bool,
    stores: usize,
    failing_stores: std::ops::Range<usize>,
    largest: usize,
    /// A site that holds somebody else's `int3`.
    foreign: Option<usize>,
}

impl World for Fake {
    fn reserve(&mut self, _: usize) -> Result<(), TryReserveError> {
        Ok(())
    }

    fn publish(&mut self, table: impl ExactSizeIterator<Item = Resume>) {
        let table: Vec<_> = table.collect();
        assert!(table.is_sorted_by_key(|r| r.code));
        self.largest = self.largest.max(table.len());
        self.table = Some(table);
    }

    fn exchange(&mut self, patch: &Patch, from: u8, to: u8) -> Result<(), Error> {
        let held = self.memory[&patch.code];
        if held[0] != from {
            let (addr, expected) = (patch.code, patch.old());
            return Err(Error::UnexpectedText { key: "k", addr, expected, found: held });
        }
        if to == INT3 {
            let table = self.table.as_ref().expect("int3 without a table");
            assert!(table.binary_search_by_key(&patch.code, |r| r.code).is_ok());
        }
        let mut bytes = held;
        bytes[0] = to;
        self.store(patch.code, bytes, false)
    }

    fn store_tail(&mut self, patch: &Patch, bytes: [u8; LENGTH]) -> Result<(), Error> {
        let mut bytes = bytes;
        bytes[0] = self.memory[&patch.code][0];
        assert_eq!(bytes[0], INT3, "a tail was written under a thread that may run it");
        self.store(patch.code, bytes, true)
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.syncs += 1;
        let fails = self.failing_sync.is_some_and(|at| self.syncs == at || self.for_good && self.syncs > at);
        if fails {
            return Err(Error::Reentrant);
        }
        self.unseen.clear();
        Ok(())
    }

    fn wait(&mut self) {
        self.unseen.clear();
    }

    fn retire(&mut self) {
        let is_ours = |code: &usize| Some(*code) != self.foreign;
        let trap = self.memory.iter().any(|(code, bytes)| is_ours(code) && bytes[0] == INT3);
        assert!(!trap, "retired under an int3");
        self.table = None;
    }
}

impl Fake {
    fn store(&mut self, code: usize, bytes: [u8; LENGTH], is_tail: bool) -> Result<(), Error> {
        self.stores += 1;
        if self.failing_stores.contains(&self.stores) {
            return Err(Error::Reentrant);
        }
        if self.memory.insert(code, bytes) != Some(bytes) {
            let other = self.unseen.insert(code, is_tail);
            assert!(other.is_none_or(|other| other == is_tail), "no barrier between first byte and tail");
        }
        Ok(())
    }
}

static KEY: StaticKey<false> = StaticKey::new("k", "", 0);

fn patches(count: usize) -> Vec<Patch> {
    let site = |n| Site::new(0x1000 + 16 * n, 0x9000, n % 2 == 0, Some(0));
    (0..count).map(|n| Patch::new(&site(n), KEY.key(), true).unwrap()).collect()
}

fn world_of(patches: &[Patch]) -> Fake {
    let memory = patches.iter().map(|patch| (patch.code, patch.old())).collect();
    Fake { memory, ..Fake::default() }
}

fn holds(fake: &Fake, patches: &[Patch], bytes: impl Fn(&Patch) -> [u8; LENGTH]) -> bool {
    patches.iter().all(|p| fake.memory[&p.code] == bytes(p))
}

#[test]
fn a_queue_costs_three_barriers_whatever_its_length() {
    for (sites, capacity, expected) in
        [(56, 56, 3), (56, 256, 3), (56, 10, 18), (56, 1, 168), (1, 1, 3), (0, 8, 0)]
    {
        let patches = patches(sites);
        let mut world = world_of(&patches);
        let fallback = AtomicBool::new(false);
        let barriers = write_in(&mut world, &patches, capacity, &fallback).unwrap();
        assert_eq!((barriers, world.syncs), (expected, expected), "{sites} sites in queues of {capacity}");
        assert!(holds(&world, &patches, Patch::new_bytes));
        assert!(world.largest <= capacity && world.table.is_none());
        assert!(!fallback.load(Ordering::Relaxed));
    }
}

#[test]
fn a_queue_that_refuses_falls_back() {
    let patches = patches(7);
    let fallback = AtomicBool::new(false);
    for _ in 0..2 {
        let mut world = world_of(&patches);
        // A capacity of 0 refuses even when it is empty.
        assert_eq!(write_in(&mut world, &patches, 0, &fallback).unwrap(), 21);
        assert!(holds(&world, &patches, Patch::new_bytes));
        assert!(fallback.load(Ordering::Relaxed));
    }
    let mut world = world_of(&patches);
    assert_eq!(write_in(&mut world, &patches, 56, &fallback).unwrap(), 21, "sticky");
}

#[test]
fn a_barrier_that_fails_leaves_the_text_unchanged() {
    let patches = patches(9);
    for (failing, for_good) in (1..=9).flat_map(|n| [(n, false), (n, true)]) {
        let mut world = Fake { failing_sync: Some(failing), for_good, ..world_of(&patches) };
        let error = write_in(&mut world, &patches, 3, &AtomicBool::new(false)).unwrap_err();
        assert!(matches!(error, Error::Reentrant), "{error}");
        assert!(holds(&world, &patches, Patch::old), "barrier {failing}");
        assert!(world.table.is_none());
    }
}

#[test]
fn a_store_that_fails_leaves_the_text_unchanged() {
    let patches = patches(4);
    for failing in 1..=12 {
        let mut world = Fake { failing_stores: failing..failing + 1, ..world_of(&patches) };
        write_in(&mut world, &patches, 4, &AtomicBool::new(false)).unwrap_err();
        assert!(holds(&world, &patches, Patch::old), "store {failing}");
        assert!(world.table.is_none());
    }
}

#[test]
fn a_foreign_int3_is_left_alone() {
    let patches = patches(9);
    for foreign in 0..9 {
        let mut world = Fake { foreign: Some(patches[foreign].code), ..world_of(&patches) };
        let broken = |patch: &Patch| {
            let mut bytes = patch.old();
            bytes[0] = INT3;
            bytes
        };
        world.memory.insert(patches[foreign].code, broken(&patches[foreign]));
        let error = write_in(&mut world, &patches, 4, &AtomicBool::new(false)).unwrap_err();
        let addr = patches[foreign].code;
        assert!(matches!(error, Error::UnexpectedText { addr: at, .. } if at == addr), "{error}");
        let (theirs, ours): (Vec<&Patch>, Vec<&Patch>) = patches.iter().partition(|p| p.code == addr);
        assert!(ours.iter().all(|p| world.memory[&p.code] == p.old()));
        assert_eq!(world.memory[&addr], broken(theirs[0]));
        assert!(world.table.is_none());
    }
}

#[test]
fn a_table_stays_where_nothing_can_be_undone() {
    let patches = patches(4);
    // In the middle of step 2, and from then on.
    let mut world = Fake { failing_stores: 6..usize::MAX, ..world_of(&patches) };
    let error = write_in(&mut world, &patches, 4, &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(error, Error::HalfWritten { sites: 4, .. }), "{error}");
    let table = world.table.unwrap();
    assert_eq!(table, patches.iter().map(|p| Resume::of(p, false)).collect::<Vec<_>>());
}

/// Switches a key whose site is in this test.
fn switch(on: bool) {
    static_key! { static LIVE: "int3.live" = false; }
    let batch = Batch::new().protocol(Protocol::INT3);
    if on { batch.enable(&LIVE) } else { batch.disable(&LIVE) }.apply().unwrap();
    assert_eq!(unlikely!(LIVE), on);
}

/// Handlers that interrupt a look-up and do not return.
static PARKED: AtomicU32 = AtomicU32::new(0);

extern "C" fn park(_: libc::c_int) {
    PARKED.fetch_add(1, Ordering::Relaxed);
    loop {
        // SAFETY: waits for signals, which the kernel takes to their own handlers.
        unsafe { libc::pause() };
    }
}

#[test]
fn a_batch_waits_for_no_handler() {
    in_child(|| {
        const THREADS: u32 = 16;
        // SAFETY: ends this child if it waits for ever.
        unsafe { libc::alarm(30) };
        switch(true);
        // SAFETY: a handler that waits.
        unsafe { libc::signal(libc::SIGUSR1, park as *const () as usize) };
        for _ in 0..THREADS {
            let (tell, told) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                // SAFETY: no preconditions.
                tell.send(unsafe { libc::pthread_self() } as usize).unwrap();
                // As the trap handler does.
                while matches!(resume::resolve(0x1234), Verdict::Foreign) {}
            });
            let thread = told.recv().unwrap();
            let parked = PARKED.load(Ordering::Relaxed);
            // It is at it by now.
            std::thread::yield_now();
            // SAFETY: a thread that does not end.
            assert_eq!(unsafe { libc::pthread_kill(thread as libc::pthread_t, libc::SIGUSR1) }, 0);
            while PARKED.load(Ordering::Relaxed) == parked {
                std::thread::yield_now();
            }
        }
        for _ in 0..3 {
            switch(false);
            switch(true);
        }
    });
}
