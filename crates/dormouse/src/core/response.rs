//! The head and the frames of a response, as an adapter sees them: a request is answered with its
//! head, or turns out to live for long.

use dormouse_waits::{Frames, Head, count_frames};

use crate::core::ends::{Ending, outcome_of};
use crate::core::long_lived::Said;
use crate::core::task::Task;
use crate::core::tasks::{Origin, is_request};

impl Task {
    /// The last poll of the task has made the head of its response: the request is answered, or
    /// lives for long. A part's responses are its request's.
    #[inline]
    pub(crate) fn head(&mut self, head: Head) {
        // By its status: the client has gone, and sees no answer.
        if self.ending == Ending::Cancelled {
            return;
        }
        let head = match (Origin::of(self.id()), self.group.0.lives.said()) {
            (Origin::Part, _) => return,
            (Origin::Connection, _) => Head::Stream,
            (Origin::Request, Said::NotLong) => Head::Answer,
            (Origin::Request, _) => head,
        };
        if head == Head::Stream {
            self.lives_long();
        }
        self.waits.head(head);
    }

    /// The request is none: its task lives for long, unless the service has said that those of its
    /// group do not.
    pub(crate) fn lives_long(&mut self) {
        if self.long.is_none() && is_request(self.id()) && self.group.0.lives.said() != Said::NotLong {
            self.long = Some(self.group.0.tasks.lives_long());
            // It has no outcome, and its note would stay for as long as its client does.
            outcome_of(self.id(), self.ending);
        }
    }

    /// The last poll of the task has made `frames` of its response's body.
    #[inline]
    pub(crate) fn frames(&mut self, frames: u64, bytes: u64) {
        if Origin::of(self.id()) != Origin::Part {
            self.waits.frames(Frames { frames, bytes, is_stream: self.long.is_some() });
        }
    }

    /// The request was none: its response, of which `frames` were sent, turns out to be a stream
    /// where it ends.
    #[cold]
    pub(crate) fn was_stream(&mut self, frames: u64, bytes: u64) {
        self.lives_long();
        if self.long.is_some() && frames > 0 {
            let of = Frames { frames, bytes, is_stream: true };
            count_frames(self.id(), self.group.id(), of, &mut 0);
        }
    }
}
