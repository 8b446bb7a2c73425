//! Work has the share that it used, however many threads did it (golang#35057).
#![cfg(not(dormouse_fallback))]

use std::thread;
use std::time::Duration;

use dormouse_profile::{Options, Profile, Profiling};
use dormouse_testkit::{in_child, skip, spin_for, thread_cpu};

/// CPU time of each hog.
const WORK: Duration = Duration::from_secs(2);

/// The nanoseconds since a thread's last sample: two periods, and ticks that a virtual machine
/// misses.
const UNSEEN: u64 = 48_000_000;

fn time_of(profile: &Profile, thread: &str) -> u64 {
    let rows = profile.samples.iter().filter(|row| profile.threads[row.thread as usize].name == thread);
    rows.map(|row| row.values[1]).sum()
}

#[test]
fn serial_and_parallel_hogs_have_equal_shares() {
    in_child(|| {
        let mut options = Options::default();
        options.hz = 250;
        let profiling = match Profiling::start(&options) {
            Ok(profiling) => profiling,
            Err(error) => return skip(format!("no profiles here: {error}")),
        };
        let used = [("serial", 1), ("parallel", 4)].map(|(name, threads)| {
            let hog = move || {
                // So that it is sampled at once.
                dormouse_sys::thread::current();
                spin_for(WORK / threads);
                thread_cpu().as_nanos() as u64
            };
            let begin = |_| thread::Builder::new().name(name.to_owned()).spawn(hog).unwrap();
            (threads, (0..threads).map(begin).collect::<Vec<_>>())
        });
        let used = used.map(|(threads, hogs)| {
            (u64::from(threads), hogs.into_iter().map(|hog| hog.join().unwrap()).sum::<u64>())
        });
        let profile = profiling.read();
        for (name, (threads, used)) in ["serial", "parallel"].into_iter().zip(used) {
            let seen = time_of(&profile, name);
            assert!(seen <= used + UNSEEN && seen + threads * UNSEEN >= used, "{name}: {seen} of {used}");
        }
    });
}
