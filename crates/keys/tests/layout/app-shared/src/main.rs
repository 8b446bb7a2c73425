//! Branches on a key that lives in a shared object; one batch changes the sites of both.

use dormouse_keys::{all, unlikely};
use layout_shared::{SHARED, inside};

#[inline(never)]
fn outside() -> bool {
    unlikely!(SHARED)
}

fn main() {
    assert!(!inside() && !outside());
    for used in all() {
        println!("key {} {}", used.key.name(), used.sites);
        assert!(used.object.contains("layout_shared"), "{}", used.object);
    }
    let lease = SHARED.acquire().unwrap();
    assert_eq!(lease.report().sites, 2);
    assert!(inside() && outside());
    drop(lease);
    assert!(!inside() && !outside());
    println!("every site follows");
}
