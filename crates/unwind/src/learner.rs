//! Learns functions on a thread of its own, which ends when it has read them.
//!
//! The host's threads come first, so this one takes the lowest priority of usual threads (nice 19),
//! and rests so long that it uses at most [`SHARE`] of a CPU. Under a filter of system calls, as in
//! containers, it only rests. A priority that was lowered cannot be raised again without a
//! privilege, so no thread with other work can lower its own for a while.
//!
//! # Locking
//!
//! It takes no lock of dormouse's: a fork, or another thread that needs the tables, would wait for
//! a thread of the lowest priority. It gets addresses and returns rows, and a thread that has the
//! lock puts these into the tables ([`Batch::take`]).

use std::time::{Duration, Instant};

use dormouse_sys::clock;
use dormouse_sys::perf::is_filtered;
use dormouse_sys::process::{identity, threads};
use dormouse_sys::signals;
use dormouse_sys::sync::{Answerer, Asker, NoAnswer, answer};

use crate::entry::Buffers;
use crate::function::{Learned, Unlearned};
use crate::memory::MemorySource;

/// The most functions of a batch: they are read within some tens of milliseconds.
pub(crate) const MOST: usize = 128;

/// Learning takes one in this many parts of a CPU's time at most, on this thread; and as much again
/// on the one that follows copies of stacks ([`Allowance`]).
const SHARE: u32 = 20;

/// The time whose share may be spent at once: the first stacks of a profile have some hundred
/// functions.
const AHEAD: Duration = Duration::from_secs(1);

/// The longest time that a batch takes where other threads leave this one little of a processor:
/// then it is given as far as it was read. A filter has killed a thread that gives nothing for
/// twice as long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The stack of the thread, and the memory that a batch takes beside it.
const STACK: usize = 64 * 1024;
pub(crate) const ROOM: usize = STACK + 128 * 1024;

/// Functions that a thread reads, or has read.
#[derive(Debug)]
pub(crate) struct Batch {
    process: u64,
    begun: Instant,
    learned: Asker<Vec<Learned>>,
}

/// The work of the thread.
#[derive(Debug)]
pub(crate) struct Reading<M> {
    functions: Vec<Unlearned>,
    memory: M,
    give: Answerer<Vec<Learned>>,
}

impl Batch {
    /// A batch whose thread is yet to be [started](Reading::start).
    pub(crate) fn new<M>(functions: Vec<Unlearned>, memory: M) -> (Self, Reading<M>) {
        let (give, learned) = answer();
        let batch = Self { process: identity::id(), begun: Instant::now(), learned };
        (batch, Reading { functions, memory, give })
    }

    /// The rows that the thread has read; `None`: it is still reading. There are none if it could
    /// not be started, is a parent's, or has read for so long that a filter must have killed it.
    pub(crate) fn take(&self) -> Option<Vec<Learned>> {
        if self.process != identity::id() {
            return Some(Vec::new());
        }
        match self.learned.wait(Duration::ZERO) {
            Ok(learned) => Some(learned),
            Err(NoAnswer::Gone) => Some(Vec::new()),
            // To ask the kernel for the thread is a call that a filter may kill for.
            Err(NoAnswer::NotYet) => (self.begun.elapsed() > 2 * PATIENCE).then(Vec::new),
        }
    }
}

impl<M: MemorySource + Send + 'static> Reading<M> {
    /// Starts the thread, if there is [`ROOM`]. Where it is refused, the batch has nothing.
    pub(crate) fn start(self) {
        let _refused = signals::spawn("dormouse-unwind", STACK, move || self.run());
    }

    fn run(self) {
        let Self { functions, memory, give } = self;
        // A filter may end the thread for that call.
        if !is_filtered() {
            threads::lower_priority();
        }
        give.give(read_all(functions, &memory));
    }
}

/// Reads functions, at most at the share of a CPU that this takes.
fn read_all(mut functions: Vec<Unlearned>, memory: &impl MemorySource) -> Vec<Learned> {
    let (mut learned, mut buffers) = (Vec::<Learned>::new(), Buffers::default());
    let begun = Instant::now();
    // It begins before each rest, whose calls take time, too.
    let mut spending = Spending::begin();
    // Of two addresses in one function the second finds it read.
    functions.sort_unstable_by_key(|function| (function.object, function.address));
    for function in functions {
        let is_read = |last: &Learned| last.object == function.object && function.address < last.end;
        if learned.last().is_some_and(is_read) || learned.try_reserve(1).is_err() {
            continue;
        }
        if begun.elapsed() > PATIENCE {
            break;
        }
        if spending.cpu_ns.is_none() {
            spending = Spending::begin();
        }
        learned.extend(function.read(memory, &mut buffers));
        let rest = spending.so_far() * (SHARE - 1);
        spending = Spending::begin();
        std::thread::sleep(rest.min(PATIENCE / 2));
    }
    learned
}

