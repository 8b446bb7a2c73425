//! What the tasks of one parent have counted, together.
//!
//! Every context of the parent has its own counts, which only the thread that runs it writes; the ledger
//! knows them all. A read adds up the living ones and what the ended ones have left. A context that ends
//! moves its counts from the one to the other under the lock that readers hold, so a reader finds them
//! in exactly one of the two.
//!
//! # Invariants
//!
//! 1. A context is in `living` from its clone to its end, under the key that it was given.
//! 2. Accounts are never removed: a key of one stays valid however old the layout is that names it.
//! 3. Only the thread that runs a context writes its counts; they never go down.
//!
//! # Locking
//!
//! One lock, taken at clone, end and read, never at a switch. Nothing else is locked under it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::layout::{Layout, MAX_COUNTERS};
use crate::pmu::Event;
use crate::primitive::{AtomicU64, Mutex, MutexGuard};

/// The counts of one context, place by place of its layout, on cache lines that no other context uses.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counts {
    values: [AtomicU64; MAX_COUNTERS],
}

impl Counts {
    /// Adds; only the thread that runs the context may.
    #[inline]
    pub(crate) fn add(&self, place: usize, n: u64) {
        let value = &self.values[place];
        // One writer (invariant 3), so no read-modify-write. What has to be seen by whom is ordered by how
        // the context gets from thread to thread, and by the ledger's lock when it ends.
        value.store(value.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    pub(crate) fn value(&self, place: usize) -> u64 {
        self.values[place].load(Ordering::Relaxed)
    }
}

/// One event's count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// What was counted.
    pub event: Event,
    /// How often, in the event's unit.
    pub value: u64,
}

/// What the tasks of a [`Parent`](crate::Parent) have counted; it can be read as long as somebody holds it,
/// also when the parent is gone and its last tasks are still counting.
#[derive(Debug, Default)]
pub struct Ledger {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    accounts: Vec<Account>,
    living: Vec<Option<Living>>,
    /// Empty places of `living`.
    free: Vec<usize>,
}

#[derive(Debug)]
struct Account {
    event: Event,
    /// What ended contexts have left.
    ended: u64,
    /// Whether the parent still has the counter.
    open: bool,
}

#[derive(Debug)]
struct Living {
    layout: Arc<Layout>,
    counts: Arc<Counts>,
}

impl Ledger {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that is counted, in the order in which it was added to the parent.
    ///
    /// What a task has counted since its context came onto its thread is not in it yet: it comes with the
    /// next switch that reads, with [`TaskContext::publish`](crate::TaskContext::publish), and at the
    /// latest with the task's end. A value is never smaller than in an earlier read.
    ///
    /// # Cost
    ///
    /// A look at every living context, under the lock that clones and ends take.
    pub fn read(&self) -> Vec<Count> {
        let books = self.books();
        let mut sums: Vec<u64> = books.accounts.iter().map(|account| account.ended).collect();
        for living in books.living.iter().flatten() {
            living.each(|account, value| sums[account] = sums[account].wrapping_add(value));
        }
        let open = books.accounts.iter().zip(sums).filter(|(account, _)| account.open);
        open.map(|(account, value)| Count { event: account.event, value }).collect()
    }

    /// The sum of one event; none if the parent does not count it.
    ///
    /// # Cost
    ///
    /// That of [`Ledger::read`].
    pub fn value(&self, event: Event) -> Option<u64> {
        self.read().into_iter().find(|count| count.event == event).map(|count| count.value)
    }

    /// How many contexts there are that have not ended.
    pub fn alive(&self) -> usize {
        let books = self.books();
        books.living.len() - books.free.len()
    }

    /// An account for a new counter of the parent.
    pub(crate) fn add_account(&self, event: Event) -> usize {
        let mut books = self.books();
        books.accounts.push(Account { event, ended: 0, open: true });
        books.accounts.len() - 1
    }

    /// The parent has given the counter up.
    pub(crate) fn close_account(&self, account: usize) {
        self.books().accounts[account].open = false;
    }

