//! A storm: profiles at 1 kHz, begun and ended all the time, over threads that panic, load and
//! unload objects, fork, start threads, allocate, run generated code that is unmapped after it,
//! take signals of their own, and wait in the system calls that no kernel restarts. Some have their
//! stacks copied. Nothing crashes, hangs or is lost. No test harness: the process forks. SIGALRM
//! ends it if it hangs.
//!
//! The kernel checks timers of CPU time on its own tick alone, 250 times a second or less often. So
//! each thread of the storm has a second timer, which interrupts it at 1 kHz also while it sleeps.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::thread::JoinHandleExt as _;
use std::panic::{catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use dormouse_profile::{Options, Profile, Profiling};
use dormouse_sys::process::identity;
use dormouse_testkit::{skip, spin_for, storm_time, thread_cpu};

/// Longer than anything takes that does not hang.
const PATIENCE: u32 = 120;
/// CPU time of a thread that a profile may not have seen yet: its last sample is a few ticks old.
const UNSEEN: Duration = Duration::from_millis(100);

/// The time between two ticks of a thread of the storm.
const TICK_NS: i64 = 1_000_000;

/// Where generated code is mapped, and the length of that.
const GENERATED: usize = 0x2000_0000_0000;
const PAGE: usize = 4096;

/// Set in the process without handlers of the host's.
const QUIET: &str = "DORMOUSE_STORM_QUIET";

static END: AtomicBool = AtomicBool::new(false);
/// Signals of the host's own that its handler took.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// Signals of ours that the host's handler handed on to ours.
static CHAINED: AtomicU64 = AtomicU64::new(0);
/// The handler that the host found in place of the default, as `sa_sigaction`.
static OURS: AtomicU64 = AtomicU64::new(0);
/// Threads that have ticks of their own.
static TICKING: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: i32) {
    TAKEN.fetch_add(1, Relaxed);
}

/// The host's handler for our signal, which calls the one that it found.
extern "C" fn chain(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    CHAINED.fetch_add(1, Relaxed);
    let there = std::ptr::with_exposed_provenance::<()>(OURS.load(Relaxed) as usize);
    // SAFETY: what `sigaction` gave: a handler with SA_SIGINFO.
    unsafe {
        let there: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = std::mem::transmute(there);
        there(signal, info, context);
    }
}

/// Sets an action, and gives the one that was there.
fn action(signal: i32, handler: usize, flags: i32) -> libc::sigaction {
    // SAFETY: all zeros is a valid action; the handlers do what handlers may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags | libc::SA_RESTART;
        assert_eq!(libc::sigaction(signal, &raw const action, &raw mut before), 0);
        before
    }
}

/// The signals that have a handler, as bits.
fn caught() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

/// Has the handler of samples interrupt the calling thread a thousand times a second, until this is
/// dropped: by a timer with the same signal and value as the profile's for this thread.
struct Ticks(Option<libc::timer_t>);

impl Ticks {
    fn begin() -> Self {
        // A thread that has a block of dormouse's is sampled at once.
        dormouse_sys::thread::current();
        let Some((signal, value)) = profiled_by(identity::tid()) else { return Self(None) };
        // SAFETY: zeros are a value of these; the timer is deleted by the thread that it
        // interrupts.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal;
            event.sigev_value.sival_ptr = std::ptr::without_provenance_mut(value);
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer = std::ptr::null_mut();
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer), 0);
            let time = |tv_nsec| libc::timespec { tv_sec: 0, tv_nsec };
            // Some threads live for less than a tick.
            let times = libc::itimerspec { it_interval: time(TICK_NS), it_value: time(TICK_NS / 10) };
            assert_eq!(libc::timer_settime(timer, 0, &raw const times, std::ptr::null_mut()), 0);
            TICKING.fetch_add(1, Relaxed);
            Self(Some(timer))
        }
    }
}

impl Drop for Ticks {
    fn drop(&mut self) {
        if let Some(timer) = self.0 {
            // SAFETY: made by `begin`.
            unsafe { libc::timer_delete(timer) };
        }
    }
}

/// The signal and the value of the timer that a profile has made for a thread (proc(5),
/// `/proc/PID/timers`: four lines each).
fn profiled_by(tid: u32) -> Option<(i32, usize)> {
    let timers = std::fs::read_to_string("/proc/self/timers").ok()?;
    let mut lines = timers.lines().filter(|line| !line.starts_with("ID: "));
    let notifies = format!("notify: signal/tid.{tid}");
    while let (Some(signal), Some(notify), Some(clock)) = (lines.next(), lines.next(), lines.next()) {
        // A clock of CPU time has a negative number.
        if notify == notifies && clock.starts_with("ClockID: -") {
            let (number, value) = signal.strip_prefix("signal: ")?.split_once('/')?;
            return Some((number.parse().ok()?, usize::from_str_radix(value, 16).ok()?));
        }
    }
    None
}

