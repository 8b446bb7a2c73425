//! Threads whose alternate signal stack has little room.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dormouse_profile::{Profile, Profiling};
use dormouse_sys::process::identity;
use dormouse_testkit::{AlternateStack, in_child};

use super::hogs::{hog, options, samples_of, weight_of};

const WORK: Duration = Duration::from_millis(400);

/// The profile of a thread with this room, its id, and the bytes that samples have taken.
fn sampled(room: usize) -> (Profile, u32, usize) {
    let profiling = Profiling::start(&options(1000)).unwrap();
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let busy = thread::spawn(move || {
        let stack = AlternateStack::new(room);
        // So that it is sampled at once.
        dormouse_sys::thread::current();
        hog(WORK);
        tell.send((identity::tid(), stack.used())).unwrap();
        let _ = ended.recv();
    });
    let (tid, used) = told.recv().unwrap();
    // While it lives, its clock can be read.
    let profile = profiling.read();
    drop(end);
    busy.join().unwrap();
    (profile, tid, used)
}

#[test]
fn threads_without_room_are_counted() {
    in_child(|| {
        // The kernel takes a frame that ends where the stack does for one that has no room.
        for room in [8, 64, 512] {
            let (profile, tid, used) = sampled(room);
            assert_eq!(used, 0, "{room}: the handler has used the stack");
            let coverage = &profile.coverage;
            assert_eq!(coverage.refused, 1, "{room}: {coverage:?}");
            assert!(coverage.notes.iter().any(|note| note.contains("sigaltstack")), "{coverage:?}");
            // Its CPU time is a row without samples.
            assert!(weight_of(&profile, tid) * 2 > WORK.as_nanos() as u64, "{room}: {profile:#?}");
            assert_eq!(samples_of(&profile, tid), 0, "{room}: {profile:#?}");
        }
    });
}

#[test]
fn a_sample_takes_less_than_its_room() {
    in_child(|| {
        let (profile, tid, used) = sampled(32 * 1024);
        assert!(weight_of(&profile, tid) * 2 > WORK.as_nanos() as u64, "{profile:#?}");
        let room = if cfg!(debug_assertions) { 3584 } else { 2048 };
        println!("a sample takes {used} of {room} bytes");
        assert!(used > 0 && used <= room, "{used} of {room}");
        assert!(profile.coverage.samples > 0);
    });
}
