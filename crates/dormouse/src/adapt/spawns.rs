//! Groups for plain `tokio::spawn`: one for each place in the source that spawns.
//!
//! tokio passes the place of a spawn to its hooks, and calls one before and one after each poll. So
//! a poll of a task that is in no group becomes a poll of the group of its place, entered by the
//! first hook and left by the second. A group that is entered inside, as by [`Group::instrument`],
//! has its own time, as everywhere.
//!
//! # Invariants
//!
//! 1. Either a place has a group of its own, or it calls this crate's `spawn` functions and its
//!    tasks bring their groups along. The first spawn decides which, for good. So each task that is
//!    counted as started is counted as finished.
//! 2. The hook for a spawn returns before the task is scheduled. So each poll finds its place
//!    decided.

use std::cell::Cell;
use std::panic::Location;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use ::tokio::runtime::{Builder, Handle, RuntimeFlavor, TaskMeta};
use ::tokio::task::Id;
use dormouse_events::{Kind, Mark, poll_begins, poll_ends};
use dormouse_profile::own::path_in_package;

use super::hooks::{is_ours_now, others_task_begins, task_begins};
use super::lazy::thread_parks;
use crate::core::ends::MOST_NOTED;
use crate::core::group::{Group, MAX_NAME};
use crate::core::registry::OTHER;
use crate::core::runtime_task::number;
use crate::core::tasks::OF_RUNTIMES;

/// How many groups are made. Tasks of further places are charged to `other`.
const BOUND: usize = 256;

/// Places of which there is something to remember. Further ones have no group.
const PLACES: usize = 1024;

/// How many of them are compared for one.
const WAY: usize = 64;

/// The value of a place whose tasks bring their own groups.
const OURS: u32 = u32::MAX;

/// A place in the source that spawns.
struct Place {
    /// Only compared. Two of one line are two places, with one group.
    location: AtomicPtr<Location<'static>>,
    /// 0 before the first spawn; then [`OURS`], or the number of its group.
    value: AtomicU32,
}

static TABLE: [Place; PLACES] =
    [const { Place { location: AtomicPtr::new(ptr::null_mut()), value: AtomicU32::new(0) } }; PLACES];

/// How many places have groups.
static GROUPS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// How many polls of tasks by their place the thread is in, one inside the other; and the mark
    /// that the outermost has to leave. Those inside are charged to its group: they belong to a
    /// runtime that is run to its end inside of a task of another one.
    static INSIDE: Cell<(u32, Option<(Group, Mark)>)> = const { Cell::new((0, None)) };
}

/// Charges each task that is spawned outside of any group, by whatever library, to a group that is
/// named after the place: `spawn src/db.rs:42`. It also does everything that
/// [`poll_hooks`](super::hooks::poll_hooks) does. Only in builds of the whole program with `--cfg
/// tokio_unstable`.
///
/// The first task that a line spawns decides for all later ones: a helper that spawns work inside
/// and outside of groups should be `#[track_caller]`, so that its callers' lines count.
///
/// Polls of such tasks are charged to the group; groups that are entered inside have their own
/// time. If a task is dropped before its end, only its polls are charged. Tasks of a `LocalSet` and
/// of the blocking pool have no such groups, because tokio calls no hooks around them. There are at
/// most 256 such groups, beside `other`.
///
/// It sets the hooks `on_task_spawn`, `on_before_task_poll`, `on_after_task_poll`,
/// `on_task_terminate` and `on_thread_park`, of which tokio keeps one each.
///
/// ```
/// use dormouse::tokio::group_spawns;
///
/// let runtime = group_spawns(&mut tokio::runtime::Builder::new_multi_thread()).build()?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn group_spawns(builder: &mut Builder) -> &mut Builder {
    let has_workers = OnceLock::new();
    let flavor = || Handle::try_current().map(|handle| handle.runtime_flavor());
    builder
        .on_thread_park(thread_parks)
        .on_task_spawn(|task| {
            if let Some(group) = decide(task.spawned_at()) {
                group.begin_numbered(task_number(task.id()), true);
            }
        })
        .on_before_task_poll(move |task| {
            if let Some(group) = group_of(task) {
                others_task_begins(task.id());
                enter(group, task_number(task.id()));
            } else if *has_workers
                .get_or_init(|| flavor().is_ok_and(|flavor| flavor != RuntimeFlavor::CurrentThread))
            {
                task_begins(task.id());
            } else {
                poll_begins();
            }
        })
        .on_after_task_poll(|task| {
            if group_of(task).is_some() {
                exit();
            }
            poll_ends();
        })
        .on_task_terminate(|task| {
            if let Some(group) = group_of(task) {
                group.end_task(task_number(task.id()));
            }
        })
}

