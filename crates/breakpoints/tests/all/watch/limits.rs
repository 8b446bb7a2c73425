//! Obstacles to a watch, and its room for others.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use dormouse_breakpoints::{Coverage, Error, Watch, WatchState, held, refusal};
use dormouse_sys::perf::Error as Refusal;
use dormouse_testkit::{Child, Filter, eventually, skip};

use super::support::{VALUE, in_child, in_child_with, of, of_value, write};
use crate::arch;

/// System calls that a filter does not expect of its program.
const UNKNOWN: [libc::c_long; 4] =
    [libc::SYS_perf_event_open, libc::SYS_process_vm_readv, libc::SYS_getdents64, libc::SYS_ioctl];

static WORDS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Threads that wait until the sender is dropped.
fn waiting_threads(count: usize) -> mpsc::SyncSender<()> {
    let (end, ended) = mpsc::sync_channel::<()>(0);
    let ended = std::sync::Arc::new(std::sync::Mutex::new(ended));
    let (tell, told) = mpsc::channel();
    for _ in 0..count {
        let (tell, ended) = (tell.clone(), ended.clone());
        let run = move || {
            tell.send(()).unwrap();
            let _ = ended.lock().map(|ended| ended.recv());
        };
        thread::Builder::new().stack_size(64 * 1024).spawn(run).unwrap();
    }
    (0..count).for_each(|_| told.recv().unwrap());
    end
}

#[test]
fn the_fourth_watch_is_refused_with_names() {
    in_child(|| {
        let mut watches: Vec<Watch> =
            (0..3).map(|n| of(&WORDS[n]).named(&format!("word {n}")).arm().unwrap()).collect();
        let refused = of(&WORDS[3]).named("the fourth").arm().unwrap_err();
        let message = refused.to_string();
        for part in ["the fourth needs 1", "0 are free", "word 0 (1)", "word 2 (1)", "debuggers"] {
            assert!(message.contains(part), "{message}");
        }
        let all = of(&WORDS[3]).all_slots().arm().unwrap();
        WORDS[3].store(1, Ordering::Relaxed);
        assert_eq!((all.report().hits, held().len()), (1, 4));
        drop(all);
        drop(watches.remove(0));
        drop(of(&WORDS[3]).arm().unwrap());
    });
}

#[test]
fn a_thousand_threads_are_armed_at_once() {
    in_child(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a local place; this process's own limit.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            limit.rlim_cur = limit.rlim_max.min(8192);
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
        if limit.rlim_cur < 2048 {
            return skip("so many descriptors are not allowed here");
        }
        let end = waiting_threads(1000);
        let mut best = (Duration::MAX, Duration::MAX);
        for _ in 0..5 {
            let begun = Instant::now();
            let watch = of_value().arm().unwrap();
            let armed = begun.elapsed();
            assert!(watch.report().coverage.threads_armed > 1000);
            write(1);
            assert_eq!(watch.report().hits, 1);
            let begun = Instant::now();
            watch.close();
            best = (best.0.min(armed), best.1.min(begun.elapsed()));
        }
        println!("1000 threads: armed in {:?}, disarmed in {:?}", best.0, best.1);
        drop(end);
    });
}

#[test]
fn few_descriptors_refuse_the_whole() {
    in_child(|| {
        let end = waiting_threads(100);
        let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
        // SAFETY: this process's own limit.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        let refused = of_value().arm().unwrap_err();
        assert!(matches!(refused, Error::Thread { source: Refusal::NoDescriptor(_), .. }), "{refused}");
        assert!(refused.to_string().contains("ulimit -n"), "{refused}");
        write(1);
        assert!(held().is_empty());
        drop(end);
    });
}

#[test]
fn a_filter_refuses_watches() {
    in_child(|| {
        Filter::kill(&[libc::SYS_perf_event_open]).install();
        let refused = of_value().arm().unwrap_err();
        assert!(
            matches!(refused, Error::Filtered) && refused.to_string().contains("from outside"),
            "{refused}"
        );
    });
}

#[test]
fn a_filter_that_comes_later_kills_nobody() {
    in_child(|| {
        let watch = of_value().arm().unwrap();
        write(1);
        Filter::kill(&UNKNOWN).install_on_all_threads();
        write(2);
        let report = watch.close();
        assert_eq!((report.hits, report.delivered, report.coverage.unread), (2, 2, 1), "{report:?}");
        assert_eq!((report.sites[0].hits, report.sites[0].new), (2, None), "{report:?}");
    });
}

