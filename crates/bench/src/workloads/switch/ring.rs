//! `ring/EVENTS/SIZE/WAY`: tasks on one thread that pass a token round.
//!
//! A small executor runs boxed futures from a queue of those that are ready. Each has a mailbox;
//! woken by a token in it, a task does its work and puts the token into the mailbox of the next.
//! The work is that of a process of `lat_ctx` (`-s 1`): it sums up an array of 1 KiB. It also adds
//! to two counters of the program, in every row. So a switch without events is the same work,
//! through the same queue and the same virtual call, and with a context that holds no counter;
//! `ring/bare` does not even have that.
//!
//! A sample is timed by the thread's CPU time; the first task's coming on and the last one's going
//! off are outside of it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::hint::black_box;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dormouse_events::pmu::CountingPmu;
use dormouse_events::{self as events, Counting, Error, Event, Mode, Switched, switch};

use super::rings::{HARDWARE, SIZES, spec};
use super::soft::{BYTES, HOPS, HOPS_NAME, soft};
use crate::bench::Bench;
use crate::clocks::cpu;
use crate::runner::Failure;

/// Words of a task's array: 1 KiB.
const WORDS: usize = 256;

/// How to switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// No switch.
    Bare,
    /// Between pinned tasks, each with its counts: counters are read at every switch.
    Eager,
    /// Between equivalent tasks.
    Swap,
}

/// The origin's first events, of which this library may read none here.
fn hard(count: usize) -> Result<Vec<Event>, Error> {
    HARDWARE[..count].iter().map(|counted| Event::by_name(counted.name())).collect()
}

pub(super) fn note() -> String {
    let names = soft(8).unwrap_or_default().iter().map(|event| event.name()).collect::<Vec<_>>().join(", ");
    format!(
        "ring rows: tasks (boxed futures) on one thread hand a token round through a queue of the ready; each \
         sums up its own array of 1 KiB, as lat_ctx -s 1 does, and adds to two counters of the program, in \
         every row alike; ns of the thread's CPU time a switch. The 8 events: {names}; the 2: the first two. \
         none: the switch is called and finds no counters; bare: it is not called"
    )
}

pub(super) fn rows(bench: &mut Bench) {
    for size in SIZES {
        row(bench, format!("ring/bare/{size}"), size, Ok(Vec::new()), Way::Bare);
        for set in ["none", "2", "8", "2hw", "4h4s"] {
            for (way, name) in [(Way::Eager, "eager"), (Way::Swap, "swap")] {
                let events = match set {
                    "2hw" => hard(2),
                    "4h4s" => hard(8),
                    soft_ones => soft(soft_ones.parse().unwrap_or(0)),
                };
                row(bench, format!("ring/{set}/{size}/{name}"), size, events, way);
            }
        }
    }
}

fn row(bench: &mut Bench, name: String, size: usize, events: Result<Vec<Event>, Error>, way: Way) {
    let events = events.map_err(|error| match error {
        // The row has the name and reports `unavailable` itself.
        Error::Unavailable { reason, .. } => reason,
        error => error.to_string(),
    });
    let Some(events) = bench.need(spec(name.clone(), "ns", size, &[]), events) else { return };
    let names: Vec<&str> = events.iter().map(|event| event.name()).collect();
    let spec = spec(name, "ns", size, &names).cpu().with("array_bytes", 4 * WORDS);
    let context = events::Context::new();
    bench.per_iteration(spec, move |switches| {
        let mut ring = Ring::new(context, size, &events, way)?;
        let (took, did) = ring.run(switches, way);
        ring.check(switches, way, &did)?;
        Ok(took)
    });
}

/// Proves, by a PMU that counts its reads, that a ring of equivalent tasks reads no counter: a
/// sentence about that, or about the reads that were seen.
pub(super) fn prove() -> Result<String, String> {
    const SWITCHES: u64 = 100_000;
    static PMU: CountingPmu = CountingPmu::new();
    let events: Vec<Event> = (0..8).map(|number| PMU.event("counted read", number)).collect();
    let context = events::Context::new();
    for size in SIZES {
        let mut ring = Ring::new(context, size, &events, Way::Swap).map_err(|error| error.to_string())?;
        ring.come_on();
        let before = PMU.reads();
        let (_, did) = ring.run_on(SWITCHES, Way::Swap);
        let reads = PMU.reads() - before;
        switch(None);
        if reads != 0 || did.kept != SWITCHES {
            return Err(format!(
                "{reads} counter reads in {SWITCHES} switches between {size} equivalent tasks, {} kept",
                did.kept
            ));
        }
    }
    Ok(format!(
        "counter reads in {SWITCHES} switches between equivalent tasks, 8 events, in rings of 2, 8 and 32: 0, by a \
         PMU that counts its reads"
    ))
}

/// How many switches went which way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Did {
    kept: u64,
    read: u64,
}

