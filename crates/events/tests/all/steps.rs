//! A signal handler after single instructions of a switch, by the processor's trap flag: what a
//! stress test would have to hit by chance. In a long run after every one (minutes).
#![cfg(target_arch = "x86_64")]

use std::arch::asm;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_events::pmu::CountingPmu;
use dormouse_events::{Context, Counting, Event, Kind, Mode, Task, enter, set_lazy, switch};
use dormouse_sys::records::current_task;
use dormouse_sys::thread::Current;

use dormouse_testkit::{in_child, is_long};

static PMU: CountingPmu = CountingPmu::new();
const HAPPENINGS: Event = PMU.event("happenings", 0);
const OTHERS: Event = PMU.event("others", 1);

static CONTEXTS: OnceLock<[&'static Context; 3]> = OnceLock::new();

fn context(number: usize) -> &'static Context {
    CONTEXTS.get_or_init(|| std::array::from_fn(|_| Context::new()))[number % 3]
}

/// The work of the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handler {
    /// It enters and leaves tasks.
    Enters,
    /// It has another thread change what is counted.
    Changes,
    /// Both: it changes before the tasks, while they are current, and after them.
    Both,
    /// Both, but what is counted changes before its tasks, and this many instructions later.
    Later(u64),
    /// It has another thread begin to count, and end it again.
    Begins,
}

thread_local! {
    static HANDLER: Cell<Handler> = const { Cell::new(Handler::Enters) };
    static STRIDE: Cell<u64> = const { Cell::new(1) };
    static INSTRUCTIONS: Cell<u64> = const { Cell::new(0) };
    /// Events in the handler's tasks, and events while its guards were inert because it came over a
    /// switch.
    static BY_HANDLER: Cell<u64> = const { Cell::new(0) };
    static OVER_SWITCHES: Cell<u64> = const { Cell::new(0) };
    /// Whether the handler has come in the middle of a switch the last time.
    static IS_CHANGING: Cell<bool> = const { Cell::new(false) };
    /// Events that are counted for sure, and perhaps, while counting begins and ends around them.
    static SURE: Cell<u64> = const { Cell::new(0) };
    static PERHAPS: Cell<u64> = const { Cell::new(0) };
    /// Where another task was recorded than the one that ran.
    static WRONGLY_RECORDED: Cell<u64> = const { Cell::new(0) };
}

fn add(cell: &'static std::thread::LocalKey<Cell<u64>>, n: u64) {
    cell.set(cell.get() + n);
}

/// The handler does it after one of so many instructions (enough of them that the thread gets on in
/// between), and which ones these are: each of them in a long run, else others in each process.
fn phases() -> (u64, std::ops::Range<u64>) {
    if is_long() {
        return (31, 0..31);
    }
    let one = u64::from(std::process::id()) % 31;
    (31, one..one + 1)
}

/// How many changes the handler has asked for, and how many were made.
static ASKED: AtomicU64 = AtomicU64::new(0);
static MADE: AtomicU64 = AtomicU64::new(0);

/// For a thread that has an event counted, or no more, whenever the handler asks, until it is told
/// to end.
fn change_on_demand(event: Event) {
    const END: u64 = u64::MAX;
    let mut counting = None;
    loop {
        let made = MADE.load(Ordering::Relaxed);
        match ASKED.load(Ordering::Acquire) {
            END => return,
            asked if asked == made => std::thread::yield_now(),
            _ => {
                counting = match counting {
                    None => Some(Counting::everywhere(&[event], Mode::GroupExact).unwrap()),
                    Some(_) => None,
                };
                MADE.store(made + 1, Ordering::Release);
            }
        }
    }
}

/// Has it changed, and waits.
fn change() {
    let asked = ASKED.fetch_add(1, Ordering::Release) + 1;
    while MADE.load(Ordering::Acquire) != asked {
        std::thread::yield_now();
    }
}

