//! Stalled time by its causes, of a service with known shares.
//!
//! The service's thread measures each part of its work by the kernel's own account, at the exact
//! begin and end. The agent, which looks from time to time, must come within 5 points of that.

use std::fs;
use std::io::Write as _;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use dormouse::Group;
use dormouse_protocol::{StallsRow, WaitsBegun, WaitsRequest};
use dormouse_sys::process::identity;
use dormouse_sys::process::schedstat::Schedstat;
use dormouse_testkit::{LimitedGroup, StopOnDrop, in_child, short_or_long, skip, spin_for, thread_cpu};

use super::faults::Faulting;
use super::slow_calls::slow_down;
use crate::waits::{Client, init};

/// A part of the work's time.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    wall: Duration,
    cpu_wait: Duration,
    asleep: Duration,
}

/// The kernel's account of this thread at one moment.
#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Instant,
    ran: Duration,
    waited: Duration,
}

impl Moment {
    fn now() -> Self {
        let waited = Schedstat::of_own(identity::tid()).unwrap().runnable_ns.unwrap();
        Self { at: Instant::now(), ran: thread_cpu(), waited: Duration::from_nanos(waited) }
    }

    fn until(self, end: Self) -> Part {
        let (wall, cpu_wait) = (end.at - self.at, end.waited.saturating_sub(self.waited));
        let asleep = wall.saturating_sub(end.ran.saturating_sub(self.ran)).saturating_sub(cpu_wait);
        Part { wall, cpu_wait, asleep }
    }
}

fn cost_of_a_moment() -> Duration {
    let begun = Instant::now();
    Moment::now();
    begun.elapsed()
}

/// Does a part of the work on this thread, and adds its time.
fn measure(part: &mut Part, work: impl FnOnce()) {
    let begun = Moment::now();
    work();
    let Part { wall, cpu_wait, asleep } = begun.until(Moment::now());
    part.wall += wall;
    part.cpu_wait += cpu_wait;
    part.asleep += asleep;
}

/// Whether the kernel has the account that all this is about.
pub(super) fn is_counted() -> bool {
    let is = Schedstat::of_own(identity::tid()).is_some_and(|of| of.runnable_ns.is_some());
    if !is {
        skip("the kernel does not count how long threads wait for a CPU");
    }
    is
}

/// Has polls of a group do rounds of work for some seconds: the stalled time that the agent sees.
fn stalls_of(round: impl FnMut() + Send) -> StallsRow {
    let (group, mut client) = (Group::new("GET /shares"), Client::connect(&init()));
    let request = WaitsRequest { stalls: true, ..WaitsRequest::default() };
    let begun: WaitsBegun = client.ask(request).unwrap();
    assert!(begun.stalls);
    let mut round = round;
    let end = Instant::now() + short_or_long(Duration::from_secs(4), Duration::from_secs(20));
    while Instant::now() < end {
        let poll = pin!(group.instrument(async { round() }));
        assert!(poll.poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
    client.row(group).unwrap().stalls.map(|row| *row).unwrap_or_default()
}

/// By how many points a figure may be too low. Figures are lower bounds: the time that samples take
/// is in none, and an emulated processor takes milliseconds for one.
fn most_below() -> f64 {
    let mut costs: Vec<_> = (0..51).map(|_| cost_of_a_moment()).collect();
    costs.sort_unstable();
    // Some microseconds on a processor.
    if costs[25] > Duration::from_micros(60) { 20.0 } else { 5.0 }
}

/// Asserts that a time is within 5 points of another one, as shares of all, where a part may not
/// have been seen: `unseen` at most.
fn assert_near(
    what: &str,
    ns: u64,
    right: Duration,
    all: Duration,
    unseen: Duration,
    more: &dyn std::fmt::Debug,
) {
    let share = |time: Duration| time.as_secs_f64() / all.as_secs_f64() * 100.0;
    let (seen, right) = (share(Duration::from_nanos(ns)), share(right));
    let least = right - most_below() - share(unseen);
    assert!((least..=right + 5.0).contains(&seen), "{what}: {seen:.1} %, right: {right:.1} %: {more:?}");
}

/// The longest time for which a thread that wakes as often as the sampler did not run, while `work`
/// was done.
fn longest_pause<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
            while !over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(20));
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            longest
        });
        let _stop = StopOnDrop(&over);
        let done = work();
        over.store(true, Ordering::Relaxed);
        (done, watcher.join().unwrap())
    })
}