fn options(hz: u32) -> Options {
    let mut options = Options::default();
    options.hz = hz;
    options
}

#[inline(never)]
fn throw(depth: u32) -> u32 {
    if depth == 0 {
        resume_unwind(Box::new(7_u32));
    }
    throw(depth - 1) + black_box(1)
}

fn panics() {
    let thrown = catch_unwind(|| throw(30)).unwrap_err();
    assert_eq!(thrown.downcast_ref(), Some(&7_u32));
}

/// Loads and unloads an object of the system's that nobody else uses.
fn loads() {
    // SAFETY: the names end in a zero; these libraries have no constructors that matter.
    unsafe {
        for name in [c"libanl.so.1", c"libresolv.so.2", c"libutil.so.1", c"libnss_compat.so.2"] {
            let object = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
            if !object.is_null() {
                black_box(libc::dlsym(object, c"nobody".as_ptr()));
                assert_eq!(libc::dlclose(object), 0);
            }
        }
    }
}

fn executes() {
    assert!(Command::new("true").status().unwrap().success());
}

/// The child uses time, which belongs to no profile, and ends.
fn forks() {
    assert!(dormouse_testkit::fork(|| spin_for(Duration::from_millis(2))).success());
}

fn threads() {
    let live = || {
        let _ticks = Ticks::begin();
        spin_for(Duration::from_micros(300));
    };
    let threads: Vec<_> = (0..8).map(|_| thread::spawn(live)).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

fn allocates() {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for round in 0..500_usize {
        let bytes = 16 << (round * 7 % 13);
        kept.push(black_box(vec![1; bytes]));
        if round % 3 == 0 {
            kept.swap_remove(round * 31 % kept.len());
        }
    }
}

/// Runs generated code for some milliseconds, and unmaps it.
fn generates() {
    // mov ecx, 4000000; 2: dec ecx; jnz 2b; ret
    const CODE: [u8; 10] = [0xb9, 0x00, 0x09, 0x3d, 0x00, 0xff, 0xc9, 0x75, 0xfc, 0xc3];
    if std::env::consts::ARCH != "x86_64" {
        return spin_for(Duration::from_millis(1));
    }
    // SAFETY: a mapping of our own, whose code keeps to the calling convention.
    unsafe {
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // Where nothing else is.
        let page = libc::mmap(std::ptr::without_provenance_mut(GENERATED), PAGE, all, flags, -1, 0);
        assert_eq!(page.addr(), GENERATED);
        std::ptr::copy_nonoverlapping(CODE.as_ptr(), page.cast(), CODE.len());
        let run: extern "C" fn() = std::mem::transmute(page);
        run();
        assert_eq!(libc::munmap(page, PAGE), 0);
    }
}

fn profiles() {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Relaxed) as usize;
    let mut options = options([1000, 19, 250, 99][next % 4]);
    options.unwind = next % 8 < 3;
    let profiling = Profiling::start(&options).unwrap();
    spin_for(Duration::from_millis(3));
    black_box(profiling.read());
}