fn happen() {
    CountingPmu::happen(0, 1);
}

/// Something happens in task `task`.
fn happen_in(task: u64) {
    let before = ASKED.load(Ordering::Relaxed);
    happen();
    let after = ASKED.load(Ordering::Relaxed);
    if before == after {
        add(&SURE, after % 2);
    } else {
        add(&PERHAPS, 1);
    }
    let recorded = current_task().task;
    add(&WRONGLY_RECORDED, u64::from(recorded != task));
}

/// Tasks that became current, by the number of the context. Atomic, because handlers come in the
/// middle of additions.
static ENTRIES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

fn entered(number: usize) {
    ENTRIES[number % 3].fetch_add(1, Ordering::Relaxed);
}

extern "C" fn after_each_instruction(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    place: *mut libc::c_void,
) {
    // SAFETY: the kernel's, for this call.
    if unsafe { (*info).si_code } != libc::TRAP_TRACE {
        // A breakpoint of the keys' text writer.
        // SAFETY: the handler that was there before, with what it would have been given.
        return LAST.get().map_or((), |last| unsafe { last(signal, info, place) });
    }
    let instruction = INSTRUCTIONS.get();
    INSTRUCTIONS.set(instruction + 1);
    let (handler, stride) = (HANDLER.get(), STRIDE.get());
    if handler == Handler::Later(instruction % stride) {
        return change();
    }
    if !instruction.is_multiple_of(stride) {
        return;
    }
    let n = (instruction / stride) as usize;
    // A change that meets the thread in the middle of a switch waits for it in vain: once is
    // enough.
    let changes = !matches!(handler, Handler::Enters | Handler::Begins) && !IS_CHANGING.get();
    if changes {
        change();
    }
    let probes = matches!(handler, Handler::Changes | Handler::Begins);
    let kind = if probes { Kind::Drop } else { [Kind::Poll, Kind::Scope][n / 2 % 2] };
    let outer = enter(&mut Task::new(context(n), 77), kind);
    let is_changing = dormouse_events::current_task() != 77;
    IS_CHANGING.set(is_changing);
    if probes {
        drop(outer);
        if handler == Handler::Begins && !is_changing {
            change();
        }
        return;
    }
    happen();
    let changes = handler == Handler::Both && !is_changing;
    if changes {
        change();
    }
    let inner = enter(&mut Task::new(context(n + 1), 78), Kind::Poll);
    happen();
    drop(inner);
    drop(outer);
    if is_changing {
        add(&OVER_SWITCHES, 2);
    } else {
        add(&BY_HANDLER, 2);
        entered(n);
        entered(n + 1);
    }
    if changes {
        change();
    }
}

type Action = unsafe extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// The handler of traps before ours.
static LAST: OnceLock<Action> = OnceLock::new();

/// Has `body` run while the handler is called after each of the instructions that `step_through`
/// runs.
fn with_handler(body: impl FnOnce()) {
    // SAFETY: the handler does what handlers may, which is what is tried, and passes on what is not
    // its own.
    let last = unsafe {
        let (mut action, mut last): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGTRAP, std::ptr::null(), &raw mut last), 0);
        if last.sa_sigaction > 1 {
            let _ = LAST.set(std::mem::transmute::<usize, Action>(last.sa_sigaction));
        }
        action.sa_sigaction = after_each_instruction as Action as usize;
        action.sa_flags = libc::SA_SIGINFO | last.sa_flags & libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()), 0);
        last
    };
    body();
    // SAFETY: what was there before.
    unsafe { libc::sigaction(libc::SIGTRAP, &raw const last, std::ptr::null_mut()) };
}