fn within(row: &StallsRow, name: &str) -> u64 {
    row.within.iter().find(|(of, _)| of == name).map_or(0, |(_, ns)| *ns)
}

#[test]
fn sleep_is_shown_by_call() {
    in_child(|| {
        let faulting = Faulting::new(4096);
        if !is_counted() {
            return;
        }
        if let Err(why) = &faulting {
            skip(format_args!("no page faults that wait: {why}"));
        }
        let lock = Arc::new(Mutex::new(()));
        let mut file = tempfile::tempfile().unwrap();
        let (mut locked, mut synced, mut faulted, mut computed) = <(Part, Part, Part, Part)>::default();
        // Waits for the threads that have a part: on a busy machine they come late.
        let mut awaited = Part::default();
        let (mut page, mut is_slow) = (0, None);
        let rounds = || {
            stalls_of(|| {
                // On this thread, and not on those of the agent.
                is_slow.get_or_insert_with(|| slow_down(libc::SYS_fsync, Duration::from_millis(80)));
                let is_held = Arc::new(Barrier::new(2));
                let (theirs, held) = (Arc::clone(&lock), Arc::clone(&is_held));
                let hold = move || {
                    let _guard = theirs.lock().unwrap();
                    held.wait();
                    thread::sleep(Duration::from_millis(120));
                };
                let mut holder = None;
                measure(&mut awaited, || {
                    holder = Some(thread::spawn(hold));
                    is_held.wait();
                });
                measure(&mut locked, || drop(lock.lock()));
                file.write_all(&[1; 4096]).unwrap();
                measure(&mut synced, || file.sync_all().unwrap());
                if let Ok(faulting) = &faulting {
                    let fill = || {
                        thread::sleep(Duration::from_millis(80));
                        faulting.fill(page);
                    };
                    thread::scope(|scope| {
                        let mut filler = None;
                        measure(&mut awaited, || filler = Some(scope.spawn(fill)));
                        measure(&mut faulted, || faulting.touch(page));
                        measure(&mut awaited, || filler.unwrap().join().unwrap());
                    });
                    page += 1;
                }
                measure(&mut computed, || spin_for(Duration::from_millis(120)));
                measure(&mut awaited, || holder.unwrap().join().unwrap());
            })
        };
        let (row, pause) = longest_pause(rounds);
        let parts = [locked, synced, faulted, computed, awaited];
        let sum = |of: fn(&Part) -> Duration| parts.iter().map(of).sum();
        let all: Duration = sum(|part| part.wall);
        let near = |what, ns, right| assert_near(what, ns, right, all, pause, &(&row, &parts, pause));
        near("asleep", row.asleep_ns, sum(|part| part.asleep));
        near("waiting for a CPU", row.cpu_wait_ns, sum(|part| part.cpu_wait));
        near("lock and threads", within(&row, "futex"), locked.asleep + awaited.asleep);
        match is_slow.unwrap() {
            Ok(()) => near("fsync", within(&row, "fsync"), synced.asleep),
            Err(why) => skip(format_args!("no calls that sleep: {why}")),
        }
        near("page faults", within(&row, "page fault"), faulted.asleep);
    });
}

/// Has a thread run on one processor alone: the first that the process may use.
fn pin_to_one() {
    // SAFETY: the kernel fills in the set, and reads another one.
    unsafe {
        let (mut all, mut one): (libc::cpu_set_t, libc::cpu_set_t) = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        assert_eq!(libc::sched_getaffinity(0, size, &raw mut all), 0);
        let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &all)).unwrap();
        libc::CPU_SET(first, &mut one);
        assert_eq!(libc::sched_setaffinity(0, size, &raw const one), 0);
    }
}

