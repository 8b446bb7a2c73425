//! `bench groups`: how long a service waits for a group, while others read counts or change the
//! counted events.
//!
//! Eight hundred threads are in tasks of 32 groups, and wake every 50 ms. Beside them one thread
//! looks a group up by a known name, every millisecond, and one by a new name. Meanwhile, by row:
//!
//! - `idle`: nothing else happens;
//! - `stat`: a client of the agent has three events counted, and requests everything ten times a
//!   second;
//! - `count`: a counting begins and ends in a loop, and eight of the threads enter and leave tasks
//!   all the time. Each change has to settle all threads, and some threads are always descheduled
//!   in the middle of a switch.
//!
//! A row times the call alone, not the wake-up before it. A process can have a thousand groups, so
//! the rounds are few. There is neither a peer nor an origin.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dormouse::{Event, Group, MAX_GROUPS};
use dormouse_statistics::quantiles;

use crate::bench::Bench;
use crate::clocks::wall;
use crate::row::Spec;
use crate::runner::{Failure, Plan};

const THREADS: usize = 800;
const BUSY: usize = 8;
const GROUPS: usize = 32;
const NAP: Duration = Duration::from_millis(50);

/// New names of the whole run.
const NAMES: usize = MAX_GROUPS - 2 * GROUPS;

const LOADS: [&str; 3] = ["idle", "stat", "count"];
const NAMED: [&str; 2] = ["known", "new"];
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("max", 1.0)];
const GOALS: [(&str, f64); 2] = [("p99", 100.0), ("max", 2000.0)];

pub(crate) fn run(bench: &mut Bench) {
    let plan = Plan { warmup: 0, ..bench.plan(3, 2) };
    let new = NAMES / LOADS.len() / plan.reps.max(1);
    let pause = Duration::from_millis(bench.pick(20, 4));
    for load in LOADS {
        let specs = NAMED.iter().flat_map(|named| {
            QUANTILES.map(|(of, _)| {
                let spec = Spec::new(format!("group-new/{named}/{load}/{of}"), "us").with("threads", THREADS);
                if *named == "new" { spec.with("calls", new) } else { spec }
            })
        });
        bench.sample(specs.collect::<Vec<_>>(), move || {
            let took = calls(load, new, pause)?;
            let us = took.map(|ns| quantiles(ns, QUANTILES.map(|(_, part)| part)).map(|ns| ns / 1e3));
            Ok(us.as_flattened().to_vec())
        });
    }
    bench.measure("reps", plan);
    for load in LOADS {
        for named in NAMED {
            for (of, most) in GOALS {
                let row = format!("group-new/{named}/{load}");
                bench.at_most(&format!("{row}: {of} at most {most} us"), &format!("{row}/{of}"), most);
            }
        }
    }
    bench.explain(include_str!("notes.txt"));
}

/// How long each call took, in nanoseconds, of known names and of new ones.
fn calls(load: &str, new: usize, pause: Duration) -> Result<[Vec<u64>; 2], Failure> {
    /// New names over all rounds.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let agent = dormouse::init().map_err(|error| Failure::from(error.to_string()))?;
    let stop = Arc::new(AtomicBool::new(false));
    let crowd = crowd(if load == "count" { BUSY } else { 0 }, &stop)?;
    let beside = match load {
        "stat" => Some(ask(agent.path(), &stop)?),
        "count" => Some(change(&stop)),
        _ => None,
    };
    let known = until(&stop, Duration::from_millis(1), Vec::new(), |taken| taken.push(timed("crowd 0")));
    let fresh = (0..new).map(|_| {
        thread::sleep(pause);
        timed(&format!("new {}", NEXT.fetch_add(1, Ordering::Relaxed)))
    });
    let fresh = fresh.collect();
    stop.store(true, Ordering::Relaxed);
    let known = known.join().unwrap_or_default();
    crowd.into_iter().chain(beside).for_each(|thread| _ = thread.join());
    Ok([known, fresh])
}

fn timed(name: &str) -> u64 {
    let (took, group) = wall(|| Group::new(name));
    std::hint::black_box(group);
    took.as_nanos() as u64
}

/// A thread that takes `turn` again and again, with a pause after each, until `stop`; it returns
/// `state`.
fn until<T: Send + 'static>(
    stop: &Arc<AtomicBool>,
    pause: Duration,
    mut state: T,
    mut turn: impl FnMut(&mut T) + Send + 'static,
) -> thread::JoinHandle<T> {
    let stop = Arc::clone(stop);
    thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            turn(&mut state);
            thread::sleep(pause);
        }
        state
    })
}

/// The threads; all are in their tasks when it returns.
fn crowd(busy: usize, stop: &Arc<AtomicBool>) -> Result<Vec<thread::JoinHandle<()>>, Failure> {
    let there = Arc::new(AtomicUsize::new(0));
    let mut threads = Vec::new();
    for n in 0..THREADS {
        let (stopped, arrived) = (Arc::clone(stop), Arc::clone(&there));
        let run = move || {
            let group = Group::new(&format!("crowd {}", n % GROUPS));
            let mut inside = Some(group.enter());
            arrived.fetch_add(1, Ordering::Relaxed);
            while !stopped.load(Ordering::Relaxed) {
                if n < busy {
                    inside = None;
                    group.scope(|| (0..2000).for_each(|n| _ = std::hint::black_box(n)));
                } else {
                    thread::sleep(NAP);
                }
            }
            drop(inside);
        };
        match thread::Builder::new().stack_size(64 << 10).spawn(run) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                stop.store(true, Ordering::Relaxed);
                return Err(Failure::from(format!("{THREADS} threads cannot be started: {error}")));
            }
        }
    }
    while there.load(Ordering::Relaxed) < THREADS {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(threads)
}

/// A client that has events counted and requests everything ten times a second.
fn ask(agent: &Path, stop: &Arc<AtomicBool>) -> io::Result<thread::JoinHandle<()>> {
    let mut stream = UnixStream::connect(agent)?;
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut say = move |request: &str| -> io::Result<String> {
        writeln!(stream, "{request}")?;
        let mut answer = String::new();
        lines.read_line(&mut answer)?;
        Ok(answer)
    };
    say(r#"{"v":1,"id":1,"op":"hello","client":"bench"}"#)?;
    let counted =
        say(r#"{"v":1,"id":2,"op":"count","events":["context-switches","page-faults","major-faults"]}"#)?;
    if !counted.contains("\"counted\"") {
        return Err(io::Error::other(counted));
    }
    let mut next = Instant::now();
    Ok(until(stop, Duration::from_millis(5), (), move |()| {
        if Instant::now() >= next {
            // A connection that is lost stays lost; then the agent has one client less.
            let _ = say(r#"{"v":1,"id":3,"op":"stat"}"#);
            next += Duration::from_millis(100);
        }
    }))
}

/// Begins and ends a counting, again and again, beside one that lasts.
fn change(stop: &Arc<AtomicBool>) -> thread::JoinHandle<()> {
    let stop = Arc::clone(stop);
    thread::spawn(move || {
        let _always = dormouse::start_counting(&[Event::TASK_CLOCK]);
        while !stop.load(Ordering::Relaxed) {
            drop(dormouse::start_counting(&[Event::PAGE_FAULTS]));
            thread::sleep(Duration::from_millis(10));
        }
    })
}
