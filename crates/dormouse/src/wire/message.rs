//! Requests, their answers, and why one is refused.

use serde::{Deserialize, Serialize};

use super::long_polls::LongPollsWish;
use super::profile::ProfileWish;
use super::record::RecordWish;
use super::waits::WaitsWish;
use super::watch::WatchWish;

/// A client's request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Protocol version.
    pub v: u32,
    /// Echoed in the answer.
    pub id: u64,
    /// The operation and its arguments.
    #[serde(flatten)]
    pub op: Op,
}

/// One operation of the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Op {
    /// Opens the conversation; [`Hello`](super::Hello) answers.
    Hello {
        /// Name and version of the client, for people.
        client: String,
        /// Whether the client takes a [`Notice`](super::Notice) between answers.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        notices: bool,
    },
    /// Lists keys; [`Keys`](super::Keys) answers.
    Keys {
        /// A glob list; absent, it stands for all keys.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        glob: Option<String>,
    },
    /// Switches keys on; [`Changed`](super::Changed) answers. Without `for_ms` and `keep` the
    /// connection holds the lease: the keys go off when the connection closes.
    On {
        /// A glob list.
        glob: String,
        /// The length of a hold, in milliseconds. The keys' own timer ends it, also without the
        /// agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u64>,
        /// How long the keys stay on after the connection's lease has ended, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dwell_ms: Option<u64>,
        /// Sets the baseline instead of taking a lease.
        #[serde(default)]
        keep: bool,
    },
    /// Clears the baseline and the caller's own leases; [`Changed`](super::Changed) answers. Keys
    /// that start on keep their baseline, unless the list names them as they are, without a
    /// wildcard.
    Off {
        /// A glob list.
        glob: String,
        /// How long the keys stay on from now, in milliseconds. A key that somebody switches on
        /// again in this time is not patched at all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dwell_ms: Option<u64>,
        /// Also ends the leases of others.
        #[serde(default)]
        force: bool,
        /// Ends the connection's own leases and nothing else: the inverse of `on` without `for_ms`
        /// and `keep`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        release: bool,
    },
    /// Restores the baselines with which keys started, and ends the caller's own leases;
    /// [`Changed`](super::Changed) answers.
    Reset {
        /// A glob list.
        glob: String,
    },
    /// Switches probes on and streams their records: [`Tracing`](super::Tracing) answers, then
    /// frames follow until the client closes the connection.
    Trace {
        /// A glob list. Of the keys that it matches only probes are switched.
        glob: String,
    },
    /// Takes a snapshot of groups and threads; [`Stat`](super::Stat) answers. The first one starts
    /// counting CPU time for a client that has not sent `count`.
    Stat,
    /// Lists what groups can count; [`Events`](super::Events) answers.
    Events,
    /// Has groups count these events as long as the connection lasts, in place of those that it
    /// asked for before; [`CountAnswer`](super::CountAnswer) answers. The agent counts CPU time
    /// with them, because [`Stat`](super::Stat) always tells it; without names it counts nothing. A
    /// name that is no event refuses all.
    Count {
        /// Names, as [`Events`](super::Events) has them.
        events: Vec<String>,
    },
    /// Has times of tasks taken as long as the connection lasts, in place of what it asked for
    /// before; [`WaitsBegun`](super::WaitsBegun) answers, and [`Stat`](super::Stat) tells them from
    /// now on. Refused where the key behind which times are taken cannot be switched.
    Waits(WaitsWish),
    /// Checks what works in this process; [`Doctor`](super::Doctor) answers.
    Doctor,
    /// Watches memory as long as the connection lasts; [`Watching`](super::Watching) answers.
    Watch(WatchWish),
    /// Asks for what a watch of this connection has seen; [`WatchRow`](super::WatchRow) answers.
    WatchReport {
        /// Its number.
        number: u32,
    },
    /// Lists the watches that take debug registers; [`SlotsAnswer`](super::SlotsAnswer) answers.
    Slots,
    /// Takes a profile as long as the connection lasts; [`ProfileBegun`](super::ProfileBegun)
    /// answers.
    Profile(ProfileWish),
    /// Asks for what a profile of this connection has seen so far;
    /// [`ProfilePart`](super::ProfilePart) answers.
    ProfileReport {
        /// Its number.
        number: u32,
        /// The first row of the answer: 0 for a new look at the profile, `next` of a part for the
        /// next part of the same look.
        #[serde(default)]
        from: u64,
    },
    /// Starts, ends or tells of the flight recorder; [`RecordAnswer`](super::RecordAnswer) answers.
    Record(RecordWish),
    /// Lists the places where tasks wait, as far as they were taken;
    /// [`PlacesPart`](super::PlacesPart) answers.
    Places {
        /// The least number of the answer: 0, or `next` of a part for the next part.
        #[serde(default)]
        from: u32,
    },
    /// Wakes each task that awaits something at a place that is not known, once, as any runtime may
    /// do: their leaves take wakers again, and so they have places from then on.
    /// [`WokenTasks`](super::WokenTasks) answers.
    WakeTasks {
        /// Where the part begins: 0, or `next` of the part before.
        #[serde(default)]
        from: u64,
    },
    /// Lists the triggers; [`TriggersAnswer`](super::TriggersAnswer) answers.
    Triggers,
    /// Arms triggers, which stay when the connection ends;
    /// [`TriggersAnswer`](super::TriggersAnswer) answers. A rule that makes no sense refuses all.
    TriggerAdd {
        /// Rules, with `;` in between.
        rules: String,
    },
    /// Ends a trigger; [`TriggersAnswer`](super::TriggersAnswer) answers.
    TriggerRemove {
        /// Its number.
        number: u64,
    },
    /// Has a file written now: a trigger that fires at once, and is listed until somebody removes
    /// it. [`TriggersAnswer`](super::TriggersAnswer) answers, with it as the only one.
    RecordSave,
    /// Reports polls that last, as long as the connection lasts, in place of those that it asked
    /// for before; [`LongPollsBegun`](super::LongPollsBegun) answers.
    LongPolls(LongPollsWish),
    /// Asks for the reports on long polls that have come since the last time;
    /// [`LongPollsPart`](super::LongPollsPart) answers.
    LongPollReports,
    /// Lists the tasks that are and whose times are known; [`TasksPart`](super::TasksPart) answers.
    /// It has no times taken by itself.
    Tasks {
        /// Where the answer begins: 0, or `next` of the part before.
        #[serde(default)]
        from: u64,
    },
}

