//! Threads that are in tasks, and what is found of a lock.

use dormouse_locks::{LockRow, LockUser, lock_holders_at, lock_waiters, read_locks};
use dormouse_sys::thread::{Current, current};

/// From now on the thread is in this task of this group.
pub(crate) fn be(task: u64, group: u32) {
    current().expect("a block").set_current(Current { task, group });
}

pub(crate) fn address<T: ?Sized>(lock: &T) -> usize {
    std::ptr::from_ref(lock).cast::<()>().addr()
}

/// The holders of the lock.
pub(crate) fn holders<T: ?Sized>(lock: &T) -> Vec<LockUser> {
    lock_holders_at(address(lock))
}

/// The waits for it.
pub(crate) fn waiters<T: ?Sized>(lock: &T) -> Vec<LockUser> {
    lock_waiters().into_iter().filter(|user| user.address == address(lock)).collect()
}

/// The tasks that hold the lock, in their order.
pub(crate) fn tasks<T: ?Sized>(lock: &T) -> Vec<u64> {
    let mut tasks: Vec<u64> = holders(lock).iter().map(|user| user.task).collect();
    tasks.sort_unstable();
    tasks
}

/// The rows of a group.
pub(crate) fn rows(group: u32) -> Vec<LockRow> {
    read_locks().into_iter().filter(|row| row.group == group).collect()
}
