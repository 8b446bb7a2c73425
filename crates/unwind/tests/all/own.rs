//! The memory of this process's tables, and what `doctor` says of it.

use dormouse_sys::State;
use dormouse_unwind::own;

#[test]
fn tables_tell_how_much_memory_they_take() {
    assert!(own::capability().is_none(), "nobody has asked for a stack");
    own::begin().unwrap();
    let before = own::size();
    assert!(own::learn_object(libc::getpid as *const () as u64));
    // Once for learning, and once for walks.
    let more = own::size() - before;
    assert!((50_000..64 << 20).contains(&more), "{more}");
    let check = own::capability().unwrap();
    assert_eq!(check.state, State::Ok);
    assert!(check.detail.ends_with("of at most 64 MiB"), "{}", check.detail);
}
