//! A storm of forks from threads in every state: each child uses everything, and none waits for
//! ever. The host's own fork handlers, older and younger than ours, use dormouse, too. Signal
//! handlers fork over a thread on the hot paths (over others a fork may wait for the allocator's
//! lock, which is the C library's). No test harness: the process forks. SIGALRM ends it if it
//! hangs.

use std::cell::Cell;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::thread::JoinHandleExt as _;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use dormouse::{Event, Group, static_key, unlikely};

static_key! {
    static KEY: "storm.key" = false;
    static OTHER: "storm.other" = false;
}

/// The step of the child, for its exit code.
static STEP: AtomicU32 = AtomicU32::new(0);
static END: AtomicBool = AtomicBool::new(false);
static CHILDREN: AtomicU64 = AtomicU64::new(0);
static FROM_HANDLERS: AtomicU64 = AtomicU64::new(0);
/// Uses by the host's own handlers that worked: older ones than ours, younger ones.
static WORKED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

thread_local! {
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// How long a child may take for everything. It shares two processors with the storm.
const PATIENCE: u32 = 60;

extern "C" fn hangs(_: i32) {
    // SAFETY: ends the child at once.
    unsafe { libc::_exit(100 + STEP.load(Relaxed).cast_signed()) };
}

fn step(number: u32) {
    STEP.store(number, Relaxed);
}

fn toggle() -> bool {
    let done = KEY.enable().is_ok();
    let is_right = !done || !KEY.is_enabled() || unlikely!(KEY) || !KEY.is_enabled();
    is_right && KEY.disable().is_ok() && done
}

fn trace() {
    let Ok(mut trace) = dormouse::trace("storm.*") else { return };
    dormouse::probe!("storm.probe", n = 1);
    trace.poll(|_, _, _| {});
}

fn count() {
    if let Ok(counting) =
        dormouse::start_counting(&[Event::TASK_CLOCK, Event::PAGE_FAULTS, Event::CONTEXT_SWITCHES])
    {
        let _entered = Group::new("storm").enter();
        drop(counting);
    }
}

fn read() {
    for group in Group::all() {
        std::hint::black_box((group.read(), group.read_counts()));
    }
}

fn budget() {
    let group = Group::new("storm");
    let Ok(budget) = group.budget(Duration::from_micros(1)) else { return };
    drop(budget.on_exceeded(|_| {}));
}

/// Everything, on a thread of the host's.
fn everything() {
    let uses: [fn(); 9] = [
        || _ = toggle(),
        || _ = dormouse::keys::all(),
        || _ = OTHER.enable_for(Duration::from_millis(1)),
        || _ = Group::new("storm of the child").name(),
        count,
        read,
        trace,
        budget,
        || {
            _ = std::hint::black_box((
                dormouse::clock::thread_cpu_ns(),
                dormouse::clock::process_exact().ok(),
            ));
        },
    ];
    for (number, using) in (1..).zip(uses) {
        step(number);
        using();
    }
    step(20);
    std::thread::spawn(|| {
        let _entered = Group::new("thread of the child").enter();
        dormouse::probe!("storm.probe", n = 2);
    })
    .join()
    .unwrap_or_default();
    step(21);
    let Ok(agent) = dormouse::init() else { return };
    step(22);
    ask(agent.path(), 1);
}

/// Sends the agent requests of all kinds, `times` times.
fn ask(socket: &std::path::Path, times: u32) {
    let Ok(mut stream) = UnixStream::connect(socket) else { return };
    let Ok(lines) = stream.try_clone() else { return };
    let mut lines = BufReader::new(lines);
    for _ in 0..times {
        for operation in [
            r#"{"v":1,"id":1,"op":"hello","client":"storm"}"#,
            r#"{"v":1,"id":2,"op":"on","glob":"storm.other"}"#,
            r#"{"v":1,"id":6,"op":"waits"}"#,
            r#"{"v":1,"id":3,"op":"stat"}"#,
            r#"{"v":1,"id":4,"op":"keys"}"#,
            r#"{"v":1,"id":5,"op":"off","glob":"storm.other"}"#,
        ] {
            let mut answer = String::new();
            if writeln!(stream, "{operation}").is_err() || !matches!(lines.read_line(&mut answer), Ok(1..)) {
                return;
            }
        }
    }
}

/// Forks, has the child run `check`, and waits for it.
fn fork(check: fn()) {
    // SAFETY: the child sets its own alarm, and ends by `_exit`.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::signal(libc::SIGALRM, hangs as *const () as usize);
            libc::alarm(PATIENCE);
            check();
            libc::_exit(0);
        }
        if child < 0 {
            return;
        }
        let mut status = 0;
        while libc::waitpid(child, &raw mut status, 0) < 0 {}
        if status != 0 {
            let (code, signal) = (libc::WEXITSTATUS(status), libc::WTERMSIG(status));
            let text =
                format!("a child of the storm: exit {code} (100 + the step that hung), signal {signal}\n");
            libc::write(2, text.as_ptr().cast(), text.len());
            libc::_exit(1);
        }
    }
    CHILDREN.fetch_add(1, Relaxed);
}