#[test]
fn a_busy_neighbour_is_a_wait() {
    in_child(|| {
        if !is_counted() {
            return;
        }
        let over = AtomicBool::new(false);
        let mut computed = Part::default();
        let beside = || {
            thread::scope(|scope| {
                scope.spawn(|| {
                    pin_to_one();
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
                let worker = scope.spawn(|| {
                    let mut is_pinned = false;
                    stalls_of(|| {
                        if !std::mem::replace(&mut is_pinned, true) {
                            pin_to_one();
                        }
                        measure(&mut computed, || spin_for(Duration::from_millis(50)));
                    })
                });
                let row = worker.join();
                over.store(true, Ordering::Relaxed);
                row.unwrap()
            })
        };
        // A sampler that comes late has not seen what ended before.
        let (row, pause) = longest_pause(beside);
        assert!(computed.cpu_wait > computed.wall / 5, "{computed:?}");
        let near = |what, ns, right| {
            assert_near(what, ns, right, computed.wall, pause, &(&row, &computed, pause));
        };
        near("waiting for a CPU", row.cpu_wait_ns, computed.cpu_wait);
        near("asleep", row.asleep_ns, computed.asleep);
    });
}

/// A third of the CPU time that this thread gets now in 100 ms, and 10 ms at least. A busy machine
/// might not leave it more, and an emulated processor does little in less.
fn limit() -> Duration {
    const TRIED: Duration = Duration::from_millis(300);
    let (begun, ran) = (Instant::now(), thread_cpu());
    while begun.elapsed() < TRIED {
        std::hint::spin_loop();
    }
    (thread_cpu().saturating_sub(ran) / 9).clamp(Duration::from_millis(10), Duration::from_millis(33))
}

/// A service in a limited group. `admit` moves a process into it.
fn is_limited(admit: impl Fn(&LimitedGroup, u32)) {
    if !is_counted() {
        return;
    }
    let Some(limited) = LimitedGroup::make(limit()) else { return };
    admit(&limited, std::process::id());
    let (mut begun, mut ended) = (None, None);
    let before = limited.throttled();
    // One time for all rounds: the limit may hold it back between two of them.
    let (row, pause) = longest_pause(|| {
        stalls_of(|| {
            begun.get_or_insert_with(Moment::now);
            spin_for(Duration::from_millis(20));
            ended = Some(Moment::now());
        })
    });
    let throttled = limited.throttled().saturating_sub(before);
    let computed = begun.unwrap().until(ended.unwrap());
    if throttled.is_zero() {
        return skip(format_args!("others used the CPUs, so the limit was not reached: {computed:?}"));
    }
    assert!(computed.cpu_wait > computed.wall / 5, "{throttled:?} {computed:?}");
    // The limit, and a busy machine, stop the sampler, too. A wait of the last round that comes
    // after the last sample is not seen.
    let near = |what, ns, right| {
        assert_near(what, ns, right, computed.wall, pause, &(&row, &computed, pause));
    };
    near("waiting for a CPU", row.cpu_wait_ns, computed.cpu_wait);
    near("throttled", row.throttled_ns.unwrap(), throttled.min(computed.cpu_wait));
    near("asleep", row.asleep_ns, computed.asleep);
}

#[test]
fn a_cpu_limit_is_a_wait_and_named() {
    in_child(|| is_limited(LimitedGroup::admit));
}

#[test]
fn a_limit_around_the_group_is_one_too() {
    in_child(|| is_limited(LimitedGroup::admit_inside));
}

#[test]
fn nobody_is_looked_at_unless_asked() {
    in_child(|| {
        let (group, mut client) = (Group::new("GET /tea"), Client::connect(&init()));
        let begun: WaitsBegun = client.ask(WaitsRequest::default()).unwrap();
        let looks = || {
            let names = fs::read_dir("/proc/self/task").unwrap();
            let names = names.filter_map(|task| fs::read(task.ok()?.path().join("comm")).ok());
            names.filter(|name| name.starts_with(b"dormouse-look")).count()
        };
        assert!(!begun.stalls && looks() == 0);
        group.scope(|| thread::sleep(Duration::from_millis(50)));
        assert_eq!(client.row(group).unwrap().stalls, None);
        let _: WaitsBegun = client.ask(WaitsRequest { stalls: true, ..WaitsRequest::default() }).unwrap();
        assert_eq!(looks(), 1);
        drop(client);
        dormouse_testkit::eventually(|| looks() == 0);
    });
}
