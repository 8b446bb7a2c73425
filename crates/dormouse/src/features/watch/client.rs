//! The watches that clients have requested.
//!
//! A watch belongs to its connection, as a lease of `on` does: the agent drops it with the client,
//! which disarms it. Reports are fetched one by one, so for a slow or silent client nothing
//! accumulates here; single hits wait in the watch's own queue, which is bounded and counts what it
//! drops.
//!
//! # Cost
//!
//! Arming takes a system call for each thread of the service, on a thread of ours for which the
//! agent waits: 8 ms for 256 threads, 36 ms for 1,000. Other clients wait meanwhile; threads of the
//! host do not.

use std::collections::VecDeque;

use dormouse_breakpoints::{Error, WatchHit};
use dormouse_protocol::{WatchRequest, WatchRow};
use dormouse_sys::Capability;

use super::Watch;
use super::rows::{watch_row, watch_spec};
use crate::agent::ClientState;
use crate::core::group::Group;

/// Debug registers of a thread that no watch takes: debuggers'.
pub(super) const SPARE: u32 = 1;

/// Single hits in one answer; the others wait for the next.
const MAX_HITS: usize = 256;

/// A watch of a client.
#[derive(Debug)]
pub(super) struct ClientWatch {
    watch: Watch,
    /// `None`: the client wants no single hits.
    hits: Option<VecDeque<WatchHit>>,
}

impl ClientState for ClientWatch {
    fn what(&self) -> String {
        "watches memory".to_owned()
    }
}

impl ClientWatch {
    /// Arms a watch for a client's request, with the number of its group.
    pub(super) fn arm(request: &WatchRequest, group: Option<u32>) -> Result<ClientWatch, Error> {
        let watch = Watch::on_all_threads(&watch_spec(request, group))?;
        if request.stream {
            // The first call has hits kept one by one.
            let _ = watch.take_hits();
        }
        Ok(ClientWatch { watch, hits: request.stream.then(VecDeque::new) })
    }

    pub(super) fn number(&self) -> u32 {
        self.watch.number()
    }

    /// The result so far.
    pub(super) fn report(&mut self) -> WatchRow {
        let hits = self.hits.as_mut().map(|hits| {
            if hits.is_empty() {
                hits.extend(self.watch.take_hits());
            }
            hits.drain(..hits.len().min(MAX_HITS)).collect()
        });
        watch_row(self.watch.report(), hits.unwrap_or_default(), group_name)
    }
}

/// The name of a group, by its number.
pub(super) fn group_name(id: u32) -> Option<String> {
    Group::by_id(id).map(|group| group.name().to_owned())
}

/// Whether the process can watch its own memory.
pub(crate) fn capability() -> Capability {
    const NAME: &str = "watch.inside";
    let outside = "have root of the host watch it from outside, by the same `dormouse watch`";
    // Before the registers: under a filter that question itself may end the process.
    match dormouse_breakpoints::refusal() {
        Some(why @ Error::Signal(_)) => {
            let fix = "install other handlers of SIGTRAP before the first watch and none after it, or watch from outside";
            return Capability::unavailable(NAME, why.to_string()).with_fix(fix);
        }
        Some(why) => return Capability::unavailable(NAME, why.to_string()).with_fix(outside),
        None => {}
    }
    match dormouse_breakpoints::free_registers(rustix::thread::gettid().as_raw_pid().cast_unsigned()) {
        Ok(free) if free > SPARE as usize => {
            let registers = free - SPARE as usize;
            Capability::ok(
                NAME,
                format!("{registers} debug registers are free, {SPARE} is left to debuggers"),
            )
        }
        Ok(free) => {
            let fix = "end a watch (dormouse slots lists them) or detach the debugger";
            Capability::limited(NAME, format!("{free} debug registers are free")).with_fix(fix)
        }
        Err(why) => {
            let reason = std::error::Error::source(&why).map_or_else(|| why.to_string(), ToString::to_string);
            Capability::unavailable(NAME, reason).with_fix(outside)
        }
    }
}