/// The CPU time that a thread with other work may spend on functions that it needs at once: those
/// of stacks that were copied.
#[derive(Debug)]
pub(crate) struct Allowance {
    /// When what was spent so far will be its share of the time.
    even: Option<Instant>,
}

impl Allowance {
    pub(crate) const fn new() -> Self {
        Self { even: None }
    }

    /// Whether more may be spent.
    pub(crate) fn is_left(&self, now: Instant) -> bool {
        self.even.is_none_or(|even| even < now + AHEAD)
    }

    pub(crate) fn spend(&mut self, spent: Duration, now: Instant) {
        self.even = Some(self.even.unwrap_or(now).max(now) + spent * SHARE);
    }
}

/// CPU time of the calling thread from a moment on; where a filter refuses that clock, the time
/// that has passed.
#[derive(Debug)]
pub(crate) struct Spending {
    cpu_ns: Option<u64>,
    began: Instant,
}

impl Spending {
    pub(crate) fn begin() -> Self {
        Self { cpu_ns: clock::thread_cpu_ns(), began: Instant::now() }
    }

    pub(crate) fn so_far(&self) -> Duration {
        match self.cpu_ns.zip(clock::thread_cpu_ns()) {
            Some((before, now)) => Duration::from_nanos(now.saturating_sub(before)),
            None => self.began.elapsed(),
        }
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::memory::ProcessMemory;
    use crate::tables::UnwindTables;

    /// This process's memory. Each reading is reported, with the thread and its priority.
    #[derive(Debug, Clone)]
    struct Watched(mpsc::Sender<(u32, i64)>);

    impl MemorySource for Watched {
        fn read(&self, address: u64, into: &mut [u8]) -> Option<usize> {
            self.0.send((identity::tid(), nice())).unwrap();
            ProcessMemory::own().unwrap().read(address, into)
        }
    }

    /// The calling thread's (proc(5): the nineteenth field).
    fn nice() -> i64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(16).unwrap().parse().unwrap()
    }

    /// Functions of the C library.
    fn functions() -> Vec<Unlearned> {
        let mut tables = UnwindTables::new(ProcessMemory::own().unwrap());
        tables.update(&std::fs::read("/proc/self/maps").unwrap());
        let inside = tables.unlearned(libc::getpid as *const () as u64).unwrap();
        let index = inside.index.unwrap();
        let starts = (0..MOST as u64).map(|number| index.get(&ProcessMemory::own().unwrap(), number));
        starts.filter_map(|function| tables.unlearned(function?.start)).collect()
    }

    #[test]
    fn functions_are_read_at_the_lowest_priority() {
        let (tell, told) = mpsc::channel();
        let before = nice();
        // So few that no machine takes the longest time of a batch for them.
        let few = functions().into_iter().take(16).collect();
        let (batch, reading) = Batch::new(few, Watched(tell));
        reading.start();
        let read: Vec<_> = told.iter().collect();
        assert!(!read.is_empty() && read.iter().all(|(tid, nice)| (*tid, *nice) == (read[0].0, 19)));
        assert!(read[0].0 != identity::tid() && nice() == before);
        dormouse_testkit::eventually(|| batch.take().is_some_and(|learned| learned.len() > 8));
    }

    #[test]
    fn reading_takes_its_share_of_a_cpu() {
        let functions = functions();
        let spending = Spending::begin();
        let learned = read_all(functions, &ProcessMemory::own().unwrap());
        let (took, used) = (spending.began.elapsed(), spending.so_far());
        println!("{} functions: {used:?} of {took:?}", learned.len());
        assert!(learned.len() > MOST / 2);
        // Beside it nothing is done but what sleeps and sorts: less than that again.
        assert!(used * SHARE / 2 <= took, "{used:?} of {took:?}");
    }

    #[test]
    fn an_allowance_is_a_share_of_the_time() {
        let (mut allowance, begin) = (Allowance::new(), Instant::now());
        let (mut spent, piece) = (Duration::ZERO, Duration::from_millis(3));
        for ms in 0..60_000 {
            let now = begin + Duration::from_millis(ms);
            if allowance.is_left(now) {
                allowance.spend(piece, now);
                spent += piece;
            }
        }
        let most = (Duration::from_secs(60) + AHEAD) / SHARE;
        assert!(spent <= most + piece && spent + 2 * piece >= most, "{spent:?} of {most:?}");
    }
}
