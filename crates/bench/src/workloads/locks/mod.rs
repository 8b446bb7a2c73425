//! `bench locks`: the price of locks that show their holders.
//!
//! A lock and unlock of ours beside the same of the lock underneath, in one run: while nobody asks
//! (`asleep`), while somebody does (`sampled`), and with each hold timed (`all`). The lock is free,
//! or two threads take it in turn. There is no origin.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use dormouse::Group;
use dormouse::sync::{Holds, LockTimes};

use crate::bench::Bench;
use crate::clocks::thread_cpu_ns;
use crate::row::Spec;
use crate::runner::Failure;
use crate::yardsticks;

/// Additions under a lock that two threads take: some 200 ns.
const WORK: u64 = 200;

/// The state in which a lock is taken.
#[derive(Debug, Clone, Copy)]
struct Asked {
    name: &'static str,
    holds: Option<Holds>,
}

const ASLEEP: Asked = Asked { name: "asleep", holds: None };
const SAMPLED: Asked = Asked { name: "sampled", holds: Some(Holds::Sampled) };
const ALL: Asked = Asked { name: "all", holds: Some(Holds::All) };

pub(crate) fn run(bench: &mut Bench) {
    bench.say("calibrating");
    free(bench, "std", "bare", None, std_mutex);
    free(bench, "parking_lot", "bare", None, parking_lot_mutex);
    for asked in [ASLEEP, SAMPLED, ALL] {
        free(bench, "std", asked.name, asked.holds, own_std);
        free(bench, "parking_lot", asked.name, asked.holds, own_parking_lot);
    }
    let bare = parking_lot::Mutex::new(0);
    contended(bench, "bare", None, move || work(&mut bare.lock()));
    for asked in [ASLEEP, SAMPLED, ALL] {
        let own = dormouse::sync::parking_lot::Mutex::new(0);
        contended(bench, asked.name, asked.holds, move || work(&mut own.lock()));
    }
    yardsticks::rdtsc(bench);
    bench.measure("reps", bench.plan(100, 6));
    for kind in ["std", "parking_lot"] {
        bench.added(kind, "bare", &["asleep", "sampled", "all"]);
        bench.at_most("asleep at most 1 ns", &format!("{kind}-added/asleep"), 1.0);
        bench.at_most("awake at most 12 ns", &format!("{kind}-added/sampled"), 12.0);
        bench.at_most("with each hold timed at most 25 ns", &format!("{kind}-added/all"), 25.0);
    }
    for asked in [ASLEEP, SAMPLED] {
        let name = format!("contended-percent/{}", asked.name);
        bench.percent(&name, &format!("contended/{}", asked.name), "contended/bare");
        bench.at_most("contended within 5 %", &name, 5.0);
    }
    bench.explain(include_str!("notes.txt"));
}

/// Adds the row of a lock that is free each time.
fn free(bench: &mut Bench, lock: &str, name: &str, holds: Option<Holds>, turns: fn(u64)) {
    let spec = Spec::new(format!("{lock}/{name}"), "ns").per("lock").cpu();
    bench.per_iteration(spec, move |locks| {
        let _times = holds.map(LockTimes::start).transpose()?;
        let began = thread_cpu_ns();
        Group::new("bench locks").scope(|| turns(locks));
        Ok(Duration::from_nanos(thread_cpu_ns() - began))
    });
}

fn std_mutex(turns: u64) {
    let lock = std::sync::Mutex::new(0_u64);
    (0..turns).for_each(|n| *black_box(&lock).lock().unwrap_or_else(std::sync::PoisonError::into_inner) += n);
}

fn own_std(turns: u64) {
    let lock = dormouse::sync::Mutex::new(0_u64);
    (0..turns).for_each(|n| *black_box(&lock).lock().unwrap_or_else(std::sync::PoisonError::into_inner) += n);
}

fn parking_lot_mutex(turns: u64) {
    let lock = parking_lot::Mutex::new(0_u64);
    (0..turns).for_each(|n| *black_box(&lock).lock() += n);
}

fn own_parking_lot(turns: u64) {
    let lock = dormouse::sync::parking_lot::Mutex::new(0_u64);
    (0..turns).for_each(|n| *black_box(&lock).lock() += n);
}

fn work(value: &mut u64) {
    for n in 0..WORK {
        *value = black_box(*value).wrapping_add(n);
    }
}

/// Adds the row of a lock that two threads take in turn, with some work under it.
fn contended(bench: &mut Bench, name: &str, holds: Option<Holds>, turn: impl Fn() + Sync + 'static) {
    let spec = Spec::new(format!("contended/{name}"), "ns").per("lock").wall().with("threads", 2_u64);
    bench.per_iteration(spec, move |locks| {
        let _times = holds.map(LockTimes::start).transpose()?;
        let began = Instant::now();
        thread::scope(|scope| {
            let beside = scope.spawn(|| (0..locks / 2).for_each(|_| turn()));
            (0..locks / 2).for_each(|_| turn());
            beside.join().map_err(|_| Failure::from("the other thread has panicked"))
        })?;
        Ok(began.elapsed())
    });
}
