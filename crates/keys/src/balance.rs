//! Random sequences of all operations that switch keys, compared with a model that consists of a
//! few maps.

#![allow(unsafe_code, reason = "sites of this crate's own are")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::clock::fake::{now, pass};
use crate::hold::{Hold, Holder};
use crate::plan::Guards;
use crate::timer::{self, RETRY};
use crate::{Batch, Key, Lease, PATCHING, likely, static_key, unlikely};
use dormouse_testkit::{in_child, stress_rounds};

static_key! {
    static ZERO: "balance.0" = false;
    static ONE: "balance.1" = true;
    /// Whose site something else patches now and then.
    static TWO: "balance.2" = false;
}

const KEYS: usize = 3;

fn key(n: usize) -> &'static Key {
    [ZERO.key(), ONE.key(), TWO.key()][n]
}

/// The answers of a key's two sites; the last key has but one, which another patcher changes.
fn sites_of(n: usize) -> [bool; 2] {
    match n {
        0 => [unlikely!(ZERO), likely!(ZERO)],
        1 => [unlikely!(ONE), likely!(ONE)],
        _ => [unlikely!(TWO); 2],
    }
}

/// The answers of all sites, each key's in agreement.
fn sites() -> [bool; KEYS] {
    [0, 1, 2].map(|n| {
        let [first, second] = sites_of(n);
        assert_eq!(first, second, "the sites of key {n} agree");
        first
    })
}

type Keys = BTreeSet<usize>;

#[derive(Debug, Clone)]
enum Op {
    /// Baselines on, baselines off, a dwell time.
    Batch(Keys, Keys, Option<Duration>),
    Acquire(Keys),
    Dwell(usize, Duration),
    Drop(usize),
    Release(usize),
    /// Gives back those keys of a lease that are in the set.
    ReleaseSome(usize, Keys),
    KeepFor(usize, Duration),
    Hold(Keys, Holder, Duration),
    End(Keys, Option<Holder>),
    /// Baselines off, a lease given back, a holder's holds ended, all in one batch.
    Off(Keys, usize, Holder),
    /// Suspends keys, or resumes them.
    Suspend(Keys, bool),
    Pass(Duration),
    /// Another patcher takes the sites, or releases them.
    Meddle,
}

fn op() -> impl Strategy<Value = Op> {
    let keys = || btree_set(0..KEYS, 0..=KEYS);
    let time = || (1..5000_u64).prop_map(Duration::from_millis);
    let holder = || {
        prop_oneof![
            Just(Holder::Nobody),
            Just(Holder::Program),
            (0..2_u32).prop_map(|uid| Holder::User { uid }),
        ]
    };
    let lease = 0..6_usize;
    prop_oneof![
        2 => (keys(), keys(), proptest::option::of(time())).prop_map(|(on, off, dwell)| Op::Batch(on, off, dwell)),
        4 => keys().prop_map(Op::Acquire),
        2 => (lease.clone(), time()).prop_map(|(n, dwell)| Op::Dwell(n, dwell)),
        2 => lease.clone().prop_map(Op::Drop),
        1 => lease.clone().prop_map(Op::Release),
        1 => (lease.clone(), keys()).prop_map(|(n, keys)| Op::ReleaseSome(n, keys)),
        1 => (lease.clone(), time()).prop_map(|(n, time)| Op::KeepFor(n, time)),
        2 => (keys(), holder(), time()).prop_map(|(keys, holder, time)| Op::Hold(keys, holder, time)),
        1 => (keys(), proptest::option::of(holder())).prop_map(|(keys, holder)| Op::End(keys, holder)),
        1 => (keys(), lease, holder()).prop_map(|(keys, n, holder)| Op::Off(keys, n, holder)),
        1 => (keys(), any::<bool>()).prop_map(|(keys, suspended)| Op::Suspend(keys, suspended)),
        4 => time().prop_map(Op::Pass),
        1 => Just(Op::Meddle),
    ]
}

/// A hold: until when, and when it is checked.
type Term = (Instant, Instant);

