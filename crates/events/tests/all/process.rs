//! Signals, forks and filters of system calls concern the whole process: each test runs in a child.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dormouse_events::pmu::CountingPmu;
use dormouse_events::{Context, Counter, Counting, Event, Kind, Mode, Task, enter, set_lazy, switch};

use dormouse_testkit::{Answer, Filter, fork, in_child, skip, spin_for, stress_time};

static PMU: CountingPmu = CountingPmu::new();
const HAPPENINGS: Event = PMU.event("happenings", 0);
const OTHERS: Event = PMU.event("others", 1);

fn value(context: &Context, event: Event) -> u64 {
    context.read().iter().find(|count| count.event == event).map_or(0, |count| count.value)
}

static BY_HANDLER: AtomicU64 = AtomicU64::new(0);
static HANDLERS: AtomicU64 = AtomicU64::new(0);
/// The contexts that the handler enters.
static INSIDE: std::sync::OnceLock<[&'static Context; 2]> = std::sync::OnceLock::new();

extern "C" fn handler(_: libc::c_int) {
    let Some(contexts) = INSIDE.get() else { return };
    let n = HANDLERS.fetch_add(1, Ordering::Relaxed);
    let kind = [Kind::Poll, Kind::Scope][n as usize / 2 % 2];
    let _outer = enter(&mut Task::new(contexts[n as usize % 2], 77), kind);
    CountingPmu::happen(0, 1);
    let _inner = enter(&mut Task::new(contexts[(n as usize + 1) % 2], 78), Kind::Poll);
    CountingPmu::happen(0, 1);
    BY_HANDLER.fetch_add(2, Ordering::Relaxed);
}

#[test]
fn handlers_may_enter_and_leave_whatever_they_interrupt() {
    in_child(|| {
        let contexts: [&'static Context; 2] = std::array::from_fn(|_| Context::new());
        let outside = Context::new();
        let counting = Counting::everywhere(&[HAPPENINGS], Mode::GroupExact).unwrap();
        INSIDE.set(contexts).unwrap();
        // SAFETY: the handler enters and leaves tasks, which is what is tried.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as extern "C" fn(libc::c_int) as usize;
            // One at a time: nested without end they would overflow the stack.
            action.sa_flags = libc::SA_RESTART;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
        }
        let stop = &AtomicBool::new(false);
        let (tell, told) = std::sync::mpsc::channel();
        let (happened, idle) = std::thread::scope(|scope| {
            let worker = scope.spawn(move || {
                tell.send(rustix::thread::gettid().as_raw_pid()).unwrap();
                let mut mine = 0;
                let mut round = 0_usize;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    if round.is_multiple_of(64) {
                        set_lazy(round.is_multiple_of(128));
                    }
                    let (a, b) = (contexts[round % 2], contexts[round / 2 % 2]);
                    let mut task = Task::new(a, 1);
                    if round.is_multiple_of(5) {
                        task.pin();
                    }
                    if round.is_multiple_of(3) {
                        switch(Some(&mut task));
                        CountingPmu::happen(0, 1);
                        switch(None);
                    } else {
                        let _outer = enter(&mut task, Kind::Poll);
                        CountingPmu::happen(0, 1);
                        let _inner = enter(&mut Task::new(b, 2), Kind::Scope);
                        CountingPmu::happen(0, 1);
                        mine += 1;
                    }
                    mine += 1;
                }
                switch(None);
                // Nothing is current, and so nothing is charged, whatever came in between.
                assert_eq!((dormouse_events::current_task(), dormouse_events::current_context()), (0, 0));
                let before: u64 = contexts.iter().map(|context| value(context, HAPPENINGS)).sum();
                CountingPmu::happen(0, 1_000_000);
                let _guard = enter(&mut Task::new(outside, 3), Kind::Scope);
                let after: u64 = contexts.iter().map(|context| value(context, HAPPENINGS)).sum();
                (mine, after - before)
            });
            let tid = told.recv().unwrap();
            let end = std::time::Instant::now() + stress_time();
            let mut changes = 0_u64;
            while std::time::Instant::now() < end || HANDLERS.load(Ordering::Relaxed) < 1000 {
                changes += 1;
                let _others =
                    changes.is_multiple_of(50).then(|| Counting::everywhere(&[OTHERS], Mode::GroupExact));
                // SAFETY: a signal that this process handles, to a thread that waits for `stop`.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGUSR1) };
            }
            stop.store(true, Ordering::Relaxed);
            worker.join().unwrap()
        });
        let all = happened + BY_HANDLER.load(Ordering::Relaxed);
        let counted: u64 = contexts.iter().map(|context| value(context, HAPPENINGS)).sum();
        assert!(idle <= 2 * 16, "{idle} charged while nothing ran");
        // An event in a handler over a switch is charged to the task that follows, which may be
        // none.
        assert!(counted <= all && counted >= happened, "{counted} of {all}, {happened} outside of handlers");
        drop(counting);
    });
}

