//! Tasks on many threads while what is counted changes all the time: of what is counted throughout
//! nothing is lost, and nothing is charged twice.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dormouse_events::pmu::CountingPmu;
use dormouse_events::{Context, Counting, Event, Kind, Mode, Task, enter, park, set_lazy, switch};
use dormouse_sys::thread;
use dormouse_testkit::stress_time;

static PMU: CountingPmu = CountingPmu::new();

const ALWAYS: Event = PMU.event("always", 0);
const SOMETIMES: [Event; 3] = [PMU.event("x", 1), PMU.event("y", 2), PMU.event("z", 3)];

/// A change of what is counted concerns the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn value(context: &Context, event: Event) -> u64 {
    context.read().iter().find(|count| count.event == event).map_or(0, |count| count.value)
}

/// xorshift, so that a worker costs nothing but what it tests.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// The events of each context, as their makers count them.
#[derive(Default)]
struct Sums {
    always: [AtomicU64; CONTEXTS],
    sometimes: [AtomicU64; CONTEXTS],
}

const CONTEXTS: usize = 3;

struct Worker<'a> {
    contexts: &'a [&'static Context; CONTEXTS],
    sums: &'a Sums,
    random: Random,
    number: u64,
}

impl Worker<'_> {
    fn happen(&mut self, context: usize) {
        let n = 1 + self.random.below(5) as u64;
        self.sums.always[context].fetch_add(n, Ordering::Relaxed);
        CountingPmu::happen(0, n);
        let event = self.random.below(SOMETIMES.len());
        self.sums.sometimes[context].fetch_add(n, Ordering::Relaxed);
        CountingPmu::happen(event as u32 + 1, n);
    }

    fn task(&mut self) -> (usize, Task) {
        let context = self.random.below(CONTEXTS);
        self.number += 1;
        let mut task = Task::new(self.contexts[context], self.number);
        match self.random.below(12) {
            0 => task.pin(),
            1 => _ = task.add(SOMETIMES[0]),
            _ => {}
        }
        (context, task)
    }

    /// Polls a task, which may poll others in its turn, panic, or change.
    fn poll(&mut self, (context, task): &mut (usize, Task), depth: usize) {
        let kind = [Kind::Poll, Kind::Scope, Kind::Drop][self.random.below(3)];
        let guard = enter(task, kind);
        self.happen(*context);
        for _ in 0..self.random.below(3) {
            match self.random.below(10) {
                0 if depth < 4 => {
                    let mut inner = self.task();
                    self.poll(&mut inner, depth + 1);
                }
                1 => {
                    let inner = std::panic::AssertUnwindSafe(self.task());
                    let context = inner.0.0;
                    let worker = std::panic::AssertUnwindSafe(&mut *self);
                    let caught = std::panic::catch_unwind(move || {
                        let (mut inner, worker) = (inner, worker);
                        let _guard = enter(&mut inner.0.1, Kind::Poll);
                        worker.0.happen(context);
                        std::panic::resume_unwind(Box::new(()));
                    });
                    assert!(caught.is_err());
                }
                2 => {
                    task.pin();
                    self.happen(*context);
                    task.unpin();
                }
                _ => {}
            }
            self.happen(*context);
        }
        drop(guard);
        // Outside of all tasks unless this is an inner one; a lazy thread would charge it.
        if depth == 0 && kind != Kind::Poll {
            park();
            CountingPmu::happen(0, 1000);
        }
    }

    fn run(&mut self, steps: usize, other: &Sender<(usize, Task)>, from: &mut Receiver<(usize, Task)>) {
        let mut tasks: Vec<_> = (0..8).map(|_| self.task()).collect();
        for _ in 0..steps {
            tasks.extend(from.try_iter().take(4));
            if tasks.is_empty() {
                tasks.push(self.task());
            }
            let chosen = self.random.below(tasks.len());
            match self.random.below(20) {
                0 => drop(tasks.swap_remove(chosen)),
                1 => _ = other.send(tasks.swap_remove(chosen)),
                2 => tasks.push(self.task()),
                3 => set_lazy(self.random.below(2) == 0),
                4 => {
                    let (context, task) = &mut tasks[chosen];
                    let context = *context;
                    switch(Some(task));
                    self.happen(context);
                    switch(None);
                }
                _ => self.poll(&mut tasks[chosen], 0),
            }
        }
        switch(None);
    }
}

