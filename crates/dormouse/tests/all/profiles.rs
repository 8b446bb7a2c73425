//! Profiles of the facade: named, scaled to the account, several at once, over a fork. Each test is
//! a child: samples are signals.
#![cfg(not(dormouse_fallback))]

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dormouse::profile::{NO_GROUP, Profile};
use dormouse::{Event, Group, ProfileError, ProfileRun, ProfileSpec};
use dormouse_testkit::{eventually, fork, in_child, spin_for};

/// The sum of a group's rows.
fn sum(profile: &Profile, name: &str) -> u64 {
    let at = profile.groups.iter().position(|group| group.name == name);
    let of = |at: usize| profile.samples.iter().filter(move |row| row.group as usize == at);
    at.map_or(0, |at| of(at).map(|row| row.values[1]).sum())
}

fn total(profile: &Profile) -> u64 {
    profile.samples.iter().map(|row| row.values[1]).sum()
}

fn samples(profile: &Profile, name: &str) -> u64 {
    let at = profile.groups.iter().position(|group| group.name == name).unwrap();
    profile.samples.iter().filter(|row| row.group as usize == at).map(|row| row.values[0]).sum()
}

fn assert_within_a_percent(is: u64, should: u64) {
    assert!(is.abs_diff(should) <= should / 100, "{is} is not within 1 % of {should}");
}

/// CPU time of the process, as the kernel's account has it.
fn usage() -> u64 {
    // SAFETY: a valid place.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
        usage
    };
    let ns = |time: libc::timeval| (time.tv_sec * 1_000_000_000 + time.tv_usec * 1_000).cast_unsigned();
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

/// Uses `ms` milliseconds of CPU time in a group, on a thread of its own.
fn work(group: Option<Group>, ms: u64) -> thread::JoinHandle<()> {
    let spin = move || spin_for(Duration::from_millis(ms));
    thread::spawn(move || match group {
        Some(group) => group.scope(spin),
        None => spin(),
    })
}

fn join<const N: usize>(threads: [thread::JoinHandle<()>; N]) {
    for thread in threads {
        thread.join().unwrap();
    }
}

/// The threads and timers that profiles have in this process.
fn left() -> (usize, usize) {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    let threads = names.filter(|name| name.starts_with("dormouse-p")).count();
    let timers = std::fs::read_to_string("/proc/self/timers").unwrap_or_default();
    (threads, timers.matches("ID:").count())
}

#[test]
fn weights_add_up_to_what_was_used() {
    in_child(|| {
        let [busy, light, idle] = ["busy", "light", "idle"].map(Group::new);
        // Before, so that the account goes on at both ends.
        let _counting = dormouse::start_counting(&[Event::TASK_CLOCK]).unwrap();
        let groups = || [busy, light, idle].map(|group| group.read().cpu.as_nanos() as u64);
        let (groups_before, before) = (groups(), usage());
        let run = ProfileRun::start(&ProfileSpec::cpu()).unwrap();
        let begun = usage();
        let threads = [work(Some(busy), 1_500), work(Some(light), 300), work(None, 700)];
        // Less than a period, many times: samples meet some of it or none.
        for _ in 0..20 {
            idle.scope(|| spin_for(Duration::from_micros(200)));
        }
        join(threads);
        let ends = usage();
        let profile = run.read();
        let (groups_after, after) = (groups(), usage());
        for (at, group) in [busy, light, idle].into_iter().enumerate() {
            let used = groups_after[at] - groups_before[at];
            assert_within_a_percent(sum(&profile, group.name()), used);
            let row = profile.groups.iter().find(|row| row.id == group.id()).unwrap();
            assert_eq!(row.total, Some(sum(&profile, group.name())));
        }
        // Of the start and of the reading, parts are in it.
        let used = total(&profile).clamp(ends - begun, after - before);
        assert_within_a_percent(total(&profile), used);
        assert_eq!(profile.coverage.total, total(&profile));
        let named: u64 = [busy, light, idle].iter().map(|group| sum(&profile, group.name())).sum();
        assert_eq!(profile.coverage.in_groups, named);
        // Nearly all of the rest is the thread in no group; what dormouse used has a row, too.
        assert!(sum(&profile, "") >= 700_000_000);
        assert!(profile.groups.iter().any(|group| group.name == "(dormouse)"));
        assert_eq!(
            (profile.groups[NO_GROUP as usize].id, profile.groups[NO_GROUP as usize].name.len()),
            (0, 0)
        );
    });
}