static CUPS: Counter = Counter::new("cups");
static CUPS_OF_HANDLERS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: libc::c_int) {
    CUPS.add(1);
    CUPS_OF_HANDLERS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_handlers_addition_is_not_lost() {
    const SIGNALS: u64 = 300;
    in_child(|| {
        // SAFETY: an all-zero action is valid; the handler adds, which is what is tried.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = count as extern "C" fn(libc::c_int) as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
        }
        let tid = rustix::thread::gettid().as_raw_pid();
        let handled = || CUPS_OF_HANDLERS.load(Ordering::Relaxed);
        let sender = std::thread::spawn(move || {
            for sent in 0..SIGNALS {
                // A second signal of a kind would not wait beside the first.
                while handled() < sent {
                    std::hint::spin_loop();
                }
                // SAFETY: a signal that this process handles, to a thread that waits for all.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGUSR1) };
            }
        });
        let mut own = 0;
        while handled() < SIGNALS {
            (0..100).for_each(|_| CUPS.add(1));
            own += 100;
        }
        sender.join().unwrap();
        let event = CUPS.event().unwrap();
        let mut value = [0];
        event.pmu().read(&[event.number()], &mut value);
        assert_eq!(value, [own + SIGNALS]);
    });
}

#[test]
fn a_fork_child_keeps_counts_and_counts_nothing() {
    in_child(|| {
        let (context, other) = (Context::new(), Context::new());
        let counting = Counting::everywhere(&[HAPPENINGS], Mode::GroupExact).unwrap();
        let (entered, is_entered) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let waiting = std::thread::spawn(move || {
            let _guard = enter(&mut Task::new(context, 1), Kind::Scope);
            CountingPmu::happen(0, 100);
            drop(enter(&mut Task::new(context, 2), Kind::Poll));
            entered.send(()).unwrap();
            let _ = stopped.recv();
        });
        is_entered.recv().unwrap();
        let guard = enter(&mut Task::new(context, 3), Kind::Scope);
        CountingPmu::happen(0, 10);
        assert_eq!((value(context, HAPPENINGS), context.entries()), (110, 3));
        let mut inherited = Some((counting, guard));
        let status = fork(|| {
            let (counting, guard) = inherited.take().unwrap();
            CountingPmu::happen(0, 1000);
            assert_eq!((value(context, HAPPENINGS), context.entries()), (110, 3));
            drop(counting);
            CountingPmu::happen(0, 1000);
            let again = Counting::of(context, &[HAPPENINGS], Mode::GroupExact).unwrap();
            CountingPmu::happen(0, 1);
            assert_eq!(value(context, HAPPENINGS), 111);
            let here = (dormouse_events::current_task(), dormouse_events::current_context());
            assert_eq!(here, (3, context.id()));
            drop(guard);
            drop(enter(&mut Task::new(other, 4), Kind::Poll));
            assert_eq!((value(context, HAPPENINGS), value(other, HAPPENINGS)), (111, 0));
            drop(again);
        });
        assert!(status.success(), "{status}");
        let (counting, guard) = inherited.unwrap();
        CountingPmu::happen(0, 1);
        drop(guard);
        drop(stop);
        waiting.join().unwrap();
        assert_eq!(
            (value(context, HAPPENINGS), context.entries()),
            (111, 3),
            "what the child does is the child's"
        );
        drop(counting);
    });
}

