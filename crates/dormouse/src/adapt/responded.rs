//! Which group pays for writing a response to the socket.
//!
//! The task of a connection has the response made, by the layer of a group, and then writes it to
//! the stream. So the layer notes its group with each part of a response that it hands on, and with
//! the runtime's number of the task. The stream takes the note at its next write. From then on its
//! writes are the group's, until a flush shows that nothing is left to write.
//!
//! | unwritten | a note of group A | a note of group B | a flush has ended |
//! |---|---|---|---|
//! | nothing | of A | of B | nothing |
//! | of A | of A | of several | nothing |
//! | of several | of several | of several | nothing |
//!
//! # Invariants
//!
//! 1. A note is taken only in the task that made it. Streams of HTTP/2 have tasks of their own, so
//!    their notes are never taken, and the connection pays for its writes.
//! 2. The connection pays while responses of several groups are unwritten: whose bytes a write
//!    takes is unknown.
//! 3. Of nested layers the outermost one makes the note: its response is the one that is written.

#[cfg(feature = "tokio")]
use std::cell::Cell;

#[cfg(feature = "tokio")]
use ::tokio::task::{Id, try_id};
#[cfg(feature = "tokio")]
use dormouse_events::Kind;
#[cfg(feature = "tokio")]
use dormouse_waits::charge_group;

use crate::core::group::Group;
#[cfg(feature = "tokio")]
use crate::core::tasks::{self, Origin};

/// The groups of responses that are unwritten.
#[cfg(feature = "tokio")]
#[cfg_attr(
    not(any(feature = "actix", feature = "tower")),
    expect(dead_code, reason = "layers make the notes")
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Noted {
    One(Group),
    Several,
}

#[cfg(feature = "tokio")]
thread_local! {
    static NOTED: Cell<Option<(Id, Noted)>> = const { Cell::new(None) };
}

/// `group` has made a response, or a part of one, in the present task of the runtime. A sleeping
/// instruction while nothing is counted.
#[cfg(any(feature = "actix", feature = "tower"))]
#[inline]
pub(super) fn responded(group: Group) {
    #[cfg(feature = "tokio")]
    if dormouse_events::is_counting() {
        note(group);
    }
    #[cfg(not(feature = "tokio"))]
    let _ = group;
}

#[cfg(all(feature = "tokio", any(feature = "actix", feature = "tower")))]
#[inline(never)]
fn note(group: Group) {
    // Invariant 3. The layer around may be a part of the request: in the same group as another one.
    // The numbers that a runtime's hooks enter are no layer's.
    let nesting = dormouse_events::nesting();
    let is_of_layer = |task| tasks::is_request(task) && task < tasks::OF_RUNTIMES;
    if [nesting.task, nesting.around].into_iter().any(is_of_layer) {
        return;
    }
    let Some(task) = try_id() else { return };
    let noted = match NOTED.get() {
        Some((of, before)) if of == task && before != Noted::One(group) => Noted::Several,
        _ => Noted::One(group),
    };
    NOTED.set(Some((task, noted)));
}

/// The responses that a stream was given to write, and has not written yet.
#[cfg(feature = "tokio")]
#[derive(Debug, Default)]
pub(super) enum Unwritten {
    #[default]
    Nothing,
    Of(ResponseWrites),
    OfSeveral,
}

/// The writes of a group's responses. The group pays for them, and they are no task of it: the
/// request that has made the response is counted already.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub(super) struct ResponseWrites {
    group: Group,
    /// Only a number: no task of the group begins or ends with it.
    task: dormouse_events::Task,
}

#[cfg(feature = "tokio")]
impl ResponseWrites {
    fn of(group: Group) -> Self {
        let number = tasks::number(Origin::Connection);
        Self { group, task: dormouse_events::Task::new(group.0.context, number) }
    }

    /// Not inlined, so that asleep a write need not save the registers that this uses.
    #[inline(never)]
    fn charge<T>(&mut self, f: impl FnOnce() -> T) -> T {
        // The time of a write holds that of its switches.
        charge_group(self.group.id(), || {
            let _inside = dormouse_events::enter(&mut self.task, Kind::Drop);
            f()
        })
    }
}

#[cfg(feature = "tokio")]
impl Unwritten {
    /// The stream is about to write. A sleeping instruction while nothing is counted.
    #[inline]
    pub(super) fn follow(&mut self) {
        if dormouse_events::is_counting() {
            self.take_note();
        }
    }

    /// Charges a write to the group of the response, if that is known.
    #[inline]
    pub(super) fn charge<T>(&mut self, write: impl FnOnce() -> T) -> T {
        match self {
            Self::Of(writes) => writes.charge(write),
            Self::Nothing | Self::OfSeveral => write(),
        }
    }

    #[inline(never)]
    fn take_note(&mut self) {
        // Invariant 1.
        let Some((_, noted)) = NOTED.get().filter(|(task, _)| try_id() == Some(*task)) else { return };
        NOTED.set(None);
        *self = match (std::mem::take(self), noted) {
            (Self::Nothing, Noted::One(group)) => Self::Of(ResponseWrites::of(group)),
            (Self::Of(writes), Noted::One(group)) if writes.group == group => Self::Of(writes),
            // Invariant 2.
            _ => Self::OfSeveral,
        };
    }
}

#[cfg(all(test, feature = "tokio", any(feature = "actix", feature = "tower")))]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_a_runtime_are_no_layers() {
        let [around, route] = ["spawn src/main.rs:7", "GET /menu"].map(Group::new);
        let _counting = crate::start_counting(&[crate::Event::TASK_CLOCK]).unwrap();
        let noted = move |number| {
            let mark = around.enter_numbered(number, Kind::Poll).unwrap();
            note(route);
            assert!(around.leave_task(mark));
            NOTED.take().map(|(_, noted)| noted)
        };
        let one = ::tokio::runtime::Builder::new_current_thread().build().unwrap();
        one.block_on(async {
            let connection = async move {
                assert_eq!(noted(tasks::OF_RUNTIMES | 1), Some(Noted::One(route)));
                assert_eq!(noted(tasks::number(Origin::Request)), None, "the layer around makes it");
            };
            ::tokio::spawn(connection).await.unwrap();
        });
    }
}