/// The fewest changes of what is counted.
const CHANGES: u64 = 100;

#[test]
fn changes_lose_nothing_and_count_nothing_twice() {
    let _alone = alone();
    let contexts: [&'static Context; CONTEXTS] = std::array::from_fn(|_| Context::new());
    let (sums, stop) = (Sums::default(), AtomicBool::new(false));
    let (sums, stop, contexts) = (&sums, &stop, &contexts);
    let always = Counting::everywhere(&[ALWAYS], Mode::GroupExact).unwrap();
    let end = Instant::now() + stress_time();
    let changes = std::thread::scope(|scope| {
        let ends: Vec<_> = (0..3).map(|_| channel()).collect();
        let (senders, receivers): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
        for (number, mut from) in receivers.into_iter().enumerate() {
            let other = senders[(number + 1) % 3].clone();
            scope.spawn(move || {
                let mut random = Random(0x9e37_79b9 + 2 * number as u64);
                // Threads end, and others go on in their blocks.
                while !stop.load(Ordering::Relaxed) {
                    let mut worker = Worker {
                        contexts,
                        sums,
                        random: Random(random.below(1 << 40) as u64 + 1),
                        number: 0,
                    };
                    let (from, other) = (&mut from, &other);
                    std::thread::scope(|inner| _ = inner.spawn(move || worker.run(2000, other, from)));
                }
            });
        }
        scope.spawn(move || {
            let mut last = [0; CONTEXTS];
            while !stop.load(Ordering::Relaxed) {
                for (context, last) in contexts.iter().zip(&mut last) {
                    let now = value(context, ALWAYS);
                    assert!(now >= *last, "{now} after {last}");
                    *last = now;
                }
            }
        });
        let (mut random, mut countings, mut changes) = (Random(77), Vec::new(), 0_u64);
        // Where a change takes long, more of them than come by chance.
        while Instant::now() < end || changes <= CHANGES {
            let event = SOMETIMES[random.below(SOMETIMES.len())];
            let mode = [Mode::GroupExact, Mode::GroupExact, Mode::TaskExact][random.below(3)];
            countings.push(match random.below(2) {
                0 => Counting::everywhere(&[event], mode).unwrap(),
                _ => Counting::of(contexts[random.below(CONTEXTS)], &[event], mode).unwrap(),
            });
            if countings.len() > random.below(5) {
                drop(countings.swap_remove(random.below(countings.len())));
            }
            changes += 1;
        }
        stop.store(true, Ordering::Relaxed);
        changes
    });
    for (number, context) in contexts.iter().enumerate() {
        let happened = sums.always[number].load(Ordering::Relaxed);
        assert_eq!(value(context, ALWAYS), happened, "after {changes} changes");
        let most = sums.sometimes[number].load(Ordering::Relaxed);
        let counted: u64 = SOMETIMES.iter().map(|&event| value(context, event)).sum();
        assert!(counted <= most, "{counted} of {most}");
    }
    drop(always);
}

#[test]
fn an_endless_task_is_counted_per_counting() {
    let _alone = alone();
    let context = Context::new();
    let (order, orders) = channel::<u64>();
    let (done, is_done) = channel();
    let worker = std::thread::spawn(move || {
        let _guard = enter(&mut Task::new(context, 1), Kind::Scope);
        done.send(()).unwrap();
        for n in orders {
            CountingPmu::happen(0, n);
            done.send(()).unwrap();
        }
    });
    is_done.recv().unwrap();
    let happen = |n| {
        order.send(n).unwrap();
        is_done.recv().unwrap();
    };
    let mut expected = 0;
    for _ in 0..10 {
        happen(1000);
        let counting = Counting::of(context, &[ALWAYS], Mode::GroupExact).unwrap();
        happen(7);
        drop(Counting::everywhere(&[SOMETIMES[0]], Mode::TaskExact).unwrap());
        happen(1);
        expected += 8;
        assert_eq!(value(context, ALWAYS), expected);
        drop(counting);
    }
    happen(1000);
    drop(order);
    worker.join().unwrap();
    assert_eq!(value(context, ALWAYS), expected);
}

#[test]
fn switching_between_plain_tasks_reads_nothing() {
    let _alone = alone();
    let context = Context::new();
    let counting = Counting::of(context, &[ALWAYS, SOMETIMES[0]], Mode::GroupExact).unwrap();
    let mut tasks: Vec<Task> = (1..9).map(|id| Task::new(context, id)).collect();
    let outer = enter(&mut Task::new(context, 100), Kind::Poll);
    let mut reads = PMU.reads();
    let mut unread = |what| {
        assert_eq!(PMU.reads(), reads, "{what}");
        reads = PMU.reads();
    };
    for task in &mut tasks {
        let _nested = enter(task, Kind::Poll);
        CountingPmu::happen(0, 1);
    }
    unread("nested in one of the same context");
    drop(outer);
    switch(Some(&mut tasks[0]));
    let mut reads = PMU.reads();
    for task in &mut tasks {
        switch(Some(task));
        CountingPmu::happen(0, 1);
    }
    assert_eq!(PMU.reads(), reads, "switched");
    switch(None);
    set_lazy(true);
    drop(enter(&mut tasks[0], Kind::Poll));
    reads = PMU.reads();
    for task in &mut tasks {
        drop(enter(task, Kind::Poll));
        CountingPmu::happen(0, 1);
    }
    assert_eq!(PMU.reads(), reads, "lazy polls");
    set_lazy(false);
    assert_eq!(value(context, ALWAYS), 24);
    drop(counting);
}

#[test]
fn exact_tasks_add_up_to_their_context() {
    let _alone = alone();
    let context = Context::new();
    let counting = Counting::of(context, &[ALWAYS], Mode::TaskExact).unwrap();
    let mut tasks: Vec<Task> = (0..5).map(|id| Task::new(context, id + 1)).collect();
    for round in 0..3 {
        for (n, task) in tasks.iter_mut().enumerate() {
            let _poll = enter(task, Kind::Poll);
            CountingPmu::happen(0, 10 * n as u64 + round);
        }
    }
    let own: Vec<u64> = tasks.iter().map(|task| task.counts().iter().map(|(_, n)| n).sum()).collect();
    assert_eq!(own, [3, 33, 63, 93, 123]);
    assert_eq!(value(context, ALWAYS), own.iter().sum::<u64>());
    drop(counting);
}

#[test]
fn ten_thousand_short_threads_lose_nothing() {
    let _alone = alone();
    let context = Context::new();
    let counting = Counting::of(context, &[ALWAYS], Mode::GroupExact).unwrap();
    let live = thread::live().count();
    for round in 0..2500 {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    let guard = enter(&mut Task::new(context, 1), Kind::Scope);
                    CountingPmu::happen(0, 1);
                    if round % 2 == 0 {
                        // Some end in the middle of their task.
                        std::mem::forget(guard);
                    }
                });
            }
        });
    }
    // A thread is joined before its block is given back, by a little.
    let end = Instant::now() + Duration::from_secs(20);
    while thread::live().count() > live && Instant::now() < end {
        std::thread::yield_now();
    }
    assert!(thread::live().count() <= live);
    assert_eq!((value(context, ALWAYS), context.entries()), (10_000, 10_000));
    drop(counting);
}
