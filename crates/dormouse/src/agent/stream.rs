//! A trace on its way to a client: records, and the names that explain them.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use dormouse_protocol::{FrameKind, Note};
use dormouse_sys::records::{self, RingOwner};

use super::output::Output;
use crate::core::group::Group;
use crate::core::rows::clock_point;
use crate::core::trace::queue::Chunk;
use crate::core::trace::{Trace, thread_name};

/// How often a trace sends a conversion point.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) trace: Trace,
    /// By the number of the ring, the thread of it whose name was sent last.
    named: [Option<RingOwner>; records::RINGS],
    groups: HashSet<u32>,
    next_clock: Instant,
}

impl Stream {
    pub(super) fn new(trace: Trace) -> Self {
        let next_clock = Instant::now() + CLOCK_INTERVAL;
        Self { trace, named: [const { None }; records::RINGS], groups: HashSet::new(), next_clock }
    }

    /// Puts the records that the trace has collected into frames.
    pub(super) fn fill(&mut self, output: &mut Output, now: Instant) -> io::Result<()> {
        let queued = self.trace.take();
        if queued.chunks().next().is_some() {
            self.name_groups(output)?;
        }
        for chunk in queued.chunks() {
            self.name_thread(&chunk, output)?;
            let RingOwner { tid, start } = chunk.writer;
            let payload = [&tid.to_le_bytes()[..], &start.to_le_bytes(), chunk.bytes];
            output.frame(FrameKind::Records, &payload)?;
        }
        let dropped = self.trace.dropped();
        if dropped.rings + dropped.trace > 0 {
            output.note(&Note::Dropped { rings: dropped.rings, client: dropped.trace })?;
        }
        if now >= self.next_clock {
            self.next_clock = now + CLOCK_INTERVAL;
            output.note(&Note::Clock(clock_point()))?;
        }
        Ok(())
    }

    /// Sends the names of groups that are new. (There are at most
    /// [`MAX_GROUPS`](crate::MAX_GROUPS).)
    fn name_groups(&mut self, output: &mut Output) -> io::Result<()> {
        for group in Group::all() {
            if self.groups.insert(group.id()) {
                output.note(&Note::Group { id: group.id(), name: group.name().to_owned() })?;
            }
        }
        Ok(())
    }

    /// Sends a thread's name before its first records, and again after another thread has had its
    /// ring: so the stream remembers as many names as there are rings, not as there have been
    /// threads.
    fn name_thread(&mut self, chunk: &Chunk<'_>, output: &mut Output) -> io::Result<()> {
        let Some(named) = self.named.get_mut(chunk.ring) else { return Ok(()) };
        if named.replace(chunk.writer) == Some(chunk.writer) {
            return Ok(());
        }
        let RingOwner { tid, start } = chunk.writer;
        output.note(&Note::Thread { tid, start, name: thread_name(tid) })
    }
}