/// Runs `body` with the trap flag set.
#[inline(never)]
fn step_through(body: &dyn Fn()) {
    // SAFETY: the flag has the handler called after each instruction, and changes nothing else; the
    // stack is as before.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    body();
    // SAFETY: as above.
    unsafe { asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") };
}

/// A way through tasks, and the number of events in them.
type Way = (&'static str, u64, Box<dyn Fn()>);

fn poll(number: usize) {
    let _poll = enter(&mut Task::new(context(number), 1), Kind::Poll);
    entered(number);
    happen_in(1);
}

fn ways() -> Vec<Way> {
    vec![
        ("a poll", 1, Box::new(|| poll(0))),
        ("polls of one context", 2, Box::new(|| (0..2).for_each(|_| poll(0)))),
        ("polls of two", 3, Box::new(|| (0..3).for_each(|number| poll(number % 2)))),
        (
            "a poll in a poll",
            3,
            Box::new(|| {
                let _outer = enter(&mut Task::new(context(0), 2), Kind::Poll);
                entered(0);
                happen_in(2);
                poll(1);
                happen_in(2);
            }),
        ),
        (
            "a poll in a poll of the same",
            2,
            Box::new(|| {
                let _outer = enter(&mut Task::new(context(0), 2), Kind::Poll);
                entered(0);
                poll(0);
                happen_in(2);
            }),
        ),
        (
            "scopes that end in another order",
            3,
            Box::new(|| {
                let outer = enter(&mut Task::new(context(0), 1), Kind::Scope);
                entered(0);
                happen_in(1);
                let inner = enter(&mut Task::new(context(1), 2), Kind::Scope);
                entered(1);
                happen_in(2);
                drop(outer);
                happen_in(2);
                drop(inner);
            }),
        ),
        (
            "a scope that a poll leaves behind",
            2,
            Box::new(|| {
                let poll = enter(&mut Task::new(context(0), 1), Kind::Poll);
                entered(0);
                let kept = enter(&mut Task::new(context(1), 2), Kind::Scope);
                entered(1);
                happen_in(2);
                drop(poll);
                let _next = enter(&mut Task::new(context(1), 3), Kind::Poll);
                entered(1);
                drop(kept);
                happen_in(3);
            }),
        ),
        (
            "switches",
            3,
            Box::new(|| {
                for (number, task) in [(0, 1), (0, 2), (1, 3)] {
                    switch(Some(&mut Task::new(context(number), task)));
                    entered(number);
                    happen_in(task);
                }
                switch(None);
            }),
        ),
    ]
}

fn counted() -> u64 {
    let of = |context: &Context| context.read().iter().find(|c| c.event == HAPPENINGS).map_or(0, |c| c.value);
    (0..3).map(|number| of(context(number))).sum()
}

fn entries() -> [u64; 3] {
    std::array::from_fn(|number| context(number).entries())
}

/// Tries the first `few` ways, eager and lazy, under the handler, while `event` is counted.
fn try_all(handler: Handler, event: Option<Event>, few: usize) {
    let counting = event.map(|event| Counting::everywhere(&[event], Mode::GroupExact).unwrap());
    let changed = if handler == Handler::Begins { HAPPENINGS } else { OTHERS };
    MADE.store(0, Ordering::Relaxed);
    ASKED.store(0, Ordering::Relaxed);
    let changer = std::thread::spawn(move || change_on_demand(changed));
    HANDLER.set(handler);
    if handler != Handler::Enters {
        // Leaves the rebases of a span that was flushed twice: no later span may take them for its
        // own.
        let task = enter(&mut Task::new(context(0), 1), Kind::Scope);
        change();
        change();
        drop(task);
    }
    let mut instructions = 0;
    let (stride, phases) = phases();
    STRIDE.set(stride);
    for (phase, lazy) in phases.flat_map(|phase| [(phase, false), (phase, true)]) {
        for (name, happens, way) in ways().into_iter().take(few) {
            let at = format!("{name}, lazy: {lazy}, phase {phase}");
            set_lazy(lazy);
            INSTRUCTIONS.set(phase);
            // Twice by itself: what a thread keeps from one task to the next is what it finds here.
            way();
            way();
            if ASKED.load(Ordering::Relaxed) % 2 == 1 {
                // Begins with nothing counted.
                change();
                way();
                way();
            }
            for cell in [&BY_HANDLER, &OVER_SWITCHES, &SURE, &PERHAPS, &WRONGLY_RECORDED] {
                cell.set(0);
            }
            let (from, entries_from) = (counted(), entries());
            for entries in &ENTRIES {
                entries.store(0, Ordering::Relaxed);
            }
            step_through(&*way);
            let expected = ENTRIES.each_ref().map(|entries| entries.load(Ordering::Relaxed));
            assert_eq!(WRONGLY_RECORDED.get(), 0, "{at}");
            assert_eq!(current_task(), Current::default(), "{at}");
            if !lazy {
                // Nothing is current, so nothing of this is charged.
                CountingPmu::happen(0, 1_000_000);
            }
            switch(None);
            CountingPmu::happen(0, 1_000_000);
            let counted = counted() - from;
            let (least, most) = match handler {
                Handler::Begins => (SURE.get(), SURE.get() + PERHAPS.get()),
                _ if event == Some(HAPPENINGS) => {
                    (happens + BY_HANDLER.get(), happens + BY_HANDLER.get() + OVER_SWITCHES.get())
                }
                _ => (0, 0),
            };
            assert!((least..=most).contains(&counted), "{at}: {counted}, not {least} to {most}");
            if handler != Handler::Begins {
                let all = entries();
                let came: [u64; 3] = std::array::from_fn(|number| all[number] - entries_from[number]);
                assert_eq!(came, if event.is_some() { expected } else { [0; 3] }, "{at}");
            }
            // And the thread is as good as new.
            let counts = handler != Handler::Begins && event == Some(HAPPENINGS);
            let from = self::counted();
            if ASKED.load(Ordering::Relaxed).is_multiple_of(2) || counts {
                way();
                assert_eq!(self::counted() - from, if counts { happens } else { 0 }, "after {at}");
            }
            assert_eq!((dormouse_events::current_task(), dormouse_events::current_context()), (0, 0));
            instructions += INSTRUCTIONS.get() - phase;
        }
    }
    set_lazy(false);
    assert!(instructions > 500, "{instructions}");
    ASKED.store(u64::MAX, Ordering::Release);
    changer.join().unwrap();
    drop(counting);
}

/// Steps through these. The caller runs in a child, whose signal handlers and counters are its own.
fn step(tries: &[(Handler, Option<Event>, usize)]) {
    // The first change of text installs its handlers, which are older than ours then.
    drop(Counting::everywhere(&[HAPPENINGS], Mode::GroupExact).unwrap());
    with_handler(|| tries.iter().for_each(|&(handler, event, few)| try_all(handler, event, few)));
}

const ALL: usize = usize::MAX;

#[test]
fn a_handler_may_enter_tasks_after_any_instruction() {
    let tries = [Some(HAPPENINGS), Some(Event::TASK_CLOCK), None].map(|event| (Handler::Enters, event, ALL));
    in_child(|| step(&tries));
}

#[test]
fn what_is_counted_may_change_after_any_instruction() {
    let tries = [(Handler::Changes, Some(HAPPENINGS), ALL)];
    in_child(|| step(&tries));
}

#[test]
fn counting_may_begin_and_end_after_any_instruction() {
    in_child(|| step(&[(Handler::Begins, None, ALL)]));
}

#[test]
fn a_change_during_handler_tasks_is_exact() {
    let tries = [(Handler::Both, Some(HAPPENINGS), ALL)];
    in_child(|| step(&tries));
}

#[test]
fn a_change_after_handler_tasks_is_exact() {
    // A change that meets the thread in the middle of a switch waits for it in vain, and takes its
    // time.
    let tries: Vec<_> = (1..5).map(|later| (Handler::Later(later), Some(HAPPENINGS), 1)).collect();
    in_child(|| step(&tries));
}
