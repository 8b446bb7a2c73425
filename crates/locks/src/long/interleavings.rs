//! Run with `RUSTFLAGS="--cfg loom" cargo test -p dormouse-locks --lib interleavings`.

use loom::thread::spawn;

use super::*;

#[test]
fn a_long_wait_is_never_missed() {
    dormouse_clock::point();
    keep(Some(0));
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let wait = Entry { address: 8, tid: 1, since: 1, ..Entry::default() };
        let token = WAITERS.put_beside(&wait, 0).unwrap();
        let thread = spawn(move || end(token, u64::MAX / 2, None));
        // In the order of `read::take_long_waits`.
        let mut found = WAITERS.all().count();
        take(|_, _, _| found += 1);
        assert!(found > 0);
        thread.join().unwrap();
    });
}
