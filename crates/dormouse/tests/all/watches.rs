//! Watches through the facade: as events, and of groups whose tasks they follow. Each test is a
//! child: a hit is a signal.

use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;

use dormouse::events::set_lazy;
use dormouse::{Access, Event, Group, Watch, WatchError, WatchReport, WatchSpec, idle};
use dormouse_breakpoints::switches;
use dormouse_testkit::{fork, in_child, skip};

static VALUES: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

fn spec(value: usize) -> WatchSpec {
    WatchSpec::new(VALUES[value].as_ptr().addr(), 8, Access::Write).named(&format!("value {value}"))
}

fn write(value: usize) {
    black_box(&VALUES[value]).fetch_add(1, Ordering::Relaxed);
}

fn write_all() {
    (0..VALUES.len()).for_each(write);
}

/// In a child where watches can be.
fn with_watches(test: fn()) {
    in_child(|| match Watch::write(&VALUES[0]) {
        Ok(watch) => {
            drop(watch);
            test();
        }
        Err(why) => skip(format!("no watches here: {why}")),
    });
}

fn groups<const N: usize>() -> [Group; N] {
    std::array::from_fn(|n| Group::new(&format!("group {n}")))
}

fn follow(group: Group, value: usize) -> Watch {
    Watch::for_group(group, &spec(value)).unwrap()
}

/// The hits by the kernel's count, and those that were in the group.
fn counts(watch: &Watch) -> (u64, u64) {
    let WatchReport { hits, passed, .. } = watch.report();
    (hits, passed)
}

fn count_of(group: Group, event: Event) -> u64 {
    group.read_counts().iter().find(|count| count.event == event).map_or(0, |count| count.value)
}

/// The calls to the kernel that switch registers.
fn calls(work: impl FnOnce()) -> u64 {
    let before = switches();
    work();
    switches() - before
}

#[test]
fn hits_are_an_event_of_each_group() {
    with_watches(|| {
        let [one, two] = groups();
        let watch = Watch::arm(&spec(0)).unwrap();
        let event = Event::by_name("watch:value 0:w").unwrap();
        assert_eq!(watch.event(), Some(event));
        let _counting = dormouse::start_counting(&[event]).unwrap();
        write(0);
        one.scope(|| (0..3).for_each(|_| write(0)));
        std::thread::spawn(move || two.scope(|| write(0))).join().unwrap();
        assert_eq!((count_of(one, event), count_of(two, event)), (3, 1));
        let report = watch.close();
        assert_eq!((report.hits, report.lost), (5, 0));
        let of = |group: Group| report.sites.iter().filter(move |site| site.group == group.id());
        assert_eq!(of(one).map(|site| site.hits).sum::<u64>(), 3);
        assert!(Event::by_name("watch:value 0:w").is_err(), "it has ended");
    });
}

#[test]
fn events_of_ended_watches_are_given_back() {
    with_watches(|| {
        for round in 0..40 {
            let name = format!("round {round}");
            let watch = Watch::arm(&spec(0).named(&name)).unwrap();
            assert_eq!(watch.event().unwrap().name(), format!("watch:{name}:w"));
        }
        let twins = [Watch::arm(&spec(0)).unwrap(), Watch::arm(&spec(0)).unwrap()];
        let names = twins.each_ref().map(|watch| watch.event().unwrap().name());
        assert_eq!(names, ["watch:value 0:w", "watch:value 0#2:w"]);
    });
}

