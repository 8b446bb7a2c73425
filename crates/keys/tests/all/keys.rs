//! The promises of keys, whether their sites are patched or not.

use crate::arch::BREAKPOINT;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use dormouse_keys::{
    Batch, Error, Holder, Key, KeyUse, Lease, PATCHING, Selector, all, holds, likely, static_key, unlikely,
};
use dormouse_testkit::{eventually, in_child};

static_key! {
    static OFF: "truth.off" = false;
    static ON: "truth.on" = true;
    static SHARED: "count.shared" = false;
    static LEFT: "batch.left" = false;
    static RIGHT: "batch.right" = false;
    static NOISY: "batch.noisy" = false;
}

mod elsewhere {
    dormouse_keys::static_key! {
        /// The same name as another key.
        pub static TWIN: "count.shared" = false;
    }
}

#[inline(never)]
fn sites() -> [bool; 4] {
    [unlikely!(OFF), likely!(OFF), unlikely!(ON), likely!(ON)]
}

fn uses_of(name: &str) -> Vec<KeyUse> {
    all().into_iter().filter(|k| k.key.name() == name).collect()
}

#[test]
fn every_kind_of_site_follows_its_key() {
    in_child(|| {
        assert_eq!(sites(), [false, false, true, true]);
        for _ in 0..2 {
            let report = Batch::new().enable(&OFF).disable(&ON).apply().unwrap();
            assert_eq!((report.keys, report.sites), (2, 4));
            assert_eq!(report.barriers, usize::from(PATCHING));
            assert_eq!(sites(), [true, true, false, false]);
            assert!(OFF.is_enabled() && !ON.is_enabled());
            Batch::new().disable(&OFF).enable(&ON).apply().unwrap();
            assert_eq!(sites(), [false, false, true, true]);
        }
    });
}

#[test]
fn reset_restores_what_each_key_started_with() {
    in_child(|| {
        Batch::new().enable(&OFF).disable(&ON).apply().unwrap();
        let lease = ON.acquire().unwrap();
        assert_eq!([OFF.key(), ON.key()].map(Key::initial), [false, true]);
        let report = Batch::new().reset_all([OFF.key(), ON.key()]).apply().unwrap();
        assert_eq!((report.keys, sites()), (1, [false, false, true, true]));
        lease.release().unwrap();
        assert_eq!(sites(), [false, false, true, true]);
    });
}

#[test]
fn a_key_is_on_by_baseline_or_lease() {
    in_child(|| {
        fn shared() -> bool {
            unlikely!(SHARED)
        }
        let first = SHARED.acquire().unwrap();
        let second = Lease::of([SHARED.key(), SHARED.key()]).unwrap();
        assert_eq!(second.report().sites, 0, "the key was on already");
        assert_eq!(SHARED.leases(), 2);
        assert!(shared());
        drop(first);
        assert!(shared());
        SHARED.enable().unwrap();
        second.release().unwrap();
        assert!(shared() && SHARED.baseline());
        SHARED.disable().unwrap();
        assert!(!shared());
        assert_eq!(SHARED.leases(), 0);
    });
}

#[test]
fn part_of_a_lease_can_be_given_back() {
    in_child(|| {
        fn both() -> (bool, bool) {
            (unlikely!(LEFT), unlikely!(RIGHT))
        }
        let mut lease = Lease::of([LEFT.key(), RIGHT.key()]).unwrap();
        assert_eq!(both(), (true, true));
        lease.release_where(|key| key.name().ends_with("left")).unwrap();
        assert_eq!(both(), (false, true));
        assert_eq!(lease.keys().len(), 1);
        drop(lease);
        assert_eq!(both(), (false, false));
    });
}

#[test]
fn a_batch_by_globs_changes_selected_keys() {
    in_child(|| {
        fn three() -> [bool; 3] {
            [unlikely!(LEFT), unlikely!(RIGHT), unlikely!(NOISY)]
        }
        let selected = Selector::parse("batch.*,!*.noisy").unwrap().keys();
        let names: Vec<_> = selected.iter().map(|k| k.key.name()).collect();
        assert_eq!(names, ["batch.left", "batch.right"]);
        let report = Batch::new().enable_all(selected.iter().map(|k| k.key)).apply().unwrap();
        assert_eq!(report.keys, 2);
        assert_eq!(three(), [true, true, false]);
        let report = Batch::new().enable_all(selected.iter().map(|k| k.key)).apply().unwrap();
        assert_eq!((report.keys, report.sites, report.barriers), (0, 0, 0), "nothing to do");
    });
}

#[test]
fn the_last_change_in_a_batch_counts() {
    in_child(|| {
        fn left() -> bool {
            unlikely!(LEFT)
        }
        assert!(!left());
        let report = Batch::new().enable(&LEFT).disable(&LEFT).enable(&LEFT).apply().unwrap();
        assert_eq!(report.keys, 1);
        assert!(left());
    });
}