/// Waits in each call that the kernel never restarts after a handler (signal(7)), and says how many
/// gave up because of one.
fn interrupted() -> u64 {
    const MS: i32 = 1;
    let time = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let mut none: libc::epoll_event = libc::epoll_event { events: 0, u64: 0 };
    let mut calls = 0;
    // SAFETY: valid places, descriptors of our own, and sets of signals that are empty.
    unsafe {
        let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        let mut sockets = [0; 2];
        libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, sockets.as_mut_ptr());
        let limit = libc::timeval { tv_sec: 0, tv_usec: 1000 };
        let limit_at = (&raw const limit).cast();
        let limit_size = size_of::<libc::timeval>() as u32;
        libc::setsockopt(sockets[0], libc::SOL_SOCKET, libc::SO_RCVTIMEO, limit_at, limit_size);
        let semaphore = libc::semget(libc::IPC_PRIVATE, 1, 0o600);
        let mut down = libc::sembuf { sem_num: 0, sem_op: -1, sem_flg: 0 };
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        let mut polled = libc::pollfd { fd: sockets[0], events: libc::POLLIN, revents: 0 };
        let mut byte = 0_u8;
        let waits: [&mut dyn FnMut() -> i32; 8] = [
            &mut || libc::epoll_wait(epoll, &raw mut none, 1, MS),
            &mut || libc::poll(&raw mut polled, 1, MS),
            &mut || libc::nanosleep(&raw const time, std::ptr::null_mut()),
            &mut || match libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                0,
                &raw const time,
                std::ptr::null_mut(),
            ) {
                0 => 0,
                error => {
                    *libc::__errno_location() = error;
                    -1
                }
            },
            &mut || {
                libc::select(0, std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut(), &mut {
                    limit
                })
            },
            &mut || libc::syscall(libc::SYS_semtimedop, semaphore, &raw mut down, 1, &raw const time) as i32,
            &mut || libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const time),
            &mut || libc::recv(sockets[0], (&raw mut byte).cast(), 1, 0) as i32,
        ];
        let mut waits = waits;
        while !END.load(Relaxed) {
            for wait in &mut waits {
                // Some work, so that the thread is sampled.
                spin_for(Duration::from_micros(200));
                if wait() < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) {
                    calls += 1;
                }
            }
        }
        libc::semctl(semaphore, 0, libc::IPC_RMID);
        for descriptor in [epoll, sockets[0], sockets[1]] {
            libc::close(descriptor);
        }
    }
    calls
}

/// Requests over a socket, and how many were answered.
fn requests() -> u64 {
    let (mut client, mut service) = UnixStream::pair().unwrap();
    let serving = thread::spawn(move || {
        let mut request = [0; 64];
        // The end of the client is the end.
        while let Ok(1..) = service.read(&mut request[..1]) {
            service.read_exact(&mut request[1..]).unwrap();
            service.write_all(&request).unwrap();
        }
    });
    let (mut answered, mut answer) = (0_u64, [0; 64]);
    while !END.load(Relaxed) {
        let request = [answered as u8; 64];
        client.write_all(&request).unwrap();
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer, request);
        answered += 1;
    }
    drop(client);
    serving.join().unwrap();
    answered
}

/// Is at it until the end, and says how often.
fn storm(name: &str, at_it: fn()) -> thread::JoinHandle<u64> {
    let work = move || {
        let _ticks = Ticks::begin();
        let mut rounds = 0;
        while !END.load(Relaxed) {
            at_it();
            rounds += 1;
        }
        rounds
    };
    thread::Builder::new().name(name.to_owned()).spawn(work).unwrap()
}

fn time_of(profile: &Profile, thread: &str) -> Duration {
    let rows = profile.samples.iter().filter(|row| profile.threads[row.thread as usize].name == thread);
    Duration::from_nanos(rows.map(|row| row.values[1]).sum())
}

/// The part of the storm in which no handler but ours runs, and no child ends: whatever interrupts
/// a call is ours. (The SIGCHLD of a child whose parent blocks signals just then, as the C library
/// does while it forks, goes to another thread, and wakes it from a call though nobody handles it.)
fn quiet(length: Duration) {
    let profiling = Profiling::start(&options(1000)).unwrap();
    let threads = [("threads", storm("threads", threads)), ("profiles", storm("profiles", profiles))];
    let waits: Vec<_> = (0..4).map(|_| thread::spawn(interrupted)).collect();
    thread::sleep(length);
    END.store(true, Relaxed);
    let gave_up: u64 = waits.into_iter().map(|waits| waits.join().unwrap()).sum();
    for (_, thread) in threads {
        thread.join().unwrap();
    }
    let samples = profiling.read().coverage.samples;
    println!("{gave_up} calls interrupted, {samples} samples");
    assert!(samples > 0 && gave_up <= 1);
}

