//! The keeper's work on watches that are armed: storms, ends, turns, ranges.
//!
//! Nothing here depends on how soon the keeper comes: a busy machine makes rests longer, and the
//! bounds with them.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_breakpoints::{Access, Error, Watch, WatchSpec, WatchState, held, sched_in, sched_out};
use dormouse_sys::perf;
use dormouse_sys::thread::Current;
use dormouse_testkit::{StopOnDrop, eventually, fork, skip, spin_for};

use super::support::in_child;

/// Each test has its own process, so these are its own.
static WORDS: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

#[repr(align(64))]
struct Bytes([AtomicU8; 64]);

static BYTES: Bytes = Bytes([const { AtomicU8::new(0) }; 64]);

fn word(number: usize) -> WatchSpec {
    WatchSpec::new(WORDS[number].as_ptr().addr(), 8, Access::Write)
}

fn bytes(first: usize, len: usize) -> WatchSpec {
    WatchSpec::new(BYTES.0[first].as_ptr().addr(), len, Access::Write)
}

/// The keeper's entry in `/proc`.
fn keeper() -> Option<std::path::PathBuf> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks
        .map(|task| task.unwrap().path())
        .find(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "dormouse-watch\n"))
}

#[test]
fn a_storm_is_held_to_its_rate() {
    in_child(|| {
        // A fiftieth of the hits that a thread makes here without a limit.
        let unlimited = word(1).rate(u32::MAX).arm().unwrap();
        let begun = Instant::now();
        (0..100).for_each(|n| WORDS[1].store(n, Relaxed));
        let rate = ((2.0 / begun.elapsed().as_secs_f64()) as u32).clamp(1, 1_000);
        drop(unlimited);
        let watch = word(0).rate(rate).arm().unwrap();
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    for _ in 0..1_000 {
                        WORDS[0].fetch_add(1, Relaxed);
                    }
                    written.fetch_add(1_000, Relaxed);
                }
            });
            // At ten microseconds a hit this loop would never be a thousand writes ahead of one.
            eventually(|| {
                let report = watch.report();
                let coverage = &report.coverage;
                let rests_mostly = coverage.rests >= 4 && coverage.armed_ns < coverage.wall_ns / 2;
                rests_mostly && written.load(Relaxed) > 1_000 * report.hits
            });
            eventually(|| watch.report().state == WatchState::Resting);
        });
        eventually(|| watch.report().state == WatchState::Armed);
        let report = watch.report();
        let most = u64::from(rate) * report.coverage.wall_ns / 1_000_000_000 + u64::from(rate) / 100 + 1;
        assert!(report.hits <= most, "more than {most}: {report:?}");
        assert_eq!(
            (report.delivered, report.passed, report.lost),
            (report.hits, report.hits, 0),
            "{report:?}"
        );
        // Calm now, it sees each write again.
        WORDS[0].store(1, Relaxed);
        assert_eq!(watch.report().hits, report.hits + 1);
    });
}

#[test]
fn max_hits_end_a_watch() {
    in_child(|| {
        let watch = word(0).max_hits(10).arm().unwrap();
        for value in 1..=1_000 {
            WORDS[0].store(value, Relaxed);
        }
        eventually(|| watch.is_over());
        let report = watch.report();
        assert_eq!((report.state, report.passed), (WatchState::Over, 10), "{report:?}");
        let of_sites: u64 = report.sites.iter().map(|site| site.hits).sum();
        assert_eq!(of_sites, 10, "{report:?}");
        // The kernel's count tells how far the tenth was passed.
        assert!((10..=1_000).contains(&report.hits), "{report:?}");
        WORDS[0].store(0, Relaxed);
        assert_eq!(watch.report().hits, report.hits);
    });
}

#[test]
fn hits_up_to_the_maximum_end_nothing() {
    in_child(|| {
        let watch = word(0).max_hits(10).arm().unwrap();
        for value in 1..10 {
            WORDS[0].store(value, Relaxed);
        }
        let report = watch.report();
        assert_eq!((report.state, report.passed), (WatchState::Armed, 9), "{report:?}");
    });
}