#[test]
fn a_filter_ends_what_would_rest() {
    in_child(|| {
        let pinned = of_value().rate(10).arm().unwrap();
        let flexible = of(&WORDS[0]).rate(10).flexible().arm().unwrap();
        Filter::kill(&UNKNOWN).install_on_all_threads();
        eventually(|| {
            write(1);
            WORDS[0].fetch_add(1, Ordering::Relaxed);
            pinned.is_over() && flexible.is_over()
        });
        for report in [pinned.report(), flexible.report()] {
            assert!(report.coverage.over_because.unwrap().contains("filter"), "{report:?}");
            assert_eq!((report.state, report.coverage.threads_armed), (WatchState::Over, 0));
        }
    });
}

fn block(how: libc::c_int) {
    // SAFETY: this thread's own mask, from a local set.
    unsafe {
        let mut only = std::mem::zeroed();
        libc::sigemptyset(&raw mut only);
        libc::sigaddset(&raw mut only, libc::SIGTRAP);
        libc::pthread_sigmask(how, &raw const only, std::ptr::null_mut());
    }
}

/// Limits the memory of this process to what it has, and takes all blocks that are large enough for
/// the keeper's work, until they are dropped.
fn take_memory() -> Vec<Vec<u8>> {
    let mut taken = Vec::with_capacity(1 << 16);
    limit_memory(1);
    while taken.len() < taken.capacity() {
        let mut block = Vec::new();
        if block.try_reserve_exact(16 * 1024).is_err() {
            break;
        }
        taken.push(block);
    }
    taken
}

fn limit_memory(bytes: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: this process's own limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
}

#[test]
fn a_report_without_memory_keeps_the_last_figures() {
    in_child(|| {
        let watch = of_value().arm().unwrap();
        block(libc::SIG_BLOCK);
        (0..3).for_each(write);
        eventually(|| watch.report().lost == 3);
        let before = watch.report();
        assert_eq!((before.hits, before.lost, before.coverage.stale_because), (3, 3, None));
        let taken = take_memory();
        let stale = watch.report();
        limit_memory(libc::RLIM_INFINITY);
        drop(taken);
        let Coverage { armed_ns, wall_ns, stale_because, .. } = stale.coverage;
        assert!(stale_because.unwrap().contains("memory"), "{stale:?}");
        assert_eq!((stale.hits, stale.lost, stale.state), (3, 3, WatchState::Armed));
        assert_eq!((armed_ns, wall_ns), (before.coverage.armed_ns, before.coverage.wall_ns));
        write(1);
        let after = watch.close();
        assert_eq!((after.hits, after.coverage.stale_because), (4, None), "{after:?}");
        assert!(after.coverage.wall_ns > wall_ns, "{after:?}");
    });
}

#[test]
fn blocked_signals_come_late_and_are_counted() {
    in_child(|| {
        let watch = of_value().arm().unwrap();
        block(libc::SIG_BLOCK);
        (0..3).for_each(write);
        assert_eq!(watch.report().delivered, 0);
        block(libc::SIG_UNBLOCK);
        // Not on their way any more.
        eventually(|| watch.report().lost == 2);
        let report = watch.report();
        assert_eq!((report.hits, report.delivered, report.lost, report.coverage.late), (3, 1, 2, 1));
        assert_eq!((report.sites[0].ip, report.sites[0].new), (0, Some(2)), "the place is not known");
    });
}

#[test]
fn a_hosts_handler_keeps_its_traps() {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    extern "C" fn taken(_: libc::c_int) {
        TAKEN.fetch_add(1, Ordering::Relaxed);
    }
    // Before anything of dormouse's: `in_child` arms.
    dormouse_testkit::in_child(|| {
        // SAFETY: a handler that adds to an atomic.
        unsafe { libc::signal(libc::SIGTRAP, taken as *const () as usize) };
        let watch = match of_value().arm() {
            Ok(watch) => watch,
            Err(error) => return skip(error),
        };
        write(1);
        // SAFETY: the handler of above takes it.
        unsafe { libc::raise(libc::SIGTRAP) };
        arch::trap();
        write(2);
        assert!(refusal().is_none(), "it passes on what is not its own");
        assert_eq!((watch.report().delivered, TAKEN.load(Ordering::Relaxed)), (2, 2));
        // A handler that comes later has the signal, so no other watch is armed.
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGTRAP, libc::SIG_IGN) };
        let refused = of_value().arm().unwrap_err();
        assert!(matches!(refused, Error::Signal(_)), "{refused}");
        assert_eq!(refusal().map(|why| why.to_string()), Some(refused.to_string()));
    });
}

