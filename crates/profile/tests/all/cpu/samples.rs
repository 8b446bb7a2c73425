//! Which samples are taken, and their weights.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dormouse_profile::{NO_GROUP, Profile, Profiling};
use dormouse_sys::process::identity::tid;
use dormouse_sys::thread::{Current, current};
use dormouse_testkit::{eventually, in_child, thread_cpu};

use super::hogs::{caller, hog, leaf, options, slack, weight_in, weight_of};

const WORK: Duration = Duration::from_millis(700);

/// A thread that has done its work, and waits.
struct Worker {
    tid: u32,
    used: u64,
    end: mpsc::Sender<()>,
    thread: thread::JoinHandle<u64>,
}

/// Does work on a thread of its own, which lives on.
fn worker(name: &str, work: impl FnOnce() + Send + 'static) -> Worker {
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let run = move || {
        work();
        tell.send((tid(), thread_cpu().as_nanos() as u64)).unwrap();
        let _ = ended.recv();
        thread_cpu().as_nanos() as u64
    };
    let thread = thread::Builder::new().name(name.into()).spawn(run).unwrap();
    let (tid, used) = told.recv().unwrap();
    Worker { tid, used, end, thread }
}

impl Worker {
    /// Ends it; returns the CPU time of its whole life.
    fn join(self) -> u64 {
        drop(self.end);
        self.thread.join().unwrap()
    }
}

fn group_weight(profile: &Profile, id: u32) -> u64 {
    let is_it = |index: u32| profile.groups[index as usize].id == id;
    profile.samples.iter().filter(|row| is_it(row.group)).map(|row| row.values[1]).sum()
}

#[test]
fn a_hog_is_found_with_its_caller() {
    in_child(|| {
        let profiling = Profiling::start(&options(99)).unwrap();
        let hog = worker("a hog", || {
            // So that it is sampled at once.
            current().unwrap();
            hog(WORK);
        });
        let profile = profiling.read();
        let found = weight_in(&profile, &[leaf(), caller()]);
        assert!(found * 10 > hog.used * 8, "{found} of {}: {profile:#?}", hog.used);
        assert!(profile.threads.iter().any(|thread| thread.tid == hog.tid && thread.name == "a hog"));
        let mapping = profile.mapping(leaf().start).unwrap();
        assert_eq!(mapping.path, profile.program);
        assert_eq!(profile.pid, std::process::id());
        let coverage = &profile.coverage;
        assert!(coverage.total >= found && coverage.total >= hog.used, "{coverage:?}");
        // On a busy machine the kernel looks at a thread's timer less often than it expires.
        let expired = coverage.samples + coverage.overruns;
        assert!(expired * 10 > 5 * 70 && coverage.refused == 0, "{coverage:?}");
        assert!(coverage.armed >= 2 && coverage.armed == coverage.threads, "{coverage:?}");
        hog.join();
    });
}

#[test]
fn weights_add_up_to_threads_time() {
    in_child(|| {
        for hz in [19, 99, 1000] {
            let profiling = Profiling::start(&options(hz)).unwrap();
            // They arm themselves: the sampler might find them late.
            let work = |n: u32| {
                current().unwrap();
                hog(n * WORK / 3);
            };
            let workers = [1, 2, 3].map(|n| worker("some", move || work(n)));
            let profile = profiling.read();
            for worker in workers {
                let weight = weight_of(&profile, worker.tid);
                // The thread has used a little more to tell us.
                assert!(weight <= worker.used + slack(hz), "{weight} of {}", worker.used);
                assert!(weight + slack(hz) >= worker.used, "{weight} of {}: {profile:#?}", worker.used);
                worker.join();
            }
        }
    });
}