/// The truth, slowly.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    baseline: [bool; KEYS],
    suspended: [bool; KEYS],
    /// Leases in hand: keys and dwell time.
    leases: Vec<(Keys, Option<Duration>)>,
    holds: BTreeMap<(usize, Holder), Term>,
    foreign: bool,
}

impl Model {
    fn holds_of(&self, key: usize) -> usize {
        self.holds.keys().filter(|(of, _)| *of == key).count()
    }

    fn count(&self, key: usize) -> usize {
        self.leases.iter().filter(|(keys, _)| keys.contains(&key)).count() + self.holds_of(key)
    }

    fn on(&self, key: usize) -> bool {
        (self.baseline[key] || self.count(key) > 0) && !self.suspended[key]
    }

    fn hold(&mut self, key: usize, holder: Holder, length: Duration) {
        let until = now() + length;
        let term = self.holds.entry((key, holder)).or_insert((until, until));
        if until > term.0 {
            *term = (until, until);
        }
    }

    fn dwell(&mut self, key: usize, dwell: Option<Duration>) {
        if let Some(dwell) = dwell {
            self.hold(key, Holder::Nobody, dwell);
        }
    }

    /// All of `change`, unless it switches the key that cannot be switched: then nothing.
    fn attempt(&mut self, change: impl FnOnce(&mut Self)) -> bool {
        let before = self.clone();
        change(self);
        let refused = self.foreign && self.on(2) != before.on(2);
        if refused {
            *self = before;
        }
        !refused
    }

    fn give_back(&mut self, lease: usize, chosen: impl Fn(&usize) -> bool) {
        let (keys, dwell) = &mut self.leases[lease];
        let (dwell, given): (_, Keys) = (*dwell, keys.iter().copied().filter(chosen).collect());
        keys.retain(|key| !given.contains(key));
        for key in given {
            self.dwell(key, dwell);
        }
    }

    /// The timer's look.
    fn look(&mut self) {
        let due: Vec<_> = self.holds.iter().filter(|(_, term)| term.1 <= now()).map(|(k, _)| *k).collect();
        for hold in &due {
            if hold.0 != 2 {
                self.holds.remove(hold);
            }
        }
        // Both holds of the key that cannot be switched end, or neither does.
        let twos: Vec<_> = due.into_iter().filter(|(key, _)| *key == 2).collect();
        let ended = self.attempt(|model| model.holds.retain(|hold, _| !twos.contains(hold)));
        for hold in twos.iter().filter(|_| !ended) {
            self.holds.get_mut(hold).unwrap().1 = now() + RETRY;
        }
    }
}

/// The leases that are tried out, beside the model.
#[derive(Default)]
struct Real {
    leases: Vec<Lease>,
}

fn keys(keys: &Keys) -> impl Iterator<Item = &'static Key> {
    keys.iter().map(|&n| key(n))
}

fn named(keys: &Keys) -> impl Fn(&Key) -> bool {
    move |candidate| keys.iter().any(|&n| std::ptr::eq(key(n), candidate))
}