#[test]
fn a_child_has_its_parents_work_once() {
    in_child(|| {
        let context = Context::new();
        let _counting = Counting::everywhere(&[Event::TASK_CLOCK], Mode::GroupExact).unwrap();
        let poll = enter(&mut Task::new(context, 1), Kind::Poll);
        spin_for(Duration::from_millis(20));
        drop(poll);
        let before = context.cpu_ns();
        assert!(before >= 20_000_000, "{before}");
        let status = fork(|| {
            // Not by the thread that has forked, and that has the work pending.
            std::thread::spawn(|| drop(context.read())).join().unwrap();
            let after = context.cpu_ns();
            assert!((before..before + 5_000_000).contains(&after), "{before}, then {after}");
        });
        assert!(status.success(), "{status}");
    });
}

#[test]
fn forks_during_changes_find_free_locks() {
    in_child(|| {
        let context = Context::new();
        let stop = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut task = Task::new(context, 1);
                while !stop.load(Ordering::Relaxed) {
                    drop(Counting::everywhere(&[HAPPENINGS], Mode::TaskExact).unwrap());
                    task.add(OTHERS).unwrap();
                    task.remove(OTHERS).unwrap();
                }
            });
            let child = || {
                let mut task = Task::new(context, 2);
                task.add(OTHERS).unwrap();
                let _counting = Counting::of(context, &[HAPPENINGS], Mode::GroupExact).unwrap();
                let before = value(context, HAPPENINGS);
                let guard = enter(&mut task, Kind::Poll);
                CountingPmu::happen(0, 5);
                drop(guard);
                assert_eq!(value(context, HAPPENINGS), before + 5);
            };
            let failed = (0..100).map(|_| fork(child)).find(|status| !status.success());
            stop.store(true, Ordering::Relaxed);
            assert_eq!(failed, None);
        });
    });
}

#[test]
fn without_membarrier_events_are_counted() {
    in_child(|| {
        Filter::answer(Answer::Errno(libc::ENOSYS), &[libc::SYS_membarrier]).install();
        let context = Context::new();
        let counting = Counting::of(context, &[HAPPENINGS], Mode::GroupExact).unwrap();
        let guard = enter(&mut Task::new(context, 1), Kind::Scope);
        CountingPmu::happen(0, 1);
        let others = Counting::of(context, &[OTHERS], Mode::GroupExact).unwrap();
        CountingPmu::happen(0, 10);
        CountingPmu::happen(1, 7);
        drop(guard);
        assert_eq!((value(context, HAPPENINGS), value(context, OTHERS)), (11, 7));
        drop((counting, others));
        CountingPmu::happen(0, 100);
        assert_eq!(value(context, HAPPENINGS), 11);
        drop(Counting::of(context, &[HAPPENINGS], Mode::GroupExact));
    });
}

/// The protection of code, in the third argument of `mprotect`.
const EXECUTABLE: u64 = libc::PROT_EXEC as u64;

#[test]
fn a_hook_that_cannot_wake_is_an_error() {
    in_child(|| {
        if !dormouse_keys::PATCHING {
            return skip("nothing is patched here");
        }
        let context = Context::new();
        let no_memory_file = Filter::refuse(&[libc::SYS_openat, libc::SYS_pwrite64]);
        no_memory_file.and_where(libc::SYS_mprotect, 2, EXECUTABLE, &[EXECUTABLE]).install();
        let refused = Counting::of(context, &[HAPPENINGS], Mode::GroupExact).unwrap_err().to_string();
        assert!(refused.contains("mprotect"), "{refused}");
        let guard = enter(&mut Task::new(context, 1), Kind::Poll);
        CountingPmu::happen(0, 1);
        drop(guard);
        assert_eq!(context.read(), []);
    });
}