fn enter(group: Group, number: u64) {
    let (depth, inside) = INSIDE.get();
    let entered = || Some((group, group.enter_numbered(number, Kind::Poll)?));
    INSIDE.set((depth + 1, if depth == 0 { entered() } else { inside }));
}

fn exit() {
    let (depth, inside) = INSIDE.get();
    if depth > 1 {
        INSIDE.set((depth - 1, inside));
        return;
    }
    INSIDE.set((0, None));
    inside.map(|(group, mark)| group.leave_task(mark));
}

/// The group of a spawn at `location`; `None` where tasks bring their own.
fn decide(location: &'static Location<'static>) -> Option<Group> {
    let place = find(location, true)?;
    if place.value.load(Ordering::Relaxed) == 0 {
        let value = if is_ours_now() { OURS } else { named(location).id() };
        // A thread that has decided meanwhile is right.
        let _ = place.value.compare_exchange(0, value, Ordering::Relaxed, Ordering::Relaxed);
    }
    place.group()
}

/// The group of a task's place, if it has one.
fn group_of(task: &TaskMeta<'_>) -> Option<Group> {
    find(task.spawned_at(), false)?.group()
}

impl Place {
    /// Relaxed: a thread that polls or ends a task got it from the thread that spawned it
    /// (invariant 2).
    fn group(&self) -> Option<Group> {
        match self.value.load(Ordering::Relaxed) {
            0 | OURS => None,
            id => Group::by_id(id),
        }
    }
}

/// The place of `location`, which is added if it is new and there is room near by.
fn find(location: &'static Location<'static>, add: bool) -> Option<&'static Place> {
    let key = ptr::from_ref(location).cast_mut();
    // Locations are neighbours in memory; their places are not.
    let hash = (key.addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - PLACES.ilog2());
    let (before, from) = TABLE.split_at(hash as usize);
    for place in from.iter().chain(before).take(WAY) {
        let there = place.location.load(Ordering::Relaxed);
        if there.is_null() && !add {
            return None;
        }
        let took = || {
            let (old, new) = (Ordering::Relaxed, Ordering::Relaxed);
            place.location.compare_exchange(ptr::null_mut(), key, old, new).unwrap_or_else(|other| other)
        };
        let now = if there.is_null() { took() } else { there };
        if now == key || now.is_null() {
            return Some(place);
        }
    }
    None
}

/// The group of tasks that are spawned at `location`.
fn named(location: &Location<'_>) -> Group {
    let more = |groups| (groups < BOUND).then_some(groups + 1);
    if GROUPS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
        return Group::new(OTHER);
    }
    Group::new(&name(location.file(), location.line()))
}

/// A path in a registry or a checkout is shortened to begin with its package. A path that is too
/// long is cut at its beginning.
fn name(file: &str, line: u32) -> String {
    let path = path_in_package(file);
    let line = line.to_string();
    let room = MAX_NAME - "spawn :".len() - line.len();
    let mut from = path.len().saturating_sub(room);
    while !path.is_char_boundary(from) {
        from += 1;
    }
    format!("spawn {}:{line}", &path[from..])
}

/// A number that no other task has. Odd, as those of requests are, and short enough for a note
/// ([`MOST_NOTED`]).
fn task_number(task: Id) -> u64 {
    OF_RUNTIMES | number(task) << 1 | 1
}

const _: () = assert!(OF_RUNTIMES << 1 <= MOST_NOTED + 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_says_the_line() {
        let home = "/home/x/.cargo";
        let registry = format!("{home}/registry/src/example-1949/axum-0.8.9/src/serve/mod.rs");
        assert_eq!(name(&registry, 444), "spawn axum-0.8.9/src/serve/mod.rs:444");
        let checkout = format!("{home}/git/checkouts/tea-0123/4567/src/lib.rs");
        assert_eq!(name(&checkout, 7), "spawn src/lib.rs:7");
        assert_eq!(name("src/db.rs", 42), "spawn src/db.rs:42");
        let long = name(&format!("{}/db.rs", "ä".repeat(MAX_NAME)), 42);
        assert!(long.len() <= MAX_NAME && long.ends_with("/db.rs:42"), "{long}");
    }
}
