//! Tasks as JSON.

use std::ops::Not;

use dormouse_protocol::TaskRow;
use serde::Serialize;

use super::cancelled::{CancelledDocument, CancelledListing};
use super::{Listing, Unlisted, state};
use crate::render::frame::CodeFrame;
use crate::waiting::place::hides_parts;
use crate::waiting::stacks::{CUT, LOST};

/// The part that the list and the tree have in common.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ListingHead {
    pid: u32,
    /// For how long times had been taken.
    taken_ns: u64,
    /// For how long places had been recorded; null if they were not.
    noted_ns: Option<u64>,
    /// How long the reading of all tasks took.
    took_ns: u64,
    /// How many tasks are known, also those that are not listed.
    known: usize,
    /// How many of the tasks below wait at an unknown place.
    unplaced: u64,
}

/// The list of tasks.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct TasksDocument<'a> {
    #[serde(flatten)]
    head: ListingHead,
    tasks: Vec<TaskDocument<'a>>,
    /// Those that are alive, and of which no times are known, by group.
    unlisted: &'a [Unlisted<'a>],
    /// The requests that were cancelled lately; null if places are not recorded, or if the service
    /// has an older dormouse.
    cancelled: Option<CancelledDocument<'a>>,
    /// The places and stacks of all these, the innermost function first.
    places: Vec<PlaceDocument<'a>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct TaskDocument<'a> {
    task: u64,
    group: &'a str,
    /// Null: it began before times were taken.
    age_ns: Option<u64>,
    state: &'static str,
    for_ns: u64,
    poll_ns: u64,
    runnable_ns: u64,
    await_ns: u64,
    polls: u64,
    wakes: u64,
    /// CPU time since it is measured; absent if it is not, or if the present poll began before.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_ns: Option<u64>,
    /// False for one that awaits and is not entered by hand: nothing can wake it.
    has_waker: bool,
    /// It was entered by hand, and needs no waker to go on; absent: no.
    #[serde(skip_serializing_if = "Not::not")]
    by_hand: bool,
    /// Where its leaves have taken wakers that are out; if it is runnable, where the one of them
    /// was that has woken it.
    places: &'a [u32],
    /// How many polls ago they were taken; absent for the last poll.
    #[serde(skip_serializing_if = "is_zero")]
    polls_ago: u32,
    /// There are more places than a task has room for; absent: no.
    #[serde(skip_serializing_if = "Not::not")]
    more_places: bool,
    /// Absent where none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<&'a str>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PlaceDocument<'a> {
    place: u32,
    frames: Vec<&'a CodeFrame>,
    /// Some functions had no room: those behind the first `inner`, or the outermost; absent: no.
    #[serde(skip_serializing_if = "Not::not")]
    cut: bool,
    /// How many frames lie before those that are missing; absent if the outermost are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    inner: Option<usize>,
    /// The stack ends at a function whose caller is not known; absent: no.
    #[serde(skip_serializing_if = "Not::not")]
    lost: bool,
    /// A collection has taken the waker, whose parts are not seen in the tasks that have the place;
    /// absent: no. Tasks whose parts are seen have the places of these instead.
    #[serde(skip_serializing_if = "Not::not")]
    set: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl ListingHead {
    pub(super) fn of(listing: &Listing<'_>) -> Self {
        Self {
            pid: listing.pid,
            taken_ns: listing.taken.times_ns,
            noted_ns: listing.taken.places_ns,
            took_ns: listing.took_ns,
            known: listing.known,
            unplaced: listing.count_unplaced(),
        }
    }
}

impl<'a> TasksDocument<'a> {
    pub(crate) fn new(listing: &'a Listing<'a>) -> Self {
        Self {
            head: ListingHead::of(listing),
            tasks: listing.tasks.iter().map(|task| TaskDocument::new(task, listing)).collect(),
            unlisted: &listing.unlisted,
            cancelled: listing.cancelled.as_ref().map(CancelledListing::document),
            places: listing
                .wanted_places()
                .into_iter()
                .map(|place| PlaceDocument::new(place, listing.places.frames(place)))
                .collect(),
        }
    }
}

impl<'a> PlaceDocument<'a> {
    pub(crate) fn new(place: u32, frames: &'a [CodeFrame]) -> Self {
        let cut = frames.iter().position(|frame| frame.function == CUT);
        let lost = frames.last().is_some_and(|frame| frame.function == LOST);
        let inner = cut.filter(|inner| inner + 1 < frames.len());
        let set = hides_parts(frames);
        let frames = frames.iter().filter(|frame| frame.function != CUT && frame.function != LOST).collect();
        Self { place, frames, cut: cut.is_some(), inner, lost, set }
    }
}

impl<'a> TaskDocument<'a> {
    fn new(of: &'a TaskRow, listing: &Listing<'a>) -> Self {
        Self {
            task: of.task,
            group: listing.group(of),
            age_ns: of.age_ns,
            state: state(of.state),
            for_ns: of.for_ns,
            poll_ns: of.poll_ns,
            runnable_ns: of.runnable_ns,
            await_ns: of.await_ns,
            polls: of.polls,
            wakes: of.wakes,
            cpu_ns: of.cpu_ns,
            has_waker: of.has_waker,
            by_hand: of.by_hand,
            places: &of.places,
            polls_ago: of.polls_ago,
            more_places: of.more_places,
            trace_id: of.trace_id.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::listing;
    use super::*;
    use crate::waiting::place::PlaceNames;
    use crate::waiting::place::tests::frame;
    use crate::waiting::tests::{list, task};
    use dormouse_protocol::WireTaskState;

    #[test]
    fn names_have_their_units_and_places_stand_once() {
        let mut first = task(1, 1, WireTaskState::Runnable, 10);
        (first.age_ns, first.places) = (None, vec![4, 6]);
        let trace_id = Some("4bf92f".to_owned());
        let second = TaskRow { places: vec![4], trace_id, ..task(2, 1, WireTaskState::Awaiting, 10) };
        let third = TaskRow {
            places: vec![7],
            polls_ago: 3,
            more_places: true,
            ..task(3, 1, WireTaskState::Awaiting, 10)
        };
        let list = list(vec![first, second, third]);
        let cut = vec![frame("x::FuturesUnordered::poll_next", "", 0), frame(CUT, "", 0)];
        let places = PlaceNames([(4, vec![frame("a::b", "/a.rs", 1)]), (7, cut)].into());
        let json = serde_json::to_value(TasksDocument::new(&listing(&list, places))).unwrap();
        let right = serde_json::json!({
            "task": 1, "group": "GET /tea", "age_ns": null, "state": "runnable", "for_ns": 10,
            "poll_ns": 1000, "runnable_ns": 0, "await_ns": 10, "polls": 3, "wakes": 2, "has_waker": true,
            "places": [4, 6],
        });
        assert_eq!(json["tasks"][0], right);
        assert_eq!(json["tasks"][1]["trace_id"], "4bf92f");
        assert_eq!(
            (&json["tasks"][2]["polls_ago"], &json["tasks"][2]["more_places"]),
            (&3.into(), &true.into())
        );
        let marked = &json["places"][2];
        assert_eq!((&marked["cut"], &marked["set"]), (&true.into(), &true.into()), "{json}");
        assert_eq!(marked["frames"].as_array().unwrap().len(), 1, "{json}");
        let amid = [frame("a", "", 0), frame(CUT, "", 0), frame("b", "", 0), frame(LOST, "", 0)];
        let amid = serde_json::to_value(PlaceDocument::new(8, &amid)).unwrap();
        let ends = (&amid["frames"][1]["function"], &amid["inner"], &amid["lost"]);
        assert_eq!(ends, (&"b".into(), &1.into(), &true.into()));
        assert_eq!(json["unlisted"][0], serde_json::json!({ "group": "GET /tea", "tasks": 2 }));
        let frames =
            serde_json::json!([{ "function": "a::b", "inlined": false, "file": "/a.rs", "line": 1 }]);
        assert_eq!(json["places"][0], serde_json::json!({ "place": 4, "frames": frames }));
        assert_eq!(json["places"][1], serde_json::json!({ "place": 6, "frames": [] }));
        assert_eq!((&json["known"], &json["taken_ns"]), (&3.into(), &2_000_000_000_u64.into()));
    }
}