/// Its registers are on a thread that runs no task of the group any more.
#[test]
fn an_ended_groups_watch_holds_registers_until_dropped() {
    in_child(|| {
        let watch = bytes(0, 16).max_hits(1).arm_for_group(7).unwrap();
        let number = watch.number();
        let (stop, has_hit) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            scope.spawn(|| {
                let block = dormouse_sys::thread::current().unwrap();
                block.set_current(Current { task: 1, group: 7 });
                sched_in(number);
                BYTES.0[0].store(1, Relaxed);
                sched_out(number);
                block.set_current(Current::default());
                has_hit.store(true, Relaxed);
                eventually(|| stop.load(Relaxed));
            });
            eventually(|| has_hit.load(Relaxed) && watch.is_over());
            assert_eq!(watch.report().passed, 1);
            match bytes(16, 24).arm() {
                Err(Error::NoRegister { holders, .. }) => assert_eq!(holders[0].number, number),
                other => panic!("{other:?}"),
            }
            drop(watch);
            assert!(held().is_empty());
            let others = bytes(16, 24).arm().unwrap();
            BYTES.0[16].store(1, Relaxed);
            assert_eq!(others.report().passed, 1);
        });
    });
}

#[test]
fn all_flexible_watches_have_their_turns() {
    in_child(|| {
        const RATE: u32 = 1_000_000;
        /// One of four is left to debuggers.
        const REGISTERS: u64 = 3;
        let mut watches = Vec::new();
        for number in 0..6 {
            watches.push(word(number).flexible().rate(RATE).arm().unwrap());
        }
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    for word in &WORDS[..6] {
                        word.fetch_add(1, Relaxed);
                    }
                }
            });
            eventually(|| watches.iter().all(|watch| watch.report().passed > 0));
            stop.store(true, Relaxed);
        });
        let reports: Vec<_> = watches.iter().map(Watch::report).collect();
        // From the first one's beginning to a moment after the last report.
        let wall_ns = watches[0].report().coverage.wall_ns;
        let armed_ns: u64 = reports.iter().map(|report| report.coverage.armed_ns).sum();
        assert!(armed_ns <= REGISTERS * wall_ns, "{reports:?}");
        for report in &reports {
            assert!(report.coverage.armed_ns < report.coverage.wall_ns, "{report:?}");
            assert!(report.delivered + report.lost <= report.hits, "{report:?}");
        }
    });
}

#[test]
fn pinned_watches_come_before_flexible_ones() {
    in_child(|| {
        let _flexible = word(0).flexible().arm().unwrap();
        let _others = [word(1).flexible().arm().unwrap(), word(2).flexible().arm().unwrap()];
        let _pinned = [word(3).arm().unwrap(), word(4).arm().unwrap()];
        let refused = word(5).arm();
        assert!(matches!(refused, Err(Error::NoRegister { .. })), "one stays flexible: {refused:?}");
    });
}

/// A debugger takes registers while flexible watches are at rest, and gives them back.
#[test]
fn turns_go_on_in_fewer_registers() {
    in_child(|| {
        eventually(|| keeper().is_none());
        // One of this thread's four is left.
        let foreign: Vec<_> = (0..3).map_while(|_| foreign_breakpoint()).collect();
        let one = word(0).flexible().arm().unwrap();
        let other = word(1).flexible().arm().unwrap();
        let seen = |watch: &Watch, number: usize| {
            eventually(|| {
                WORDS[number].fetch_add(1, Relaxed);
                watch.report().passed > 0
            });
        };
        seen(&one, 0);
        seen(&other, 1);
        assert!(one.report().coverage.armed_ns < one.report().coverage.wall_ns);
        drop(foreign);
        // The next watch that comes has the registers looked for again.
        let third = word(2).flexible().arm().unwrap();
        seen(&third, 2);
        let full = foreign_breakpoint().map(|_| foreign_breakpoint());
        assert!(full.is_some(), "one stays for debuggers");
    });
}

/// A breakpoint of this thread that no watch knows of.
fn foreign_breakpoint() -> Option<perf::OpenEvent> {
    static FOREIGN: AtomicU64 = AtomicU64::new(0);
    let at = FOREIGN.as_ptr().addr();
    let breakpoint = perf::Breakpoint::watch(at, perf::WatchLen::Eight, Access::Write).unwrap();
    perf::OpenEvent::open(&perf::Attr::breakpoint(breakpoint), perf::Subject::ThisThread).ok()
}