/// Does the same to both, and fails if only one of them could do it.
#[expect(clippy::too_many_lines, reason = "an arm for each step")]
fn apply(op: &Op, real: &mut Real, model: &mut Model) -> Result<(), TestCaseError> {
    let leases = real.leases.len();
    let (done, expected) = match op {
        Op::Batch(on, off, dwell) => {
            let batch = Batch::new().enable_all(keys(on)).disable_all(keys(off));
            let expected = model.attempt(|model| {
                for &key in on {
                    model.baseline[key] = true;
                }
                for &key in off {
                    if std::mem::take(&mut model.baseline[key]) {
                        model.dwell(key, *dwell);
                    }
                }
            });
            (batch.dwell(dwell.unwrap_or_default()).apply().is_ok(), expected)
        }
        Op::Acquire(of) => {
            let lease = Lease::of(keys(of));
            let done = lease.is_ok();
            real.leases.extend(lease);
            (done, model.attempt(|model| model.leases.push((of.clone(), None))))
        }
        Op::Dwell(n, dwell) if *n < leases => {
            let lease = real.leases.remove(*n).dwell(*dwell).unwrap();
            real.leases.insert(*n, lease);
            model.leases[*n].1 = Some(*dwell);
            (true, true)
        }
        Op::Drop(n) if *n < leases => {
            drop(real.leases.remove(*n));
            if !model.attempt(|model| model.give_back(*n, |_| true)) {
                // The timer's, from now on.
                model.leases[*n].1 = Some(Duration::ZERO);
                model.give_back(*n, |_| true);
            }
            model.leases.remove(*n);
            (true, true)
        }
        Op::Release(n) if *n < leases => {
            let done = real.leases.remove(*n).release();
            let expected = model.attempt(|model| {
                model.give_back(*n, |_| true);
                model.leases.remove(*n);
            });
            let released = done.is_ok();
            real.leases.splice(*n..*n, done.err().map(|refused| refused.lease));
            (released, expected)
        }
        Op::ReleaseSome(n, some) if *n < leases => {
            let done = real.leases[*n].release_where(named(some)).is_ok();
            (done, model.attempt(|model| model.give_back(*n, |key| some.contains(key))))
        }
        Op::KeepFor(n, time) if *n < leases => {
            let done = real.leases.remove(*n).keep_for(*time).is_ok();
            let (of, _) = model.leases.remove(*n);
            for key in of {
                model.hold(key, Holder::Program, *time);
            }
            (done, true)
        }
        Op::Hold(of, holder, time) => {
            let done = Batch::new().hold_all(keys(of), *holder, *time).apply().is_ok();
            let expected = model.attempt(|model| of.iter().for_each(|&key| model.hold(key, *holder, *time)));
            (done, expected)
        }
        Op::End(of, holder) => {
            let done = Batch::new().end_all(keys(of), *holder).apply().is_ok();
            (done, model.attempt(|model| end(model, of, *holder)))
        }
        Op::Off(of, n, holder) if *n < leases => {
            let batch = Batch::new().disable_all(keys(of)).end_all(keys(of), Some(*holder));
            let done = batch.apply_releasing(&mut [&mut real.leases[*n]], named(of)).is_ok();
            let expected = model.attempt(|model| {
                for &key in of {
                    model.baseline[key] = false;
                }
                model.give_back(*n, |key| of.contains(key));
                end(model, of, Some(*holder));
            });
            (done, expected)
        }
        Op::Suspend(of, suspended) => {
            let batch = Batch::new();
            let batch = if *suspended { batch.suspend_all(keys(of)) } else { batch.resume_all(keys(of)) };
            let done = batch.apply().is_ok();
            let expected =
                model.attempt(|model| of.iter().for_each(|&key| model.suspended[key] = *suspended));
            (done, expected)
        }
        Op::Pass(time) => {
            pass(*time);
            (true, true)
        }
        Op::Meddle if PATCHING => {
            model.foreign = !model.foreign;
            meddle(model.foreign);
            (true, true)
        }
        _ => (true, true),
    };
    prop_assert_eq!(done, expected);
    timer::end_due(&mut Guards::lock().unwrap(), now());
    model.look();
    Ok(())
}

fn end(model: &mut Model, of: &Keys, holder: Option<Holder>) {
    model.holds.retain(|(key, by), _| !of.contains(key) || holder.is_some_and(|holder| holder != *by));
}

fn agree(real: &Real, model: &Model) -> Result<(), TestCaseError> {
    for n in 0..KEYS {
        prop_assert_eq!(key(n).is_enabled(), model.on(n), "key {}", n);
        prop_assert_eq!(key(n).baseline(), model.baseline[n], "key {}", n);
        prop_assert_eq!(key(n).leases() as usize, model.count(n), "key {}", n);
    }
    if !model.foreign {
        prop_assert_eq!(sites(), [model.on(0), model.on(1), model.on(2)]);
    }
    let held = |lease: &Lease| (0..KEYS).filter(|&n| lease.keys().contains_key(n)).collect::<Keys>();
    let leases: Vec<Keys> = real.leases.iter().map(held).collect();
    prop_assert_eq!(leases, model.leases.iter().map(|(keys, _)| keys.clone()).collect::<Vec<_>>());
    let number = |hold: &Hold| (0..KEYS).find(|&n| std::ptr::eq(key(n), hold.key)).unwrap();
    let holds: BTreeMap<_, _> =
        timer::holds().iter().map(|hold| ((number(hold), hold.holder), hold.left)).collect();
    let left = |(key, term): (&(usize, Holder), &Term)| (*key, term.0.saturating_duration_since(now()));
    prop_assert_eq!(holds, model.holds.iter().map(left).collect::<BTreeMap<_, _>>());
    Ok(())
}

