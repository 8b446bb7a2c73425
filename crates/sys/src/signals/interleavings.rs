//! Run with `RUSTFLAGS="--cfg loom" cargo test -p dormouse-sys --lib interleavings`.

use loom::thread::spawn;

use super::*;

#[test]
fn no_time_of_a_thread_counts_twice() {
    /// More than the thread has used when it ends.
    const RUNS: u64 = 1 << 60;
    loom::model(|| {
        let running = Running::begin(0);
        let thread = spawn(move || drop(running));
        let used = own_cpu_ns(|_| Some(RUNS));
        assert!(used <= RUNS, "{}", used - RUNS);
        thread.join().unwrap();
        assert_ne!(own_cpu_ns(|_| None), 0);
    });
}