/// The state that all tasks share.
struct Shared {
    ready: RefCell<VecDeque<usize>>,
    mailboxes: Vec<Cell<Option<u64>>>,
    /// The sum over all arrays: keeps the compiler from leaving the work out.
    sum: Cell<u32>,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

struct Ring {
    context: &'static events::Context,
    /// Counts the events; none if there are none.
    counting: Option<Counting>,
    hops_before: u64,
    accounts: Vec<events::Task>,
    tasks: Vec<Task>,
    shared: Rc<Shared>,
    current: usize,
}

impl Ring {
    fn new(
        context: &'static events::Context,
        size: usize,
        events: &[Event],
        way: Way,
    ) -> Result<Self, Error> {
        let counting =
            if events.is_empty() { None } else { Some(Counting::of(context, events, Mode::GroupExact)?) };
        let account = |task| {
            let mut account = events::Task::new(context, task as u64);
            if way == Way::Eager && counting.is_some() {
                account.pin();
            }
            account
        };
        let shared = Rc::new(Shared {
            ready: RefCell::new(VecDeque::with_capacity(size)),
            mailboxes: vec![Cell::new(None); size],
            sum: Cell::new(0),
        });
        Ok(Self {
            context,
            hops_before: hops(context).unwrap_or(0),
            accounts: (0..size).map(account).collect(),
            counting,
            tasks: (0..size).map(|place| task(place, Rc::clone(&shared))).collect(),
            shared,
            current: 0,
        })
    }

    /// From the first task's coming on to the last one's going off.
    fn run(&mut self, switches: u64, way: Way) -> (Duration, Did) {
        self.come_on();
        let result = self.run_on(switches, way);
        switch(None);
        result
    }

    fn come_on(&mut self) {
        switch(Some(&mut self.accounts[self.current]));
    }

    fn run_on(&mut self, switches: u64, way: Way) -> (Duration, Did) {
        self.shared.mailboxes[self.current].set(Some(0));
        self.poll(self.current);
        cpu(|| match way {
            Way::Bare => self.turn(switches, |_| Switched::Asleep),
            Way::Eager | Way::Swap => self.turn(switches, |account| switch(Some(account))),
        })
    }

    /// Makes that many switches.
    #[inline]
    fn turn(&mut self, switches: u64, by: impl Fn(&mut events::Task) -> Switched) -> Did {
        let mut did = Did::default();
        for _ in 0..switches {
            let Some(next) = self.shared.ready.borrow_mut().pop_front() else { break };
            let switched = by(&mut self.accounts[next]);
            did.kept += u64::from(switched == Switched::Kept);
            did.read += u64::from(switched == Switched::Read);
            self.current = next;
            self.poll(next);
        }
        // The last token goes nowhere.
        self.shared.ready.borrow_mut().clear();
        did
    }

    #[inline]
    fn poll(&mut self, task: usize) {
        let _ = self.tasks[task].as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }

    /// Whether every switch went its way, and the context has every hop.
    fn check(self, switches: u64, way: Way, did: &Did) -> Result<(), Failure> {
        let counting = self.counting.is_some();
        let expected = match way {
            Way::Swap if counting => Did { kept: switches, read: 0 },
            Way::Eager if counting => Did { kept: 0, read: switches },
            _ => Did::default(),
        };
        if *did != expected {
            return Err(Failure::wrong(format!("{did:?} of {switches} switches, expected {expected:?}")));
        }
        let counts_hops = self.counting.iter().flat_map(Counting::events).any(|e| e.name() == HOPS_NAME);
        match hops(self.context).map(|hops| hops - self.hops_before) {
            // The start of the round is a hop too.
            Some(hops) if counts_hops && hops != switches + 1 => {
                Err(Failure::wrong(format!("{hops} hops counted of {}", switches + 1)))
            }
            _ => Ok(()),
        }
    }
}

/// The hops that were counted for a context, if they ever were.
fn hops(context: &events::Context) -> Option<u64> {
    context.read().iter().find(|count| count.event.name() == HOPS_NAME).map(|count| count.value)
}

/// Waits for the token, works, hands it on.
fn task(place: usize, shared: Rc<Shared>) -> Task {
    let array = vec![place as u32; WORDS];
    Box::pin(poll_fn(move |_| {
        if let Some(token) = shared.mailboxes[place].take() {
            let sum = black_box(&array).iter().fold(0_u32, |sum, &word| sum.wrapping_add(word));
            shared.sum.set(shared.sum.get().wrapping_add(sum));
            HOPS.add(1);
            BYTES.add(4 * WORDS as u64);
            let next = (place + 1) % shared.mailboxes.len();
            shared.mailboxes[next].set(Some(token + 1));
            shared.ready.borrow_mut().push_back(next);
        }
        Poll::Pending
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// A change of the counted events makes every thread read once more.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    #[test]
    fn every_hop_is_counted_either_way() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        for way in [Way::Bare, Way::Eager, Way::Swap] {
            let mut ring = Ring::new(events::Context::new(), 8, &soft(8).unwrap(), way).unwrap();
            let (_, did) = ring.run(1000, way);
            assert_eq!(ring.current, 1000 % 8);
            if way != Way::Bare {
                assert!(ring.check(1000, way, &did).is_ok(), "{way:?}");
            }
        }
    }

    #[test]
    fn a_switch_by_another_way_is_wrong() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ring = Ring::new(events::Context::new(), 2, &soft(8).unwrap(), Way::Eager).unwrap();
        let (_, did) = ring.run(100, Way::Eager);
        assert!(matches!(ring.check(100, Way::Swap, &did), Err(Failure::Wrong(_))));
    }
}
