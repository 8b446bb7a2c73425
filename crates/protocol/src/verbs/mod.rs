//! The operations: one file for each subject, with the requests, the answers and the bounds.

mod clients;
mod count;
mod doctor;
mod hello;
mod keys;
mod long_polls;
mod places;
mod profile;
mod record;
mod sleep;
mod stat;
mod switch;
mod tasks;
mod trace;
mod triggers;
mod waits;
mod watch;

use serde::{Deserialize, Serialize};

pub use clients::{ClientRow, Clients, ClientsRequest};
pub use count::{CountAnswer, CountRequest, EventInfo, Events, EventsRequest};
pub use doctor::{Check, CheckState, Doctor, DoctorRequest};
pub use hello::{Hello, HelloRequest};
pub use keys::{HeldBy, KeyHolder, KeyInfo, Keys, KeysRequest, LeaseHolder};
pub use long_polls::{LongPollReportsRequest, LongPollRow, LongPollsBegun, LongPollsPart, LongPollsRequest};
pub use places::{PlaceRow, PlacesPart, PlacesRequest, WakeTasksRequest, WokenTasks};
pub use profile::{ProfileBegun, ProfilePart, ProfileReportRequest, ProfileRequest};
pub use record::{RecordAnswer, RecordRequest, RecorderRow};
pub use sleep::{Asleep, SleepRequest, Slept, WakeRequest, Woken};
pub use stat::columns::{
    CountColumns, ExemplarColumns, GroupColumns, HistogramColumns, KnownId, StatPart, WaitsColumns,
};
pub use stat::own::OwnCost;
pub use stat::{Clock, CountRow, CountedCpu, GroupRow, Outliving, Stat, StatRequest, TaskPolls, ThreadStat};
pub use switch::{BatchStat, Changed, HeldKeys, OffRequest, OnRequest, ResetRequest};
pub use tasks::{TaskColumns, TaskGroup, TaskRow, TasksPart, TasksRequest, WireTaskState};
pub use trace::{ClockPoint, Ended, FrameKind, Note, Notice, ProbeInfo, TraceRequest, Tracing};
pub use triggers::{
    RecordSaveRequest, TriggerAddRequest, TriggerRemoveRequest, TriggerRow, TriggersAnswer, TriggersRequest,
};
pub use waits::{ExemplarRow, HistogramRow, QueueRow, WaitsBegun, WaitsRequest, WaitsRow, bucket_index};
pub use watch::{
    CoverageRow, HitRow, SiteRow, SlotOwner, SlotRow, SlotsAnswer, SlotsRequest, WatchReportRequest,
    WatchRequest, WatchRow, Watching, WireAccess, WireState,
};

/// Gives `$then!` the list of all operations: the name of each in [`Op`], and its request. A new
/// verb is its type and a line here.
#[macro_export]
macro_rules! for_each_verb {
    ($then:ident) => {
        $then! {
            Hello(HelloRequest),
            Keys(KeysRequest),
            Clients(ClientsRequest),
            On(OnRequest),
            Off(OffRequest),
            Reset(ResetRequest),
            Trace(TraceRequest),
            Stat(StatRequest),
            Events(EventsRequest),
            Count(CountRequest),
            Waits(WaitsRequest),
            Doctor(DoctorRequest),
            Watch(WatchRequest),
            WatchReport(WatchReportRequest),
            Slots(SlotsRequest),
            Profile(ProfileRequest),
            ProfileReport(ProfileReportRequest),
            Record(RecordRequest),
            Places(PlacesRequest),
            WakeTasks(WakeTasksRequest),
            Triggers(TriggersRequest),
            TriggerAdd(TriggerAddRequest),
            TriggerRemove(TriggerRemoveRequest),
            RecordSave(RecordSaveRequest),
            LongPolls(LongPollsRequest),
            LongPollReports(LongPollReportsRequest),
            Tasks(TasksRequest),
            Sleep(SleepRequest),
            Wake(WakeRequest),
        }
    };
}

macro_rules! operations {
    ($($name:ident($request:ident),)*) => {
        /// A request of any operation, as it is on the wire.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(tag = "op", rename_all = "kebab-case")]
        pub enum Op {
            $(
                #[doc = concat!("[`", stringify!($request), "`].")]
                $name($request),
            )*
        }

        $(
            impl From<$request> for Op {
                fn from(request: $request) -> Self {
                    Self::$name(request)
                }
            }
        )*

        /// The names of operations that a service announces, each once.
        pub fn announced() -> Vec<&'static str> {
            use crate::Verb;

            let mut names: Vec<&str> = vec![$(<$request>::ANNOUNCED_AS),*];
            names.extend(hello::FEATURES);
            // Every service supports it, and shows so by its answer.
            names.retain(|name| *name != HelloRequest::NAME);
            names.sort_unstable();
            names.dedup();
            names
        }
    };
}

for_each_verb!(operations);

#[cfg(test)]
mod tests {
    use crate::Verb;

    use super::*;

    macro_rules! names {
        ($($name:ident($request:ident),)*) => {
            [$((<$request>::NAME, serde_json::to_value(Op::from(<$request>::default())).unwrap())),*]
        };
    }

    #[test]
    fn names_are_those_on_the_wire() {
        for (name, json) in for_each_verb!(names) {
            assert_eq!(json["op"], name);
            // The least request of each: what may be left out is.
            let read: Op = serde_json::from_value(json.clone()).unwrap();
            assert_eq!(serde_json::to_value(read).unwrap(), json);
        }
    }

    #[test]
    fn each_announced_name_is_that_of_a_verb() {
        let verbs: Vec<&str> = for_each_verb!(names).map(|(name, _)| name).into();
        let known = |name: &&str| verbs.contains(name) || hello::FEATURES.contains(name);
        assert!(announced().iter().all(known), "{:?}", announced());
    }
}