fn main() {
    let length = storm_time();
    // SAFETY: takes a number. The default action ends the process.
    unsafe { libc::alarm(length.as_secs() as u32 + PATIENCE) };
    if std::env::var_os(QUIET).is_some() {
        return quiet(length);
    }
    let before = caught();
    let mut unwound = options(1000);
    unwound.unwind = true;
    let profiling = match Profiling::start(&unwound) {
        Ok(profiling) => profiling,
        Err(error) => return skip(format!("no profiles here: {error}")),
    };
    let is_new = |signal: &i32| caught() & !before & (1 << (signal - 1)) != 0;
    // The C library has taken one of those below for its threads.
    let ours = [libc::SIGURG].into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX()).find(is_new).unwrap();
    let own = libc::SIGRTMIN() + 1;
    assert_eq!(action(own, count as *const () as usize, 0).sa_sigaction, libc::SIG_DFL);

    let (end_hog, hog_ended) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let hog = thread::Builder::new().name("storm-hog".to_owned()).spawn(move || {
        let ticks = Ticks::begin();
        while !END.load(Relaxed) {
            spin_for(Duration::from_millis(1));
        }
        drop(ticks);
        tell.send(thread_cpu()).unwrap();
        hog_ended.recv().unwrap_err();
    });
    let hog = hog.unwrap();
    let states: [(&str, fn()); 9] = [
        ("panics", panics),
        ("generates", generates),
        ("loads", loads),
        ("executes", executes),
        ("forks", forks),
        ("threads", threads),
        ("allocates", allocates),
        ("allocates too", allocates),
        ("profiles", profiles),
    ];
    let threads = states.map(|(name, at_it)| (name, storm(name, at_it)));
    let asks = thread::spawn(requests);
    let quiet = Command::new(std::env::current_exe().unwrap()).env(QUIET, "").spawn();

    // Signals of the host's own, and ours from another sender than a timer: to the threads that
    // make no system calls which a handler interrupts.
    let end = Instant::now() + length;
    let mut sent = 0;
    // On a busy machine longer, until enough has happened to show something.
    while Instant::now() < end || sent < 400 {
        for (_, thread) in threads.iter().filter(|(name, _)| ["panics", "allocates"].contains(name)) {
            // SAFETY: the threads run until `END` is set, below.
            unsafe {
                assert_eq!(libc::pthread_kill(thread.as_pthread_t(), own), 0);
                assert_eq!(libc::pthread_kill(thread.as_pthread_t(), ours), 0);
            }
            sent += 1;
        }
        thread::sleep(Duration::from_millis(2));
    }
    END.store(true, Relaxed);
    for (name, thread) in threads {
        println!("{name}: {}", thread.join().unwrap());
    }
    let answered = asks.join().unwrap();
    assert!(quiet.unwrap().wait().unwrap().success());
    let used = told.recv().unwrap();
    let profile = profiling.read();
    println!("{answered} requests answered, {:?}", profile.coverage);
    assert!(answered > 0);
    assert_eq!(TAKEN.load(Relaxed), sent, "signals of the host's");
    let seen = time_of(&profile, "storm-hog");
    println!("storm-hog: {seen:?} of {used:?}");
    assert!(seen <= used + UNSEEN && seen + UNSEEN >= used, "{seen:?} of {used:?}");
    let ticking = TICKING.load(Relaxed);
    println!("{ticking} threads had ticks at 1 kHz");
    if profiled_by(identity::tid()).is_some() {
        // All of the storm, and some of those that it starts.
        assert!(ticking > 10, "{ticking}");
    }
    let is_generated = |address: u64| (GENERATED..GENERATED + PAGE).contains(&(address as usize));
    let is_met = profile.samples.iter().any(|row| profile.stack(row.stack).any(is_generated));
    assert!(is_met || std::env::consts::ARCH != "x86_64", "generated code has no samples");
    let coverage = &profile.coverage;
    assert!(coverage.samples > 0 && coverage.refused == 0);
    // In its first moments few functions are known, and there is no room to copy all stacks.
    assert!(coverage.ended * 2 > coverage.samples, "{coverage:?}");

    // The host takes our signal, and calls the handler that it found: none of ours is its end,
    // those of timers neither, of which some come until the sampler notices.
    // SAFETY: all zeros is a valid action, which is replaced by the one that is there; this thread.
    unsafe {
        let mut there: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::sigaction(ours, std::ptr::null(), &raw mut there), 0);
        OURS.store(there.sa_sigaction as u64, Relaxed);
        action(ours, chain as *const () as usize, libc::SA_SIGINFO | libc::SA_ONSTACK);
        assert_eq!(libc::pthread_kill(libc::pthread_self(), ours), 0);
    }
    assert!(CHAINED.load(Relaxed) > 0);
    spin_for(Duration::from_millis(500));
    let again = Profiling::start(&options(1000)).unwrap();
    spin_for(Duration::from_millis(500));
    let seen = again.read();
    assert!(seen.coverage.samples > 0, "{:?}", seen.coverage);
    println!(
        "{} signals by the host's handler to ours; {:?}",
        CHAINED.load(Relaxed),
        profiling.read().coverage.notes
    );
    drop((profiling, again, end_hog));
    hog.join().unwrap();
}
