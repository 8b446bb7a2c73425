//! A process that has no memory left, for tests.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Has the kernel allow this process at most `more` further bytes.
pub(crate) fn limit_memory(more: u64) {
    let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = sizes.split(' ').next().unwrap().parse().unwrap();
    let most = (pages * rustix::param::page_size() as u64).saturating_add(more);
    setrlimit(Resource::As, Rlimit { current: Some(most), maximum: None }).unwrap();
}

/// All memory that a limit leaves, in pieces that the allocator may have kept.
pub(crate) fn rest_of_memory() -> Vec<Vec<u8>> {
    let mut taken = Vec::with_capacity(10_000);
    while taken.len() < taken.capacity() {
        let mut next = Vec::new();
        if next.try_reserve_exact(64 * 1024).is_err() {
            break;
        }
        taken.push(next);
    }
    taken
}