    /// A context begins.
    pub(crate) fn begin(&self, layout: Arc<Layout>, counts: Arc<Counts>) -> usize {
        let mut books = self.books();
        let key = books.free.pop().unwrap_or_else(|| {
            books.living.push(None);
            books.living.len() - 1
        });
        books.living[key] = Some(Living { layout, counts });
        key
    }

    /// A context ends: what it has counted stays.
    pub(crate) fn end(&self, key: usize) {
        let mut books = self.books();
        if let Some(living) = books.living[key].take() {
            books.free.push(key);
            living.each(|account, value| books.accounts[account].leave(value));
        }
    }

    /// A context changes its layout, and keeps what it has counted so far of what both have.
    pub(crate) fn change(&self, key: usize, layout: Arc<Layout>) -> Arc<Counts> {
        let counts = Arc::new(Counts::default());
        let mut books = self.books();
        if let Some(living) = books.living[key].take() {
            for (place, old) in living.layout.places().iter().enumerate() {
                let value = living.counts.value(place);
                match (layout.place_of(old.event), old.account) {
                    (Some(new), _) => counts.add(new, value),
                    (None, Some(account)) => books.accounts[account].leave(value),
                    (None, None) => {}
                }
            }
        }
        books.living[key] = Some(Living { layout, counts: Arc::clone(&counts) });
        counts
    }
}

impl Account {
    fn leave(&mut self, value: u64) {
        self.ended = self.ended.wrapping_add(value);
    }
}

impl Living {
    /// Each count that an account sums up.
    fn each(&self, mut sum: impl FnMut(usize, u64)) {
        for (place, at) in self.layout.places().iter().enumerate() {
            if let Some(account) = at.account {
                sum(account, self.counts.value(place));
            }
        }
    }
}

#[cfg(all(test, loom))]
mod interleavings {
    //! `RUSTFLAGS="--cfg loom" cargo test -p dormouse-events --lib interleavings`

    use super::*;
    use crate::layout::Place;
    use crate::pmu::CountingPmu;

    static PMU: CountingPmu = CountingPmu::new();

    /// A ledger with one account, and contexts of it.
    fn ledger(contexts: usize) -> (Arc<Ledger>, Vec<(usize, Arc<Counts>)>) {
        let ledger = Arc::new(Ledger::default());
        let event = PMU.event("x", 0);
        let account = Some(ledger.add_account(event));
        let layout = Arc::new(Layout::default().with(Place { event, account }).unwrap());
        let begin = |_| {
            let counts = Arc::new(Counts::default());
            (ledger.begin(Arc::clone(&layout), Arc::clone(&counts)), counts)
        };
        let contexts = (0..contexts).map(begin).collect();
        (ledger, contexts)
    }

    #[test]
    fn a_reader_finds_a_count_once_while_its_context_counts_and_ends() {
        loom::model(|| {
            let (ledger, contexts) = ledger(2);
            let tasks: Vec<_> = contexts
                .into_iter()
                .map(|(key, counts)| {
                    let ledger = Arc::clone(&ledger);
                    loom::thread::spawn(move || {
                        counts.add(0, 1);
                        ledger.end(key);
                    })
                })
                .collect();
            let first = ledger.read()[0].value;
            let second = ledger.read()[0].value;
            assert!(first <= second && second <= 2, "{first}, {second}");
            for task in tasks {
                task.join().unwrap();
            }
            assert_eq!((ledger.read()[0].value, ledger.alive()), (2, 0));
        });
    }

    #[test]
    fn a_context_that_changes_its_counters_is_read_whole_meanwhile() {
        loom::model(|| {
            let (ledger, mut contexts) = ledger(1);
            let (key, counts) = contexts.remove(0);
            counts.add(0, 3);
            let changer = {
                let ledger = Arc::clone(&ledger);
                loom::thread::spawn(move || {
                    // Without the counter: what was counted is left to the parent.
                    ledger.change(key, Arc::new(Layout::default()));
                    ledger.end(key);
                })
            };
            assert_eq!(ledger.read()[0].value, 3);
            changer.join().unwrap();
            assert_eq!(ledger.read()[0].value, 3);
        });
    }
}
