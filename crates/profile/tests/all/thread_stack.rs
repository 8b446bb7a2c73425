//! The stack of one thread, whatever the thread does.

#![cfg(not(dormouse_fallback))]

use std::hint::black_box;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_profile::{NameFinder, NoStack, Node, Profile, StackReader, StackWay, ThreadStack};
use dormouse_sys::process::identity;
use dormouse_testkit::{Filter, HANG, eventually, fork, in_child};

/// The functions of a stack, the innermost first.
fn names(stack: &ThreadStack) -> Vec<String> {
    let stacks = stack.frames.iter().map(|&address| Node { parent: 0, address }).collect();
    let profile = Profile { stacks, ..Profile::default() };
    let symbols = NameFinder::own().unwrap().symbols(&profile);
    stack
        .frames
        .iter()
        .flat_map(|&address| symbols.get(address))
        .map(|frame| frame.function.clone())
        .collect()
}

/// Reads the stack of a thread that does `work` until the function `function` is on it.
fn is_seen(work: impl FnOnce() + Send + 'static, function: &str) -> (Vec<String>, StackWay) {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        tell.send(identity::tid()).unwrap();
        work();
    });
    let tid = told.recv().unwrap();
    let mut reader = StackReader::new().unwrap();
    let mut last = Vec::new();
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        if let Ok(stack) = reader.read(tid) {
            last = names(&stack);
            if last.iter().any(|name| name.contains(function)) {
                return (last, stack.way);
            }
        }
        // Each reading interrupts the thread, which has to get on.
        thread::sleep(Duration::from_millis(1));
    }
    panic!("{function} is not on the stack: {last:#?}");
}

#[inline(never)]
fn sleeps_long() {
    thread::sleep(Duration::from_secs(600));
    black_box(());
}

#[inline(never)]
fn spins_on(over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
    black_box(());
}

#[inline(never)]
fn waits_for_lock(lock: &Mutex<u32>) {
    *lock.lock().unwrap() += 1;
    black_box(());
}

#[inline(never)]
fn reads_nothing(mut from: impl Read) {
    let mut bytes = [0; 16];
    let _ = from.read(&mut bytes);
    black_box(bytes);
}

#[inline(never)]
fn dives(depth: u32, then: &dyn Fn()) -> u64 {
    let bytes = black_box([depth as u8; 200]);
    let below = if depth == 0 {
        then();
        0
    } else {
        dives(depth - 1, then)
    };
    below + u64::from(black_box(bytes)[7])
}

#[test]
fn a_sleep_is_seen_with_its_caller() {
    let (names, way) = is_seen(sleeps_long, "sleeps_long");
    assert_eq!(way, StackWay::Tables, "{names:#?}");
    assert!(names.iter().any(|name| name.contains("thread_start") || name.contains("clone")), "{names:#?}");
    assert!(names.iter().all(|name| !name.starts_with('(')), "it is whole: {names:#?}");
}

#[test]
fn a_thread_that_runs_is_asked() {
    in_child(|| {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let (names, _) = is_seen(move || spins_on(&ends), "spins_on");
        assert!(
            names.iter().any(|name| name.contains("thread_start") || name.contains("clone")),
            "{names:#?}"
        );
        over.store(true, Ordering::Relaxed);
        // Nothing stays behind.
        let timers = std::fs::read_to_string("/proc/self/timers").unwrap_or_default();
        assert!(!timers.contains("ID: "), "{timers}");
    });
}

#[test]
fn readers_take_turns() {
    in_child(|| {
        let over = Arc::new(AtomicBool::new(false));
        let spin = || {
            let (tell, told) = mpsc::channel();
            let ends = Arc::clone(&over);
            thread::spawn(move || {
                tell.send(identity::tid()).unwrap();
                spins_on(&ends);
            });
            told.recv().unwrap()
        };
        let tid = spin();
        // Until each reader has found it, and one has met another.
        let (busy, begun) = (AtomicU32::new(0), Instant::now());
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let (mut reader, mut found) = (StackReader::new().unwrap(), 0);
                    while found == 0 || busy.load(Ordering::Relaxed) == 0 {
                        assert!(begun.elapsed() < HANG, "{found} stacks, and nobody was busy");
                        match reader.read(tid) {
                            Ok(stack) => {
                                assert!(names(&stack).iter().any(|name| name.contains("spins_on")));
                                found += 1;
                            }
                            Err(NoStack::Busy) => {
                                busy.fetch_add(1, Ordering::Relaxed);
                                thread::sleep(Duration::from_millis(1));
                            }
                            Err(NoStack::Silent) => {}
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                });
            }
        });
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn locks_reads_and_waits_are_seen() {
    let lock = Arc::new(Mutex::new(0));
    let held = lock.lock().unwrap();
    let theirs = Arc::clone(&lock);
    is_seen(move || waits_for_lock(&theirs), "waits_for_lock");
    drop(held);
    let (from, mut to) = std::os::unix::net::UnixStream::pair().unwrap();
    is_seen(move || reads_nothing(from), "reads_nothing");
    to.write_all(b"x").unwrap();
    let pair = Arc::new((Mutex::new(false), Condvar::new()));
    let theirs = Arc::clone(&pair);
    let waits = move || drop(theirs.1.wait_while(theirs.0.lock().unwrap(), |over| !*over).unwrap());
    is_seen(waits, "condvar");
    *pair.0.lock().unwrap() = true;
    pair.1.notify_all();
}