#[test]
fn keys_of_one_name_are_listed_apart() {
    fn use_both() -> (bool, bool) {
        (unlikely!(SHARED), unlikely!(elsewhere::TWIN))
    }
    assert_eq!(use_both(), (false, false));
    let uses = uses_of("count.shared");
    assert_eq!(uses.len(), 2);
    assert!(uses.iter().all(|k| k.sites >= 1 && k.key.file().ends_with("keys.rs")));
    assert_ne!(uses[0].key.line(), uses[1].key.line());
    if PATCHING {
        let own = std::env::current_exe().unwrap();
        assert_eq!(*uses[0].object, *own.file_name().unwrap().to_string_lossy());
    }
}

#[test]
fn concurrent_changes_of_one_key_all_count() {
    in_child(|| {
        fn shared() -> bool {
            unlikely!(SHARED)
        }
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let lease = SHARED.acquire().unwrap();
                        assert!(shared());
                        assert!(SHARED.is_enabled());
                        drop(lease);
                    }
                });
            }
        });
        assert_eq!(SHARED.leases(), 0);
        assert!(!shared());
    });
}

#[test]
fn a_key_that_reads_on_has_awake_sites() {
    in_child(|| {
        fn left() -> bool {
            unlikely!(LEFT)
        }
        let (seen, is_seen) = channel();
        let reader = std::thread::spawn(move || {
            for on in [true, false].into_iter().cycle().take(200) {
                while LEFT.is_enabled() != on {
                    std::hint::spin_loop();
                }
                assert_eq!(left(), on);
                seen.send(()).unwrap();
            }
        });
        for on in [true, false].into_iter().cycle().take(200) {
            if on {
                LEFT.enable().unwrap()
            } else {
                LEFT.disable().unwrap()
            };
            is_seen.recv().unwrap();
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_hold_goes_off_by_itself() {
    in_child(|| {
        fn three() -> [bool; 3] {
            [unlikely!(LEFT), unlikely!(RIGHT), unlikely!(NOISY)]
        }
        let (short, long) = (Duration::from_millis(30), Duration::from_secs(3600));
        LEFT.enable_for(long).unwrap();
        // A second round begins while the timer sleeps for an hour.
        for _ in 0..2 {
            let start = Instant::now();
            RIGHT.enable_for(short).unwrap();
            drop(NOISY.acquire().unwrap().dwell(short).unwrap());
            let on = three();
            assert!(on == [true; 3] || start.elapsed() >= short, "{on:?}");
            eventually(|| !NOISY.is_enabled() && !RIGHT.is_enabled());
            assert_eq!(three(), [true, false, false]);
        }
        let left: Vec<_> = holds().iter().map(|h| (h.key.name(), h.holder, h.left <= long)).collect();
        assert_eq!(left, [("batch.left", Holder::Program, true)]);
    });
}

#[test]
fn a_hold_lasts_its_length() {
    in_child(|| {
        for length in [1, 5, 20].map(Duration::from_millis) {
            let start = Instant::now();
            LEFT.enable_for(length).unwrap();
            eventually(|| !LEFT.is_enabled());
            assert!(start.elapsed() >= length, "{:?} of {length:?}", start.elapsed());
        }
    });
}

#[test]
fn the_timer_thread_takes_no_host_signal() {
    in_child(|| {
        let timers = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
            // A thread that has ended meanwhile has no name.
            let of =
                |task: &std::path::PathBuf| std::fs::read_to_string(task.join("comm")).unwrap_or_default();
            tasks.filter(|task| of(task) == "dormouse-timer\n").collect::<Vec<_>>()
        };
        let lease = LEFT.acquire().unwrap();
        assert!(timers().is_empty(), "nothing ends by time");
        lease.keep_for(Duration::from_secs(3600)).unwrap();
        RIGHT.enable_for(Duration::from_secs(3600)).unwrap();
        drop(NOISY.acquire().unwrap().dwell(Duration::from_secs(3600)).unwrap());
        // A thread names itself.
        eventually(|| !timers().is_empty());
        let [timer] = &timers()[..] else { panic!("{:?}", timers()) };
        let status = std::fs::read_to_string(timer.join("status")).unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        let blocked = u64::from_str_radix(blocked.trim(), 16).unwrap();
        let is_blocked = |signal: i32| blocked & (1 << (signal - 1)) != 0;
        assert!([libc::SIGINT, libc::SIGTERM, libc::SIGPROF, libc::SIGALRM].into_iter().all(is_blocked));
        assert!(!is_blocked(libc::SIGTRAP) && !is_blocked(libc::SIGSEGV), "{blocked:x}");
    });
}

#[test]
fn errors_say_what_to_change() {
    fn is_send_and_sync<T: Send + Sync>() {}
    let error =
        Error::UnexpectedText { key: "a.b", addr: 0x1000, expected: Default::default(), found: BREAKPOINT };
    assert!(error.to_string().contains("a.b"));
    // Where no code is rewritten, nothing is known of it.
    assert!(error.to_string().contains("breakpoint") || !dormouse_keys::PATCHING);
    let _: &dyn std::error::Error = &error;
    is_send_and_sync::<(Key, Lease, Batch, Error)>();
}
