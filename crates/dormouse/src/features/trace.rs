//! `trace`: records on their way to a client, and the names that explain them.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use dormouse_keys::Lease;
use dormouse_protocol::{FrameKind, Note, TraceRequest, Tracing, WireError};
use dormouse_sys::records::{self, RingOwner};

use crate::agent::request::{chosen, names, parse, trace_error};
use crate::agent::{Answered, Asked, Output, Stream};
use crate::core::asleep::{Part, check};
use crate::core::group::Group;
use crate::core::rows::{batch_stat, clock_point, probe_info};
use crate::core::trace::queue::Chunk;
use crate::core::trace::{Trace, gather, thread_name};

/// How often a trace sends a conversion point.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct TraceStream {
    trace: Trace,
    /// By the number of the ring, the thread of it whose name was sent last.
    named: [Option<RingOwner>; records::RINGS],
    groups: HashSet<u32>,
    next_clock: Instant,
}

impl Answered for TraceRequest {
    /// Starts a trace, whose frames follow the answer.
    fn answer(self, asked: &mut Asked<'_>) -> Result<Tracing, WireError> {
        check(Part::Records)?;
        let trace = Trace::of(chosen(&parse(&self.glob)?)?).map_err(trace_error)?;
        let answer = Tracing {
            matched: names(trace.keys()),
            keys: trace.keys().len(),
            probes: trace.keys().iter().filter_map(probe_info).collect(),
            batch: trace.lease().map(|lease| batch_stat(lease.report())).unwrap_or_default(),
            clock: clock_point(),
        };
        asked.client().begin_stream(TraceStream::new(trace));
        Ok(answer)
    }
}

impl Stream for TraceStream {
    fn lease(&self) -> Option<&Lease> {
        self.trace.lease()
    }

    fn lease_mut(&mut self) -> Option<&mut Lease> {
        self.trace.lease_mut()
    }

    fn fill(&mut self, output: &mut Output, now: Instant) -> io::Result<()> {
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

    fn gather(&mut self) {
        gather();
    }
}

impl TraceStream {
    fn new(trace: Trace) -> Self {
        let next_clock = Instant::now() + CLOCK_INTERVAL;
        Self { trace, named: [const { None }; records::RINGS], groups: HashSet::new(), next_clock }
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
        if *named == Some(chunk.writer) {
            return Ok(());
        }
        let RingOwner { tid, start } = chunk.writer;
        let name = thread_name(tid);
        // Without a free descriptor there is none now.
        *named = (!name.is_empty()).then_some(chunk.writer);
        output.note(&Note::Thread { tid, start, name })
    }
}