#[test]
fn deep_stacks_are_seen_as_far_as_known() {
    let (names, _) = is_seen(|| _ = dives(60, &sleeps_long), "sleeps_long");
    assert_eq!(names.iter().filter(|name| name.contains("dives")).count(), 61, "{names:#?}");
    let (names, _) = is_seen(|| _ = dives(1500, &sleeps_long), "sleeps_long");
    assert!(names.iter().filter(|name| name.contains("dives")).count() > 60, "{names:#?}");
    assert!(names.last().is_some_and(|last| last.starts_with("(deeper than ")), "{names:#?}");
}

#[test]
fn a_thread_that_has_ended_is_told() {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(identity::tid()).unwrap()).join().unwrap();
    let tid = told.recv().unwrap();
    eventually(|| StackReader::new().unwrap().read(tid) == Err(NoStack::Ended));
}

#[test]
fn threads_may_end_in_the_midst() {
    in_child(|| {
        let end = Instant::now() + Duration::from_secs(2);
        let (tell, told) = mpsc::sync_channel(4);
        let spawner = thread::spawn(move || {
            while Instant::now() < end {
                let tell = tell.clone();
                let short = move |n: u64| {
                    let _ = tell.try_send(identity::tid());
                    let begun = Instant::now();
                    while begun.elapsed() < Duration::from_micros(300 * (n % 4)) {}
                    thread::sleep(Duration::from_micros(100 * (n % 5)));
                };
                thread::scope(|scope| {
                    for n in 0..3 {
                        scope.spawn({
                            let short = short.clone();
                            move || short(n)
                        });
                    }
                });
            }
        });
        let mut reader = StackReader::new().unwrap();
        let (mut found, mut gone) = (0, 0);
        while let Ok(tid) = told.recv() {
            match reader.read(tid) {
                Ok(stack) => found += usize::from(!stack.frames.is_empty()),
                Err(_) => gone += 1,
            }
        }
        spawner.join().unwrap();
        assert!(found > 0 && gone > 0, "{found} {gone}");
    });
}

#[test]
fn a_thread_that_blocks_signals_says_so() {
    in_child(|| {
        let over = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let ends = Arc::clone(&over);
        let thread = thread::spawn(move || {
            // SAFETY: blocks all signals of this thread.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
            }
            tell.send(identity::tid()).unwrap();
            spins_on(&ends);
        });
        let tid = told.recv().unwrap();
        assert_eq!(StackReader::new().unwrap().read(tid), Err(NoStack::Blocked));
        over.store(true, Ordering::Relaxed);
        thread.join().unwrap();
    });
}

#[test]
fn a_full_limit_is_told() {
    in_child(|| {
        let over = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let ends = Arc::clone(&over);
        thread::spawn(move || {
            tell.send(identity::tid()).unwrap();
            spins_on(&ends);
        });
        let tid = told.recv().unwrap();
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a valid place.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_SIGPENDING, &raw const none) }, 0);
        let mut reader = StackReader::new().unwrap();
        eventually(|| match reader.read(tid) {
            Err(NoStack::Refused(why)) => why.contains("ulimit -i"),
            other => panic!("{other:?}"),
        });
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn sleeping_threads_are_read_under_a_filter() {
    in_child(|| {
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            tell.send(identity::tid()).unwrap();
            sleeps_long();
        });
        let tid = told.recv().unwrap();
        // One that runs is asked by a timer.
        eventually(|| {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
        });
        Filter::kill(&[libc::SYS_process_vm_readv, libc::SYS_timer_create, libc::SYS_tgkill]).install();
        let mut reader = StackReader::new().unwrap();
        eventually(|| {
            reader.read(tid).is_ok_and(|stack| names(&stack).iter().any(|name| name.contains("sleeps_long")))
        });
    });
}