#[test]
fn few_flexible_watches_take_no_turns() {
    in_child(|| {
        let watch = word(0).flexible().arm().unwrap();
        let other = word(1).flexible().arm().unwrap();
        for number in [0, 1] {
            WORDS[number].store(1, Relaxed);
        }
        for watch in [watch, other] {
            let report = watch.report();
            assert_eq!((report.hits, report.passed), (1, 1), "{report:?}");
        }
    });
}

#[test]
fn a_long_range_takes_several_registers() {
    in_child(|| {
        let watch = bytes(16, 24).arm().unwrap();
        assert_eq!(held().iter().map(|held| held.slots).collect::<Vec<_>>(), [3]);
        for byte in [15, 16, 24, 39, 40] {
            BYTES.0[byte].store(1, Relaxed);
        }
        let report = watch.report();
        assert_eq!((report.hits, report.passed), (3, 3), "{report:?}");
        let refused = bytes(0, 33).arm();
        assert!(refused.is_err(), "{refused:?}");
    });
}

#[test]
fn an_unaligned_range_is_watched_exactly() {
    in_child(|| {
        let watch = bytes(3, 5).arm().unwrap();
        assert_eq!(held().iter().map(|held| held.slots).collect::<Vec<_>>(), [2]);
        for byte in [2, 3, 5, 7, 8] {
            BYTES.0[byte].store(1, Relaxed);
        }
        let report = watch.report();
        assert_eq!((report.hits, report.passed), (3, 3), "{report:?}");
    });
}

#[test]
fn a_widened_watch_tells_neighbours_apart() {
    in_child(|| {
        let _first = word(0).arm().unwrap();
        let _second = word(1).arm().unwrap();
        // One register is left, and the exact cover takes three.
        let watch = bytes(1, 7).arm().unwrap();
        for byte in [0, 1, 7] {
            BYTES.0[byte].store(1, Relaxed);
        }
        let report = watch.report();
        assert_eq!((report.hits, report.passed), (3, 2), "{report:?}");
    });
}

#[repr(align(8))]
struct Halves([AtomicU32; 3]);

static HALVES: Halves = Halves([const { AtomicU32::new(0) }; 3]);

#[test]
fn a_value_is_that_of_the_whole_variable() {
    in_child(|| {
        let values = |watch: &Watch| {
            let hits = watch.take_hits();
            hits.iter().map(|hit| (hit.old.unwrap(), hit.new.unwrap())).collect::<Vec<_>>()
        };
        // Two pieces of four bytes.
        let spec = WatchSpec::new(HALVES.0[1].as_ptr().addr(), 8, Access::Write);
        let watch = spec.equals(0x1_0000_0002).arm().unwrap();
        watch.take_hits();
        HALVES.0[1].store(2, Relaxed);
        HALVES.0[2].store(1, Relaxed);
        let report = watch.report();
        assert_eq!((report.hits, report.passed), (2, 1), "{report:?}");
        assert_eq!(values(&watch), [(2, 0x1_0000_0002)]);
        drop(watch);
        // One of one byte and one of two, and then one of four, which covers another byte, too.
        let mut others = vec![word(0).arm().unwrap()];
        for _ in 0..2 {
            for byte in 16..20 {
                BYTES.0[byte].store(0xff, Relaxed);
            }
            let watch = bytes(17, 3).arm().unwrap();
            watch.take_hits();
            BYTES.0[17].store(1, Relaxed);
            BYTES.0[19].store(3, Relaxed);
            assert_eq!(values(&watch), [(0xff_ffff, 0xff_ff01), (0xff_ff01, 0x03_ff01)]);
            drop(watch);
            others.push(word(1).arm().unwrap());
        }
        // Of a longer one, the bytes that were hit.
        drop(others);
        let watch = bytes(35, 9).changed().arm().unwrap();
        watch.take_hits();
        BYTES.0[35].store(1, Relaxed);
        BYTES.0[37].store(1, Relaxed);
        assert_eq!(values(&watch), [(0, 1), (0, 0x100)]);
    });
}