#[test]
fn several_at_once_do_not_disturb_one_another() {
    in_child(|| {
        let [one, two] = ["set one", "set two"].map(Group::new);
        let all = ProfileRun::start(&ProfileSpec::cpu().hz(99)).unwrap();
        let rare = ProfileRun::start(&ProfileSpec::cpu().hz(19).groups("set one")).unwrap();
        let often = ProfileRun::start(&ProfileSpec::cpu().hz(250)).unwrap();
        join([work(Some(one), 1_000), work(Some(two), 1_000)]);
        let often_read = often.read();
        drop(often);
        join([work(Some(one), 1_000), work(Some(two), 200)]);
        let (all, rare) = (all.read(), rare.read());
        assert_eq!([&all, &rare, &often_read].map(|p| 1_000_000_000 / p.period), [99, 19, 250]);
        for name in ["set one", "set two"] {
            assert!(sum(&often_read, name).abs_diff(1_000_000_000) < 50_000_000);
        }
        assert!(sum(&all, "set one").abs_diff(2_000_000_000) < 50_000_000);
        // The same account, whatever the rate; and the filter leaves no other.
        assert_eq!(sum(&all, "set one"), sum(&rare, "set one"));
        assert_eq!((total(&rare), sum(&rare, "set two")), (sum(&rare, "set one"), 0));
        assert!(rare.stacks.len() <= all.stacks.len());
        // Each has samples of its own rate; how many depends on the kernel's tick, and on the load.
        let [all, rare, often] = [&all, &rare, &often_read].map(|profile| samples(profile, "set one"));
        assert!(0 < rare && rare < all && 0 < often, "{all} {rare} {often}");
    });
}

#[test]
fn a_group_that_comes_later_is_there() {
    in_child(|| {
        Group::new("GET /first");
        let run = ProfileRun::start(&ProfileSpec::cpu().groups("GET *,!GET /hidden")).unwrap();
        for name in ["GET /second", "GET /hidden", "POST /other"] {
            work(Some(Group::new(name)), 100).join().unwrap();
        }
        let profile = run.read();
        assert!(sum(&profile, "GET /second") >= 100_000_000);
        assert!(
            !profile.groups.iter().any(|group| group.name.contains("hidden") || group.name.contains("POST"))
        );
        assert_eq!(total(&profile), sum(&profile, "GET /second"));
        // All of them count as used in groups.
        assert!(profile.coverage.in_groups >= 300_000_000);
    });
}

#[test]
fn nonsense_is_refused_with_a_reason() {
    in_child(|| {
        Group::new("GET /menu");
        let refused = |spec: ProfileSpec| ProfileRun::start(&spec).unwrap_err();
        let no_group = refused(ProfileSpec::cpu().groups("GET /menue"));
        assert!(matches!(&no_group, ProfileError::NoGroup { groups, .. } if groups == &["GET /menu"]));
        assert!(matches!(refused(ProfileSpec::cpu().groups("a,,b")), ProfileError::Globs(_)));
        let rate = refused(ProfileSpec::cpu().hz(0)).to_string();
        assert_eq!(rate, "`hz` is 0, and must be from 1 to 1000");
        assert!(matches!(refused(ProfileSpec::cpu().hz(1_001)), ProfileError::Rate { .. }));
        assert!(matches!(refused(ProfileSpec::alloc().bytes(1)), ProfileError::Rate { .. }));
    });
}

#[test]
fn nothing_is_left_when_it_ends() {
    in_child(|| {
        let run = ProfileRun::start(&ProfileSpec::cpu()).unwrap();
        // A thread that it has begun has its name for a moment.
        eventually(|| left().0 == 1);
        drop(run);
        eventually(|| left() == (0, 0));
        // And again.
        let run = ProfileRun::start(&ProfileSpec::cpu()).unwrap();
        work(None, 100).join().unwrap();
        assert!(total(&run.read()) >= 100_000_000);
        drop(run);
        eventually(|| left() == (0, 0));
    });
}

#[test]
fn a_forked_child_begins_its_own() {
    in_child(|| {
        let group = Group::new("forked");
        let run = ProfileRun::start(&ProfileSpec::cpu()).unwrap();
        let (go_on, wait) = mpsc::channel::<()>();
        let worker = thread::spawn(move || {
            while wait.try_recv().is_err() {
                group.scope(|| spin_for(Duration::from_millis(1)));
            }
        });
        let status = fork(|| {
            let parents = run.read();
            assert_eq!(parents.coverage.samples, 0);
            assert!(!parents.coverage.notes.is_empty());
            drop(run);
            assert_eq!(left(), (0, 0));
            let own = ProfileRun::start(&ProfileSpec::cpu().hz(250)).unwrap();
            group.scope(|| spin_for(Duration::from_millis(200)));
            let profile = own.read();
            assert_eq!(profile.pid, std::process::id());
            assert!(samples(&profile, "forked") > 10, "{profile:?}");
            assert!(sum(&profile, "forked") >= 200_000_000);
        });
        assert!(status.success(), "{status}");
        go_on.send(()).unwrap();
        worker.join().unwrap();
    });
}
