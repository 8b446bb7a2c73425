//! How much memory the steps of an answer take. The answering thread drops the client if there is
//! not enough.

pub(crate) use dormouse_sys::memory::{Step, is_there};

use dormouse_sys::process::threads;
use dormouse_waits::calls::most_calls;

use super::group::Group;
use super::objectives;

/// For a word or two.
pub(crate) const SOME: usize = 64 * 1024;

/// Memory for a request, beside what it takes for each key, group or thread.
pub(crate) const MUCH: usize = 512 * 1024;

/// The memory of an answer for each key, group and thread: some hundred bytes, first as a structure
/// and then as text.
pub(crate) const EACH: usize = 1024;

/// The memory of an objective of a group, as a row and as text.
const EACH_OBJECTIVE: usize = 128;

/// The memory of the times of one group, at most: six histograms of some six hundred buckets, and
/// an exemplar for each power of two of one, as rows and as text.
const EACH_TIMES: usize = 128 * 1024;

/// The memory of the calls to one peer: a histogram and a name, as a row and as text.
const EACH_PEER: usize = 16 * 1024;

/// The memory of a line that takes locks, for a group: two histograms, as rows and as text.
const EACH_LOCK_LINE: usize = 16 * 1024;

/// Whether there is memory for an answer about all keys and groups.
pub(crate) fn is_there_for_keys() -> bool {
    is_there(MUCH) && is_there(MUCH + (dormouse_keys::count() + Group::most()) * EACH)
}

/// Whether there is memory for an answer about all groups.
pub(crate) fn is_there_for_groups() -> bool {
    is_there(Group::most() * (EACH + objectives::most() * EACH_OBJECTIVE))
}

/// Whether there is memory for an answer about all threads.
pub(crate) fn is_there_for_threads() -> bool {
    let mut tids = Vec::new();
    // Without a list there are none in the answer.
    let mut listed = || threads::list(&mut tids).map_or(0, |_| tids.len());
    is_there(SOME) && is_there(listed() * EACH)
}

/// The memory of the times of all groups, and of their calls.
pub(crate) fn of_times() -> usize {
    dormouse_waits::groups() * EACH_TIMES + most_calls() * EACH_PEER
}

/// The memory of all lines that take locks.
pub(crate) fn of_locks() -> usize {
    MUCH + dormouse_locks::lock_rows() * EACH_LOCK_LINE
}
