//! Work has the share that it used, however many threads did it (golang#35057).
#![cfg(not(dormouse_fallback))]

use std::thread;
use std::time::Duration;

use dormouse_profile::{Options, Profile, Profiling};
use dormouse_testkit::{in_child, skip, spin_for};

/// CPU time of each hog. A thread's last period may be missing: of four threads, on a kernel whose
/// tick is 10 ms, that is a fiftieth.
const WORK: Duration = Duration::from_secs(2);

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
        thread::scope(|scope| {
            for (name, threads) in [("serial", 1), ("parallel", 4)] {
                for _ in 0..threads {
                    let hog = move || {
                        // So that it is sampled at once.
                        dormouse_sys::thread::current();
                        spin_for(WORK / threads);
                    };
                    thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, hog).unwrap();
                }
            }
        });
        let profile = profiling.read();
        let [serial, parallel] = ["serial", "parallel"].map(|name| time_of(&profile, name));
        let work = WORK.as_nanos() as u64;
        for share in [serial, parallel] {
            assert!(share.abs_diff(work) * 20 <= work, "{serial} and {parallel} of {work}");
        }
        assert!(serial.abs_diff(parallel) * 20 <= work, "{serial} and {parallel}");
    });
}
