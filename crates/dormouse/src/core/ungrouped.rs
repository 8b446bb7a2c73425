//! Calls that hand work on where no group is current: `doctor` reports how many there were, and
//! where.
//!
//! Such a call leaves its work in no group, and nothing else shows that it was in vain. A call that
//! finds a group takes no further step. One that finds none looks for its place in a short table,
//! and adds to the counter there.

use std::cmp::Reverse;
use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_profile::own::path_in_package;
use dormouse_sys::Capability;
use dormouse_sys::sync::OnceRef;

/// Places in the source that are told apart. Calls at further ones are counted together.
const PLACES: usize = 32;

/// How many of them `doctor` names.
const NAMED: usize = 3;

/// A place that calls, and how often it found no group.
struct Place {
    location: OnceRef<Location<'static>>,
    calls: AtomicU64,
}

/// Filled from the front.
static CALLS: [Place; PLACES] =
    [const { Place { location: OnceRef::new(), calls: AtomicU64::new(0) } }; PLACES];
static ELSEWHERE: AtomicU64 = AtomicU64::new(0);

/// Counts a call at this place.
#[cold]
pub(crate) fn count(caller: &'static Location<'static>) {
    let is_there = |place: &&Place| {
        let there = place.location.get();
        ptr::eq(there.unwrap_or_else(|| place.location.get_or_init(|| caller)), caller)
    };
    let calls = CALLS.iter().find(is_there).map_or(&ELSEWHERE, |place| &place.calls);
    calls.fetch_add(1, Ordering::Relaxed);
}

/// The check that `doctor` shows of such calls; `None` if there were none.
pub(crate) fn capability() -> Option<Capability> {
    let count = |calls: &AtomicU64| calls.load(Ordering::Relaxed);
    let all = CALLS.iter().map(|place| count(&place.calls)).sum::<u64>() + count(&ELSEWHERE);
    let places = CALLS.iter().filter_map(|place| Some((Reverse(count(&place.calls)), place.location.get()?)));
    let mut places: Vec<_> = places.collect();
    places.sort_unstable();
    let named = |(calls, at): &(Reverse<u64>, &Location<'_>)| {
        format!("{} at {}:{}", calls.0, path_in_package(at.file()), at.line())
    };
    let named: Vec<String> = places.iter().take(NAMED).map(named).collect();
    (all > 0).then(|| {
        let detail = format!(
            "work was handed on {all} times where no group was current, so none pays for it: {}",
            named.join(", ")
        );
        Capability::limited("groups.inherit", detail).with_fix(
            "hand work on inside of a group: from a library's callback by a `dormouse::carry` made in the handler, \
             elsewhere by `dormouse::tokio::spawn_in`",
        )
    })
}