#[test]
fn only_the_groups_tasks_are_watched() {
    with_watches(|| {
        let [watched, other] = groups();
        let watch = follow(watched, 0);
        for _ in 0..10 {
            watched.scope(|| write(0));
            other.scope(|| write(0));
        }
        std::thread::scope(|scope| {
            for group in [watched, other, watched] {
                scope.spawn(move || group.scope(|| write(0)));
            }
            scope.spawn(|| write(0));
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        runtime.block_on(async {
            let task = || async {
                for _ in 0..5 {
                    write(0);
                    tokio::task::yield_now().await;
                }
            };
            let tasks: Vec<_> =
                [watched, other].map(|group| tokio::spawn(group.instrument(task()))).into_iter().collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        drop(runtime);
        let [mut fiber, mut stranger] = [watched, other].map(Group::task);
        for _ in 0..3 {
            fiber.switch_to();
            write(0);
            stranger.switch_to();
            write(0);
        }
        idle();
        let report = watch.close();
        assert_eq!((report.hits, report.delivered, report.passed), (20, 20, 20));
        assert!(report.sites.iter().all(|site| site.group == watched.id() && site.task != 0));
    });
}

#[test]
fn one_groups_tasks_switch_nothing() {
    with_watches(|| {
        let [watched, other] = groups();
        let watch = follow(watched, 0);
        let _clock = dormouse::start_counting(&[Event::TASK_CLOCK]).unwrap();
        let poll = |group: Group| {
            group.scope(|| write(0));
        };
        for lazy in [false, true] {
            set_lazy(lazy);
            poll(watched);
            assert_eq!(calls(|| (0..50).for_each(|_| poll(watched))), 0, "lazy: {lazy}");
            assert_eq!(calls(|| poll(other)), 1);
            assert_eq!(calls(|| (0..50).for_each(|_| poll(other))), 0);
            assert_eq!(calls(|| poll(watched)), 1);
        }
        set_lazy(false);
        assert_eq!(counts(&watch), (104, 104));
    });
}

#[test]
fn work_outside_of_tasks_is_interrupted_once() {
    with_watches(|| {
        let [watched] = groups();
        let watch = follow(watched, 0);
        for _ in 0..3 {
            watched.scope(|| write(0));
            (0..100).for_each(|_| write(0));
        }
        assert_eq!(counts(&watch), (6, 3));
    });
}

#[test]
fn the_innermost_group_is_watched() {
    with_watches(|| {
        let [outer, inner] = groups();
        let watches = [follow(outer, 0), follow(inner, 1)];
        outer.scope(|| {
            write_all();
            inner.scope(write_all);
            outer.scope(write_all);
            write_all();
        });
        assert_eq!(watches.each_ref().map(counts), [(3, 3), (1, 1)]);
    });
}

#[test]
fn a_panic_and_a_move_end_nothing_else() {
    with_watches(|| {
        let [watched, other] = groups();
        let watch = follow(watched, 0);
        other.scope(|| {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                watched.scope(|| {
                    write(0);
                    std::panic::resume_unwind(Box::new(()));
                });
            }));
            assert!(panicked.is_err());
            write(0);
        });
        let mut fiber = watched.task();
        fiber.switch_to();
        write(0);
        std::thread::scope(|scope| {
            let there = || {
                fiber.switch_to();
                write(0);
                idle();
            };
            scope.spawn(there).join().unwrap();
        });
        other.scope(|| write(0));
        idle();
        assert_eq!(counts(&watch), (3, 3));
    });
}

#[test]
fn a_watch_ends_amid_a_poll() {
    with_watches(|| {
        let [watched] = groups();
        let watch = follow(watched, 0);
        let (tell, told) = channel();
        let (go, gone) = channel::<()>();
        let thread = std::thread::spawn(move || {
            watched.scope(|| {
                write(0);
                tell.send(()).unwrap();
                gone.recv().unwrap();
                (0..100).for_each(|_| write(0));
            });
        });
        told.recv().unwrap();
        let report = watch.close();
        assert_eq!((report.hits, report.passed), (1, 1));
        go.send(()).unwrap();
        thread.join().unwrap();
        watched.scope(|| {
            let watch = follow(watched, 1);
            write(1);
            assert_eq!(counts(&watch).1, 0, "it begins at the next switch");
            watched.scope(|| write(1));
            write(1);
            assert_eq!(counts(&watch).1, 2);
            drop(watch);
            write(1);
        });
        write_all();
    });
}

#[test]
fn six_watches_of_two_groups_share_registers() {
    with_watches(|| {
        let both: [Group; 2] = groups();
        let watches: Vec<_> = (0..6).map(|value| follow(both[value / 3], value)).collect();
        let refused = Watch::for_group(both[0], &spec(6)).unwrap_err();
        assert!(matches!(refused, WatchError::Arming(_)), "{refused}");
        let refused = Watch::arm(&spec(6)).unwrap_err().to_string();
        assert!(refused.contains("value 0") && refused.contains("value 5"), "{refused}");
        for _ in 0..5 {
            for group in both {
                group.scope(write_all);
            }
        }
        assert!(watches.iter().all(|watch| counts(watch) == (5, 5)));
        // With two of each group there is room for one of everybody.
        let watches: Vec<_> =
            watches.into_iter().zip(0..).filter(|(_, n)| n % 3 != 2).map(|(watch, _)| watch).collect();
        let all = Watch::arm(&spec(6)).unwrap();
        for group in both {
            group.scope(write_all);
        }
        std::thread::spawn(move || both.map(|group| group.scope(write_all))).join().unwrap();
        assert!(watches.iter().all(|watch| counts(watch) == (7, 7)));
        assert_eq!(counts(&all), (4, 4));
    });
}

#[test]
fn a_child_is_not_watched_and_may_watch() {
    with_watches(|| {
        let [watched] = groups();
        let watch = follow(watched, 0);
        watched.scope(|| {
            write(0);
            let child = fork(|| {
                write(0);
                watched.scope(write_all);
                assert!(watch.is_over());
                let own = follow(watched, 0);
                watched.scope(|| write(0));
                Group::new("another").scope(|| write(0));
                watched.scope(|| write(0));
                assert_eq!(counts(&own).1, 2);
            });
            assert!(child.success());
            write(0);
        });
        assert_eq!(counts(&watch), (2, 2));
    });
}

#[test]
fn threads_that_end_leave_their_hits() {
    with_watches(|| {
        let [watched] = groups();
        let watch = follow(watched, 0);
        for _ in 0..30 {
            std::thread::spawn(move || watched.scope(|| write(0))).join().unwrap();
        }
        assert_eq!(counts(&watch), (30, 30));
    });
}

#[test]
fn a_client_that_counts_everywhere_arms_nothing() {
    with_watches(|| {
        let [watched, other] = groups();
        let watch = follow(watched, 0);
        let _counting = dormouse::start_counting(&[watch.event().unwrap()]).unwrap();
        for group in [watched, other, watched] {
            group.scope(|| write(0));
        }
        assert_eq!(counts(&watch), (2, 2));
        assert_eq!(count_of(watched, watch.event().unwrap()), 2);
    });
}

#[test]
fn statics_are_watched_by_name() {
    with_watches(|| {
        // Three words into the array: the names of its elements would take debug information.
        let spec = Watch::find("watches::VALUES+24", Access::Write).unwrap();
        let watch = Watch::arm(&spec).unwrap();
        write_all();
        let report = watch.report();
        assert_eq!((report.addr, report.len, report.hits), (VALUES[3].as_ptr().addr(), 8, 1));
        let refused = Watch::find("watches::VALUE", Access::Write).unwrap_err();
        assert!(refused.to_string().contains("VALUES"), "{refused}");
    });
}