trait ContainsKey {
    fn contains_key(&self, n: usize) -> bool;
}

impl ContainsKey for [&'static Key] {
    fn contains_key(&self, n: usize) -> bool {
        self.iter().any(|&candidate| std::ptr::eq(candidate, key(n)))
    }
}

/// Puts a debugger's breakpoint on the last key's site, or takes it away.
#[cfg(dormouse_patching)]
fn meddle(foreign: bool) {
    use std::os::unix::fs::FileExt;

    let site = crate::registry::first_site(&crate::registry::lock().unwrap(), key(2));
    let mut bytes = crate::arch::encode(site.code, site.target, site.branch ^ TWO.is_enabled());
    if foreign {
        bytes[0] = 0xcc;
    }
    let memory = std::fs::OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
    memory.write_all_at(&bytes, site.code as u64).unwrap();
}

#[cfg(not(dormouse_patching))]
fn meddle(_: bool) {}

/// Ends all that the last case has left: each key is off, but for the one that starts on.
fn reset() {
    meddle(false);
    let keys = || (0..KEYS).map(key);
    Batch::new().resume_all(keys()).disable_all(keys()).enable(&ONE).end_all(keys(), None).apply().unwrap();
}

#[test]
fn keys_follow_baselines_and_leases() {
    in_child(|| {
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
        let result = runner.run(&vec(op(), 1..60), |ops| {
            reset();
            let mut real = Real::default();
            let mut model = Model { baseline: [false, true, false], ..Model::default() };
            for op in &ops {
                apply(op, &mut real, &mut model)?;
                agree(&real, &model)?;
            }
            // Everything given back, and time: what is left is the baseline.
            meddle(false);
            drop(real);
            pass(Duration::from_secs(10));
            timer::end_due(&mut Guards::lock().unwrap(), now());
            Batch::new().resume_all((0..KEYS).map(key)).apply().unwrap();
            prop_assert_eq!(sites(), model.baseline);
            prop_assert!((0..KEYS).all(|n| key(n).leases() == 0));
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{error}"));
    });
}

/// While one thread holds a lease on a key, and for the dwell time after it, the key is on whatever
/// the other threads do.
fn toggle(which: usize, rounds: usize) {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(which as u64 + 1);
    for _ in 0..rounds {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let n = (random >> 8) as usize % KEYS;
        let time = Duration::from_millis(1 + (random >> 16) % 50);
        match random % 6 {
            0 => drop(key(n).enable().unwrap()),
            1 => drop(Batch::new().disable(key(n)).dwell(time).apply().unwrap()),
            2 => drop(key(n).enable_for(time).unwrap()),
            3 => pass(time),
            kind => {
                let lease = Lease::of([key(n), key((n + 1) % KEYS)]).unwrap();
                assert!(sites_of(n) == [true; 2] && key(n).is_enabled() && key(n).leases() > 0);
                match kind {
                    4 => drop(lease.dwell(time).unwrap()),
                    _ => lease.keep_for(time).unwrap(),
                }
            }
        }
    }
}

#[test]
fn counts_balance_after_concurrent_changes() {
    in_child(|| {
        std::thread::scope(|scope| {
            for which in 0..8 {
                scope.spawn(move || toggle(which, stress_rounds(250, 10_000)));
            }
        });
        pass(Duration::from_secs(1));
        timer::end_due(&mut Guards::lock().unwrap(), now());
        assert!((0..KEYS).all(|n| key(n).leases() == 0), "{:?}", timer::holds());
        let baselines = [0, 1, 2].map(|n| key(n).baseline());
        assert_eq!((sites(), [0, 1, 2].map(|n| key(n).is_enabled())), (baselines, baselines));
    });
}