#[test]
fn threads_that_run_are_asked_under_a_filter() {
    in_child(|| {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let (tell, told) = mpsc::channel();
        // The handler makes no call but its return.
        let filtered = move || {
            Filter::kill(&[
                libc::SYS_process_vm_readv,
                libc::SYS_prctl,
                libc::SYS_clock_gettime,
                libc::SYS_getpid,
                libc::SYS_gettid,
                libc::SYS_rt_sigprocmask,
            ])
            .install();
            tell.send(()).unwrap();
            spins_on(&ends);
        };
        let (tell_tid, told_tid) = mpsc::channel();
        thread::spawn(move || {
            tell_tid.send(identity::tid()).unwrap();
            filtered();
        });
        let tid = told_tid.recv().unwrap();
        told.recv().unwrap();
        let mut reader = StackReader::new().unwrap();
        eventually(|| {
            reader.read(tid).is_ok_and(|stack| names(&stack).iter().any(|name| name.contains("spins_on")))
        });
        // The thread spins on: to end it takes calls that it may not make.
    });
}

#[test]
fn a_child_of_a_fork_asks_its_own() {
    in_child(|| {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        is_seen(move || spins_on(&ends), "spins_on");
        let status = fork(|| {
            let over = Arc::new(AtomicBool::new(false));
            let ends = Arc::clone(&over);
            is_seen(move || spins_on(&ends), "spins_on");
        });
        assert!(status.success(), "{status:?}");
        over.store(true, Ordering::Relaxed);
    });
}

/// The number of calls that a signal has ended.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Sleeps without beginning again, in each way that the kernel does not begin again.
fn sleeps_by_turns(over: &AtomicBool) {
    let count = |answer: i32| {
        let is_ended = answer < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR);
        ENDED.fetch_add(u64::from(is_ended), Ordering::Relaxed);
    };
    let short = libc::timespec { tv_sec: 0, tv_nsec: 1_500_000 };
    // SAFETY: valid places; the numbers of descriptors are this function's own.
    unsafe {
        let epoll = libc::epoll_create1(0);
        let mut event: libc::epoll_event = std::mem::zeroed();
        let mut semaphore: libc::sem_t = std::mem::zeroed();
        libc::sem_init(&raw mut semaphore, 0, 0);
        let mut n = 0_u32;
        while !over.load(Ordering::Relaxed) {
            n += 1;
            // Some of it runs, so that it is asked, too.
            let begun = Instant::now();
            while n.is_multiple_of(3) && begun.elapsed() < Duration::from_millis(5) {}
            match n % 4 {
                0 => count(libc::nanosleep(&raw const short, std::ptr::null_mut())),
                1 => count(libc::epoll_wait(epoll, &raw mut event, 1, 2)),
                2 => count(libc::poll(std::ptr::null_mut(), 0, 2)),
                _ => {
                    let mut until: libc::timespec = std::mem::zeroed();
                    #[allow(clippy::disallowed_methods, reason = "the library waits until then, too")]
                    libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut until);
                    until.tv_nsec += 2_000_000;
                    until.tv_sec += until.tv_nsec / 1_000_000_000;
                    until.tv_nsec %= 1_000_000_000;
                    count(libc::sem_timedwait(&raw mut semaphore, &raw const until));
                }
            }
        }
        libc::close(epoll);
    }
}

#[test]
fn no_call_of_the_host_is_ended() {
    in_child(|| {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            let over = &over;
            scope.spawn(move || {
                tell.send(identity::tid()).unwrap();
                sleeps_by_turns(over);
            });
            let tid = told.recv().unwrap();
            let mut reader = StackReader::new().unwrap();
            let begun = Instant::now();
            let (mut searched, mut asked) = (0, 0);
            let is_enough = |seen: u32| begun.elapsed() >= Duration::from_secs(3) && seen > 50;
            while !is_enough(searched + asked) && begun.elapsed() < HANG {
                match reader.read(tid) {
                    Ok(stack) if stack.frames.is_empty() => panic!("no frame"),
                    Ok(stack) if stack.way == StackWay::FramePointers => asked += 1,
                    Ok(_) => searched += 1,
                    Err(_) => {}
                }
            }
            over.store(true, Ordering::Relaxed);
            assert!(searched + asked > 50, "{searched} {asked}");
        });
        assert_eq!(ENDED.load(Ordering::Relaxed), 0);
    });
}
