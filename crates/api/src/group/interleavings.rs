//! Run with `RUSTFLAGS="--cfg loom" cargo test -p dormouse-api --lib interleavings`.

extern crate std;

use loom::sync::Arc;
use loom::thread::spawn;

use super::*;
use crate::{Host, set_host};

loom::lazy_static! {
    /// The number of the host's one group, which it has made; 0: none yet.
    static ref MADE: AtomicU32 = AtomicU32::new(0);
}

static HOST: Host = Host::new("a model", |_, _| ()).with_groups(
    |_| {
        MADE.store(1, Ordering::Relaxed);
        1
    },
    |group| {
        assert_eq!(MADE.load(Ordering::Relaxed), group, "a thread has the number and not the group");
        1
    },
    |_, _| Some(1),
    |_, _, _| (),
    |_, _| (),
);

#[test]
fn a_number_is_seen_after_its_group() {
    set_host(&HOST).unwrap();
    loom::model(|| {
        let group = Arc::new(Group { name: "group", number: AtomicU32::new(0) });
        let other = {
            let group = Arc::clone(&group);
            spawn(move || drop(group.enter()))
        };
        drop(group.enter());
        other.join().unwrap();
    });
}