/// A thread that blocks SIGTRAP is not interrupted, and slowed all the same.
#[test]
fn a_storm_without_signals_rests_when_read() {
    in_child(|| {
        let watch = word(0).rate(1_000).arm().unwrap();
        let blocks = || {
            block_traps(libc::SIG_BLOCK);
            for _ in 0..10_000 {
                WORDS[0].fetch_add(1, Relaxed);
            }
            eventually(|| watch.report().state == WatchState::Resting);
            let report = watch.report();
            WORDS[0].fetch_add(1, Relaxed);
            assert_eq!(watch.report().hits, report.hits, "{report:?}");
        };
        thread::scope(|scope| scope.spawn(blocks).join().unwrap());
    });
}

/// A thread that blocks SIGTRAP takes the signal when another watch has the register.
#[test]
fn a_late_hit_is_not_another_watchs() {
    in_child(|| {
        let _first = word(0).arm().unwrap();
        let _second = word(1).arm().unwrap();
        let (one, other) = (word(2).flexible().arm().unwrap(), word(3).flexible().arm().unwrap());
        let armed_ns = |watch: &Watch| watch.report().coverage.armed_ns;
        thread::scope(|scope| {
            scope.spawn(|| {
                block_traps(libc::SIG_BLOCK);
                eventually(|| {
                    WORDS[2].fetch_add(1, Relaxed);
                    one.report().hits > 0
                });
                // No other watch than the one has hits, and the other has had a turn meanwhile.
                let before = armed_ns(&other);
                eventually(|| armed_ns(&other) > before);
                block_traps(libc::SIG_UNBLOCK);
            });
        });
        let (one, other) = (one.report(), other.report());
        assert_eq!((other.hits, other.delivered, other.passed), (0, 0, 0), "{other:?}");
        assert!(one.hits > 0, "{one:?}");
    });
}

fn block_traps(how: libc::c_int) {
    // SAFETY: a local set, which the calls fill and read.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTRAP);
        assert_eq!(libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()), 0);
    }
}

#[test]
fn without_hits_the_keeper_sleeps() {
    in_child(|| {
        // It looks once a second at a standard error that is a pipe.
        let null = fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        // SAFETY: the child's own descriptors.
        assert!(unsafe { libc::dup2(null.as_raw_fd(), libc::STDERR_FILENO) } >= 0);
        let watch = word(0).arm().unwrap();
        let flexible = word(1).flexible().arm().unwrap();
        WORDS[0].store(1, Relaxed);
        let wakes = || {
            let status = fs::read_to_string(keeper().unwrap().join("status")).unwrap();
            let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches:")).unwrap();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        // It may still be on its way to sleep, with pauses on a busy machine.
        eventually(|| {
            let before = wakes();
            spin_for(Duration::from_millis(300));
            wakes() == before
        });
        drop((watch, flexible));
        eventually(|| keeper().is_none());
        let again = word(0).arm().unwrap();
        assert!(keeper().is_some());
        drop(again);
    });
}

#[test]
fn a_forked_child_has_no_keeper() {
    in_child(|| {
        let watch = word(0).arm().unwrap();
        let ended = fork(|| {
            assert!(keeper().is_none() && watch.is_over());
            WORDS[0].store(7, Relaxed);
            assert_eq!(watch.report().state, WatchState::Over);
            let own = word(1).arm().unwrap();
            WORDS[1].store(1, Relaxed);
            assert_eq!(own.report().hits, 1);
        });
        assert!(ended.success(), "{ended}");
        assert_eq!((watch.report().hits, watch.is_over()), (0, false));
        WORDS[0].store(8, Relaxed);
        assert_eq!(watch.report().hits, 1);
    });
}

#[test]
fn without_a_keeper_no_watch_is_armed() {
    in_child(|| {
        const NOBODY: libc::uid_t = 65_534;
        // That of the check whether watches work here.
        eventually(|| keeper().is_none());
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: plain calls; the limit is read.
        unsafe {
            assert_eq!(libc::setrlimit(libc::RLIMIT_NPROC, &raw const none), 0);
            if libc::setuid(NOBODY) != 0 {
                return skip("not root");
            }
        }
        if thread::Builder::new().spawn(|| ()).is_ok() {
            return skip("threads are not limited here");
        }
        match word(0).arm() {
            Err(error @ Error::Keeper(_)) => {
                assert!(error.to_string().contains("cannot be started"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        assert!(held().is_empty());
    });
}
