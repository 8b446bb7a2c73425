//! The operations: one file for each subject, with the requests, the answers and the bounds.

mod cancelled;
mod clients;
mod count;
mod doctor;
mod hello;
mod keys;
mod locks;
mod long_polls;
mod objectives;
mod places;
mod profile;
mod record;
mod sleep;
mod spawn_sites;
mod stalls;
mod stat;
mod switch;
mod tasks;
mod trace;
mod traffic;
mod triggers;
mod waits;
mod watch;

use serde::{Deserialize, Serialize};

/// Gives `$then!` the list of all operations: the name of each in [`Op`], its module and its
/// request. The public types of these modules are those of the crate.
#[macro_export]
macro_rules! for_each_verb {
    ($then:ident) => {
        $then! {
            Hello(hello::HelloRequest),
            Keys(keys::KeysRequest),
            Clients(clients::ClientsRequest),
            On(switch::OnRequest),
            Off(switch::OffRequest),
            Reset(switch::ResetRequest),
            Trace(trace::TraceRequest),
            Stat(stat::StatRequest),
            Events(count::EventsRequest),
            Count(count::CountRequest),
            Waits(waits::WaitsRequest),
            Objectives(objectives::ObjectivesRequest),
            Doctor(doctor::DoctorRequest),
            Watch(watch::WatchRequest),
            WatchReport(watch::WatchReportRequest),
            Slots(watch::SlotsRequest),
            Profile(profile::ProfileRequest),
            ProfileReport(profile::ProfileReportRequest),
            Record(record::RecordRequest),
            Places(places::PlacesRequest),
            WakeTasks(places::WakeTasksRequest),
            Triggers(triggers::TriggersRequest),
            TriggerAdd(triggers::TriggerAddRequest),
            TriggerRemove(triggers::TriggerRemoveRequest),
            RecordSave(triggers::RecordSaveRequest),
            LongPolls(long_polls::LongPollsRequest),
            LongPollReports(long_polls::LongPollReportsRequest),
            Tasks(tasks::TasksRequest),
            Cancelled(cancelled::CancelledRequest),
            Locks(locks::LocksRequest),
            LockReport(locks::LockReportRequest),
            SpawnSites(spawn_sites::SpawnSitesRequest),
            Sleep(sleep::SleepRequest),
            Wake(sleep::WakeRequest),
        }
    };
}

macro_rules! operations {
    ($($name:ident($module:ident::$request:ident),)*) => {
        $(
            #[allow(unused_imports, unreachable_pub, reason = "a module of several verbs comes several times")]
            pub use $module::*;
        )*

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
        ($($name:ident($module:ident::$request:ident),)*) => {
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