#[test]
fn samples_belong_to_the_current_group() {
    in_child(|| {
        // The first claims its block before the profile begins, the second in it.
        let (begin, begun) = mpsc::channel::<()>();
        let (ready, is_ready) = mpsc::channel::<()>();
        let in_group = |group| {
            let block = current().unwrap();
            block.set_current(Current { task: 100 + u64::from(group), group });
            hog(WORK);
            block.set_task(0);
            hog(WORK / 2);
        };
        let first = thread::spawn(move || {
            current().unwrap();
            ready.send(()).unwrap();
            begun.recv().unwrap();
            worker("first", move || in_group(7))
        });
        is_ready.recv().unwrap();
        let profiling = Profiling::start(&options(99)).unwrap();
        begin.send(()).unwrap();
        let second = worker("second", move || in_group(9));
        let first = first.join().unwrap();
        let profile = profiling.read();
        for (group, worker) in [(7, first), (9, second)] {
            let (weight, work) = (group_weight(&profile, group), WORK.as_nanos() as u64);
            assert!(weight.abs_diff(work) <= slack(99), "group {group}: {weight} of {work}");
            worker.join();
        }
        let rest = profile.samples.iter().filter(|row| row.group == NO_GROUP);
        let rest: u64 = rest.map(|row| row.values[1]).sum();
        let halves = WORK.as_nanos() as u64;
        assert!(rest + 2 * slack(99) >= halves && rest <= halves + 4 * slack(99), "{rest} of {halves}");
        assert_eq!(profile.coverage.in_groups, group_weight(&profile, 7) + group_weight(&profile, 9));
    });
}

#[test]
fn threads_that_ran_before_are_sampled() {
    in_child(|| {
        let (begin, begun) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let before = thread::spawn(move || {
            hog(WORK);
            tell.send(tid()).unwrap();
            begun.recv().unwrap();
            let base = thread_cpu();
            hog(WORK);
            tell.send(thread_cpu().saturating_sub(base).as_nanos() as u32).unwrap();
            begun.recv().unwrap();
        });
        let tid = told.recv().unwrap();
        let profiling = Profiling::start(&options(99)).unwrap();
        begin.send(()).unwrap();
        let used = u64::from(told.recv().unwrap());
        let weight = weight_of(&profiling.read(), tid);
        // Not what it used before the profile began.
        assert!(weight.abs_diff(used) <= slack(99), "{weight} of {used}");
        begin.send(()).unwrap();
        before.join().unwrap();
    });
}

#[test]
fn profiles_do_not_disturb_one_another() {
    /// So that it is sampled at once.
    fn known_hog() {
        current().unwrap();
        hog(WORK);
    }
    in_child(|| {
        let slow = Profiling::start(&options(19)).unwrap();
        let first = worker("first", known_hog);
        let fast = Profiling::start(&options(99)).unwrap();
        let second = worker("second", known_hog);
        let of_fast = fast.read();
        drop(fast);
        let third = worker("third", known_hog);
        let of_slow = slow.read();
        for worker in [&first, &second, &third] {
            let weight = weight_of(&of_slow, worker.tid);
            assert!(weight.abs_diff(worker.used) <= slack(19), "{weight} of {}", worker.used);
        }
        // 19 and 99 samples a second of 2.1 and 0.7 seconds; a late tick stands for several.
        let expired = |of: &Profile| of.coverage.samples + of.coverage.overruns;
        assert!(expired(&of_slow) >= 20 && of_slow.coverage.samples <= 48, "{:?}", of_slow.coverage);
        assert!(weight_of(&of_fast, second.tid).abs_diff(second.used) <= slack(99));
        assert!(expired(&of_fast) > 30, "{:?}", of_fast.coverage);
        // It began when the first had done its work.
        assert!(weight_of(&of_fast, first.tid) < slack(99));
        for worker in [first, second, third] {
            worker.join();
        }
    });
}

#[test]
fn a_timeline_has_each_sample() {
    in_child(|| {
        let mut options = options(99);
        options.timeline = true;
        let profiling = Profiling::start(&options).unwrap();
        worker("a hog", || hog(WORK)).join();
        let profile = profiling.read();
        assert_eq!(profile.timeline.len() as u64, profile.coverage.samples);
        let of =
            |values: fn(&dormouse_profile::Moment) -> u64| profile.timeline.iter().map(values).sum::<u64>();
        let total: u64 = profile.samples.iter().map(|row| row.values[1]).sum();
        assert_eq!(of(|moment| moment.value), total);
        // The clock of the last tick may lie behind.
        assert!(profile.timeline.iter().all(|moment| moment.at_ns <= profile.duration_ns));
    });
}