#[test]
fn a_watch_without_its_handler_ends() {
    in_child(|| {
        let watch = of_value().arm().unwrap();
        write(1);
        assert!(!watch.report().coverage.is_signal_taken);
        // SAFETY: the default action.
        unsafe { libc::signal(libc::SIGTRAP, libc::SIG_DFL) };
        let report = watch.report();
        let Coverage { threads_armed, is_signal_taken, over_because, .. } = report.coverage;
        assert_eq!((report.hits, report.state, threads_armed), (1, WatchState::Over, 0), "{report:?}");
        assert!(is_signal_taken && over_because.unwrap().contains("SIGTRAP"), "{report:?}");
        // It would end the process.
        write(2);
        assert_eq!(watch.close().hits, 1);
        eventually(|| held().is_empty());
    });
}

/// Runs `body` in a child that a debugger may stop for good: the limit is its parent's, which kills
/// the child's group.
#[track_caller]
fn in_stoppable_child<F: FnOnce()>(body: F) {
    in_child_with(Child::new().limit(Duration::from_secs(120)), body);
}

/// A debugger of this process. It ends with this one, also if it has a group of its own.
fn debugger() -> Command {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-q", "-p", &std::process::id().to_string()]);
    // SAFETY: one system call, which takes numbers.
    unsafe {
        gdb.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    gdb
}

/// A debugger's commands for this process, and what it says.
fn gdb(commands: &[&str]) -> Option<String> {
    let mut gdb = debugger();
    gdb.arg("-batch");
    gdb.args(commands.iter().flat_map(|command| ["-ex", command]));
    let output = gdb.stdin(Stdio::null()).output().ok()?;
    Some(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
}

/// Writes all the time, on a thread of its own.
fn write_on() {
    thread::spawn(|| {
        loop {
            write(VALUE.load(Ordering::Relaxed) + 1);
            WORDS[0].fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn a_debugger_watches_beside_our_watches() {
    in_stoppable_child(|| {
        let watches: Vec<_> = (0..3).map(|n| of(&WORDS[n]).arm().unwrap()).collect();
        write_on();
        let at = format!("watch *(long*){:#x}", VALUE.as_ptr().addr());
        let pass = "handle SIGTRAP nostop noprint pass";
        // Else gdb passes on the trap of its own watch, too.
        let own = "handle SIGTRAP nopass";
        let Some(said) = gdb(&[pass, &at, "continue", "delete", own, "detach"]) else {
            return skip("gdb is not installed");
        };
        if !said.contains("Hardware watchpoint") {
            return skip(format!("gdb cannot attach here: {said}"));
        }
        assert!(said.contains("Old value"), "{said}");
        let before = watches[0].report().hits;
        eventually(|| watches[0].report().hits > before + 10);
    });
}

#[test]
fn watches_are_armed_beside_a_debuggers() {
    in_stoppable_child(|| {
        write_on();
        // A register of each thread. Once its watch is hit, the debugger leaves.
        let at = format!("watch *(long*){:#x}", WORDS[3].as_ptr().addr());
        let commands = [
            "handle SIGTRAP nostop noprint pass",
            &at,
            "continue",
            "delete",
            "handle SIGTRAP nopass",
            "detach",
        ];
        let mut gdb = debugger();
        gdb.arg("-batch").args(commands.iter().flat_map(|command| ["-ex", command]));
        let Ok(mut gdb) = gdb.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
        else {
            return skip("gdb is not installed");
        };
        let mut said = BufReader::new(gdb.stdout.take().unwrap()).lines().map(Result::unwrap);
        if !said.any(|line| line.contains("Hardware watchpoint")) {
            let _ = gdb.wait();
            return skip("gdb cannot attach here");
        }
        eventually(|| of(&WORDS[0]).all_slots().arm().map(drop).is_ok() && registers_left() < 4);
        let watch = of(&WORDS[0]).arm().unwrap();
        eventually(|| watch.report().delivered > 10);
        drop(watch);
        WORDS[3].fetch_add(1, Ordering::Relaxed);
        assert!(said.any(|line| line.contains("Old value")));
        // It would wait for room in the pipe.
        said.for_each(drop);
        assert!(gdb.wait().unwrap().success());
    });
}

/// How many watches all threads have room for.
fn registers_left() -> usize {
    let mut watches = Vec::new();
    while watches.len() < 4 {
        match of(&WORDS[watches.len()]).all_slots().arm() {
            Ok(watch) => watches.push(watch),
            Err(_) => break,
        }
    }
    watches.len()
}