/// An answer: exactly one of `ok` and `error` is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Response<T> {
    /// Protocol version.
    pub v: u32,
    /// The request's id; 0 if the agent could not read it.
    pub id: u64,
    /// The answer to the operation.
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    pub ok: Option<T>,
    /// Why there is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<WireError>,
}

/// A refused request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WireError {
    /// The kind of refusal.
    pub code: Code,
    /// The fault, its object, and the change that mends it.
    pub message: String,
    /// Names near the one that matched nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub near: Vec<String>,
}

impl WireError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), near: Vec::new() }
    }
}

/// The kinds of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Code {
    /// Not JSON, not a request, an unknown operation, a field out of range.
    BadRequest,
    /// A glob list that does not parse.
    BadGlob,
    /// A glob list that matches no key, or where probes are wanted, no probe.
    NoMatch,
    /// A name that is no event.
    NoEvent,
    /// A protocol version that this agent does not speak.
    Version,
    /// A line or a frame over its bound.
    TooLong,
    /// Too many clients at once.
    Busy,
    /// A peer of another user.
    Denied,
    /// The agent could not switch the keys, as the message says. They read as before; so does their
    /// code, unless the message counts sites that could not be put back.
    Keys,
    /// The process cannot count these events together, or not now, as the message says.
    Events,
    /// There is no recorder, or no other beside the one that runs, as the message says.
    NoRecorder,
    /// A name that is no group, or a glob list that matches none; `near` has those that are.
    NoGroup,
    /// The registers, or what else a watch takes, are with the holders that the message names.
    NoSlot,
    /// An address, a length or a value that no watch can have.
    BadWatch,
    /// The process cannot watch itself, whatever is free; a process with more rights can watch it
    /// from outside.
    NoWatching,
    /// A profile that nobody can take here, or that this connection does not have, as the message
    /// says.
    NoProfile,
    /// A rule of a trigger that makes no sense, as the message says.
    BadRule,
    /// A trigger that cannot be armed, or that is not there, as the message says.
    NoTrigger,
    /// The service cannot be looked at in this way, as the message says.
    NoLook,
    /// A code of a newer agent.
    #[serde(other)]
    Unknown,
}
