//! Threads of this very process, rings, and the weights of samples.

use dormouse_testkit::in_child;
use rustix::process::{Rlimit, Uid, setrlimit};
use rustix::thread::set_thread_uid;

use super::*;

/// The user whom nobody is.
const NOBODY: u32 = 65534;

#[test]
fn each_processor_has_a_ring_at_the_limit() {
    in_child(|| {
        if set_thread_uid(Uid::from_raw(NOBODY)).is_err() {
            return dormouse_testkit::skip("only root can become another user");
        }
        setrlimit(Resource::Memlock, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
        match rings(NonZero::new(SECOND / 100).unwrap(), true) {
            Ok(rings) => assert_eq!(rings.len(), online_cpus().len()),
            Err(why) => dormouse_testkit::skip(why.to_string()),
        }
    });
}

#[test]
fn a_thread_missing_from_a_list_lives() {
    in_child(|| {
        let mut profiling = match OutsideProfiling::start(std::process::id(), &Options::default()) {
            Ok(profiling) => profiling,
            Err(why) => return dormouse_testkit::skip(why.to_string()),
        };
        let threads = profiling.coverage.threads;
        let limit = getrlimit(Resource::Nofile);
        // Without a descriptor the list is empty.
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
        profiling.look(false);
        setrlimit(Resource::Nofile, limit).unwrap();
        assert!(profiling.threads.values().all(|thread| thread.is_alive));
        profiling.look(false);
        assert_eq!(profiling.coverage.threads, threads, "no thread is new");
    });
}

#[test]
fn replaced_threads_keep_their_time() {
    in_child(|| {
        let mut profiling = match OutsideProfiling::start(std::process::id(), &Options::default()) {
            Ok(profiling) => profiling,
            Err(why) => return dormouse_testkit::skip(why.to_string()),
        };
        let tid = std::process::id();
        let known = profiling.threads.get_mut(&tid).unwrap();
        let (index, base) = (known.index, known.base);
        // So the thread that has this number now, and less time, is another one.
        known.used = base + (1 << 60);
        profiling.look(false);
        assert_ne!(profiling.threads[&tid].index, index);
        let profile = profiling.read();
        let rows = profile.samples.iter().filter(|row| row.thread == index);
        assert_eq!(rows.map(|row| row.values[1]).sum::<u64>(), 1 << 60);
        assert!(profile.threads.iter().all(|thread| thread.name != NOT_SEEN), "{:?}", profile.threads);
    });
}

#[test]
fn threads_that_share_a_row_share_its_samples() {
    in_child(|| {
        let mut profiling = match OutsideProfiling::start(std::process::id(), &Options::default()) {
            Ok(profiling) => profiling,
            Err(why) => return dormouse_testkit::skip(why.to_string()),
        };
        profiling.threads.clear();
        for (tid, used, is_alive) in [(1, 100, true), (2, 500, false), (3, 1000, true)] {
            let thread = Sampled { index: 7, base: 50, used, events: Vec::new(), is_alive };
            profiling.threads.insert(tid, thread);
        }
        let used = SharedTime { ns: 50 + 450 + 950, is_alive: false };
        assert_eq!(profiling.used().into_iter().collect::<Vec<_>>(), [(7, used)]);
    });
}

#[test]
fn lost_samples_scale_nobody_up() {
    let used = SharedTime { ns: 900, is_alive: true };
    let mut samples =
        [10, 20].map(|ns| Sample { stack: 1, values: [1, ns, 0, 0], ..Sample::default() }).into();
    assert_eq!(used.scale(0, true, 15, &mut samples), 900);
    assert_eq!(
        samples.iter().map(|row| row.values).collect::<Vec<_>>(),
        [[1, 15, 0, 0], [1, 30, 0, 0], [0, 855, 0, 0]]
    );
    // Without the kernel's time they keep their own weights.
    samples.truncate(2);
    assert_eq!(used.scale(0, false, 15, &mut samples), 900);
    assert_eq!(samples.iter().map(|row| row.values[1]).collect::<Vec<_>>(), [15, 30, 855]);
}