#[test]
fn short_threads_are_sampled() {
    in_child(|| {
        let profiling = Profiling::start(&options(1000)).unwrap();
        // A busy machine looks at a thread's timer each 30 ms.
        let (threads, work) = (40, Duration::from_millis(80));
        for _ in 0..threads {
            let short = thread::spawn(move || {
                current().unwrap();
                hog(work);
            });
            short.join().unwrap();
        }
        let profile = profiling.read();
        let (found, used) = (weight_in(&profile, &[leaf()]), threads * work.as_nanos() as u64);
        // A thread's first and last tick: less than half of it.
        assert!(found * 2 > used, "{found} of {used}: {:?}", profile.coverage);
        assert!(profile.threads.len() > 24, "{}", profile.threads.len());
        drop(profiling);
        nothing_is_left();
    });
}

/// Does something on a new thread of this id, which nobody has: `None` if the kernel gives another.
fn spawn_as(wanted: u32, name: &str, run: impl FnOnce() + Send + 'static) -> Option<thread::JoinHandle<()>> {
    let (begin, begun) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    std::fs::write("/proc/sys/kernel/ns_last_pid", (wanted - 1).to_string()).ok()?;
    let run = move || {
        tell.send(tid()).unwrap();
        if begun.recv().is_ok() {
            run();
        }
    };
    let spawned = thread::Builder::new().name(name.into()).spawn(run).unwrap();
    if told.recv().unwrap() != wanted {
        drop(begin);
        spawned.join().unwrap();
        return None;
    }
    begin.send(()).unwrap();
    Some(spawned)
}

#[test]
fn threads_of_one_id_are_told_apart() {
    in_child(|| {
        let profiling = Profiling::start(&options(250)).unwrap();
        let former = worker("former", || {
            current().unwrap();
            hog(WORK / 4);
        });
        let (id, used) = (former.tid, former.used);
        let whole = former.join();
        let over = std::sync::Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let run = move || {
            while !is_over.load(Ordering::Relaxed) {
                hog(Duration::from_millis(5));
            }
        };
        let latter = (0..50).find_map(|_| spawn_as(id, "latter", run.clone()));
        let Some(latter) = latter else {
            return dormouse_testkit::skip("the kernel gives no thread the id of a former one");
        };
        let weight_of = |profile: &Profile, name: &str| -> u64 {
            let is_it = |index: u32| {
                let thread = &profile.threads[index as usize];
                (thread.tid, thread.name.as_str()) == (id, name)
            };
            profile.samples.iter().filter(|row| is_it(row.thread)).map(|row| row.values[1]).sum()
        };
        eventually(|| weight_of(&profiling.read(), "latter") > 0);
        over.store(true, Ordering::Relaxed);
        latter.join().unwrap();
        let profile = profiling.read();
        let of_former = weight_of(&profile, "former");
        assert!(
            of_former.abs_diff(of_former.clamp(used, whole)) <= slack(250),
            "{of_former} of {used} to {whole}: {:?}",
            profile.threads
        );
    });
}

/// No thread of the sampler, whose name the kernel cuts, and no timer.
pub(crate) fn nothing_is_left() {
    eventually(|| {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| name == "dormouse-profil\n").count() == 0
    });
    match std::fs::read_to_string("/proc/self/timers") {
        Ok(timers) => assert_eq!(timers, ""),
        Err(error) => dormouse_testkit::skip(format!("/proc/self/timers: {error}")),
    }
}

#[test]
fn nothing_is_left_of_profiles() {
    in_child(|| {
        for hz in [1000, 99] {
            let (end, ended) = mpsc::channel::<()>();
            let profiling = [Profiling::start(&options(hz)).unwrap(), Profiling::start(&options(7)).unwrap()];
            let waits = thread::spawn(move || _ = ended.recv());
            worker("a hog", || hog(WORK / 4)).join();
            if let Ok(timers) = std::fs::read_to_string("/proc/self/timers") {
                assert_ne!(timers, "");
            }
            drop(profiling);
            nothing_is_left();
            drop(end);
            waits.join().unwrap();
        }
    });
}