/// A signal handler over whatever the thread does: forks, and uses what a handler's child may.
extern "C" fn over(_: i32) {
    // SAFETY: the errno of this thread.
    let errno = unsafe { *libc::__errno_location() };
    IN_HANDLER.set(true);
    fork(|| {
        step(50);
        std::hint::black_box(KEY.is_enabled());
        step(51);
        dormouse::probe!("storm.probe", n = 3);
    });
    IN_HANDLER.set(false);
    FROM_HANDLERS.fetch_add(1, Relaxed);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// The work of the host's own fork handlers; nothing over a signal handler, where they may not
/// allocate.
fn of_host(age: usize) {
    if IN_HANDLER.get() {
        return;
    }
    if std::hint::black_box(toggle()) {
        WORKED[age].fetch_add(1, Relaxed);
    }
    std::hint::black_box((dormouse::keys::all().len(), Group::new("storm").name()));
}

extern "C" fn older() {
    of_host(0);
}

extern "C" fn younger() {
    of_host(1);
}

extern "C" fn install_older() {
    // SAFETY: plain functions of the program.
    unsafe { libc::pthread_atfork(Some(older), Some(older), Some(older)) };
}

/// Runs before every constructor.
#[used]
#[unsafe(link_section = ".preinit_array")]
static OLDER: extern "C" fn() = install_older;

/// Runs the hot paths, which allocate nothing.
fn hot() {
    let group = Group::new("storm");
    while !END.load(Relaxed) {
        let _entered = group.enter();
        dormouse::probe!("storm.probe", n = 4);
        std::hint::black_box((unlikely!(OTHER), dormouse::clock::thread_cpu_ns()));
    }
}

/// Is in this state again and again, and forks now and then.
fn storm(state: fn()) {
    for round in 1_u64.. {
        if END.load(Relaxed) {
            return;
        }
        state();
        if round.is_multiple_of(16) {
            fork(everything);
        }
    }
}

fn main() {
    let place = tempfile::tempdir().unwrap();
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("DORMOUSE_RUNTIME_DIR", place.path()) };
    // SAFETY: plain functions of the program.
    unsafe { libc::pthread_atfork(Some(younger), Some(younger), Some(younger)) };
    // SAFETY: a handler that does what handlers may, and a fork.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = over as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
    let agent = dormouse::init().unwrap();
    let length = dormouse_testkit::stress_time();
    // SAFETY: takes a number. The default action ends the process.
    unsafe { libc::alarm(length.as_secs() as u32 + 4 * PATIENCE) };
    let end = Instant::now() + length;
    let states: [fn(); 7] = [
        || _ = toggle(),
        || _ = dormouse::keys::all(),
        count,
        read,
        trace,
        budget,
        || {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            // New ones, then known ones.
            let _ = Group::new(&format!("storm {}", NEXT.fetch_add(1, Relaxed) % 900)).name();
        },
    ];
    let socket = agent.path().to_owned();
    let asking = std::thread::spawn(move || {
        while !END.load(Relaxed) {
            ask(&socket, 1);
        }
    });
    let threads: Vec<_> = states.into_iter().map(|state| std::thread::spawn(move || storm(state))).collect();
    let hot = std::thread::spawn(hot);
    let counts = [&CHILDREN, &FROM_HANDLERS, &WORKED[1]];
    while Instant::now() < end || counts.iter().any(|count| count.load(Relaxed) <= 10) {
        // SAFETY: the thread runs until `END` is set, below, on this thread.
        unsafe { libc::pthread_kill(hot.as_pthread_t(), libc::SIGUSR1) };
        std::thread::sleep(Duration::from_millis(20));
    }
    END.store(true, Relaxed);
    for thread in threads.into_iter().chain([asking, hot]) {
        thread.join().unwrap();
    }
    let [older, younger] = [WORKED[0].load(Relaxed), WORKED[1].load(Relaxed)];
    let (children, handlers) = (CHILDREN.load(Relaxed), FROM_HANDLERS.load(Relaxed));
    println!(
        "{children} children, {handlers} forks by handlers; keys switched by {younger} younger and {older} older handlers"
    );
    // The older ones run inside of the fork's locks, and are refused.
    assert!(children > 10 && handlers > 10 && younger > 10 && older == 0);
}
