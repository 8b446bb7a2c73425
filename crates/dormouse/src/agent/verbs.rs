//! The operations that call one function of their feature.

use dormouse_protocol::{
    Code, CountRequest, DoctorRequest, Events, EventsRequest, HelloRequest, LongPollReportsRequest,
    LongPollsRequest, PlacesRequest, ProfileReportRequest, ProfileRequest, RecordRequest, RecordSaveRequest,
    SlotsRequest, StatRequest, TasksRequest, TraceRequest, Tracing, TriggerAddRequest, TriggerRemoveRequest,
    TriggersRequest, Verb, WaitsRequest, WakeTasksRequest, WatchReportRequest, WatchRequest, WireError,
};

use super::chosen::{bad, chosen, names, parse, refused, untraced};
use super::client::Client;
use super::ops::{Answered, Asked};
use super::stream::Stream;
use super::watching::{self, ClientWatch};
use super::{long_polls, profiling, recording, registers, triggers};
use crate::core::rows::{batch_stat, clock_point, probe_info};
use crate::core::trace::Trace;
use crate::doctor::doctor;
use crate::features::hello::hello;
use crate::features::stat::counting::{self, ClientEvents};
use crate::features::stat::stat;
use crate::features::waits::taking::ClientWaits;
use crate::features::{tasks, waits};

/// The event that groups count for a client that has not asked for any.
const TASK_CLOCK: &str = "task-clock";

/// Events that a client may have counted.
const MAX_EVENTS: usize = 32;

type Answer<V> = Result<<V as Verb>::Answer, WireError>;

impl Answered for HelloRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Answer<Self> {
        asked.client().greet(self.client, self.notices);
        Ok(hello())
    }
}

impl Answered for TraceRequest {
    /// Starts a trace, whose frames follow the answer.
    fn answer(self, asked: &mut Asked<'_>) -> Answer<Self> {
        let trace = Trace::of(chosen(&parse(&self.glob)?)?).map_err(untraced)?;
        let answer = Tracing {
            matched: names(trace.keys()),
            keys: trace.keys().len(),
            probes: trace.keys().iter().filter_map(probe_info).collect(),
            batch: trace.lease().map(|lease| batch_stat(lease.report())).unwrap_or_default(),
            clock: clock_point(),
        };
        asked.client().tracing = Some(Stream::new(trace));
        Ok(answer)
    }
}

impl Answered for StatRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Answer<Self> {
        let Client { counting, waits, .. } = asked.client();
        // A client that does not use `count` wants CPU time.
        if counting.is_none() {
            *counting = ClientEvents::start_counting(&[TASK_CLOCK.to_owned()]).ok().map(|(c, _)| c);
        }
        Ok(stat(counting.as_ref(), waits.as_ref().map(ClientWaits::told)))
    }
}

impl Answered for EventsRequest {
    fn answer(self, _: &mut Asked<'_>) -> Answer<Self> {
        Ok(Events { events: counting::countable_events() })
    }
}

impl Answered for CountRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Answer<Self> {
        if self.events.len() > MAX_EVENTS {
            return Err(bad(format!("more than {MAX_EVENTS} events: ask for fewer")));
        }
        let (counting, answer) = ClientEvents::start_counting(&self.events)?;
        // This ends what the client had counted before.
        asked.client().counting = Some(counting);
        Ok(answer)
    }
}

impl Answered for WaitsRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Answer<Self> {
        let (waits, answer) = ClientWaits::begin(self).map_err(refused)?;
        // This ends what the client had taken before.
        asked.client().waits = Some(waits);
        Ok(answer)
    }
}

impl Answered for DoctorRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Answer<Self> {
        let settings = crate::environment::capabilities();
        Ok(doctor(settings, watching::capability(), asked.place.check()))
    }
}

impl Answered for WatchRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Answer<Self> {
        registers::watch(asked.clients, asked.at, &self)
    }
}

impl Answered for WatchReportRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Answer<Self> {
        let Self { number } = self;
        let watch = asked.client().watches.iter_mut().find(|watch| watch.number() == number);
        let none = || WireError::new(Code::BadWatch, format!("this connection has no watch {number}"));
        watch.map(ClientWatch::report).ok_or_else(none)
    }
}

impl Answered for SlotsRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Answer<Self> {
        Ok(registers::slots(asked.clients))
    }
}

impl Answered for ProfileRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Answer<Self> {
        let all = asked.clients.iter().map(|client| client.profiles.len()).sum();
        profiling::begin(&mut asked.client().profiles, all, &self)
    }
}

impl Answered for ProfileReportRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Answer<Self> {
        profiling::report(&mut asked.client().profiles, self.number, self.from)
    }
}

impl Answered for RecordRequest {
    fn answer(self, _: &mut Asked<'_>) -> Answer<Self> {
        recording::answer(&self)
    }
}

impl Answered for PlacesRequest {
    fn answer(self, _: &mut Asked<'_>) -> Answer<Self> {
        Ok(waits::verb::part(self.from))
    }
}

impl Answered for WakeTasksRequest {
    fn answer(self, _: &mut Asked<'_>) -> Answer<Self> {
        Ok(tasks::wake(self.from))
    }
}

impl Answered for TasksRequest {
    fn answer(self, _: &mut Asked<'_>) -> Answer<Self> {
        Ok(tasks::part(self.from))
    }
}

impl Answered for TriggersRequest {
    fn answer(self, _: &mut Asked<'_>) -> Answer<Self> {
        triggers::list()
    }
}

impl Answered for TriggerAddRequest {
    fn answer(self, _: &mut Asked<'_>) -> Answer<Self> {
        triggers::add(&self.rules)
    }
}

impl Answered for TriggerRemoveRequest {
    fn answer(self, _: &mut Asked<'_>) -> Answer<Self> {
        triggers::remove(self.number)
    }
}

impl Answered for RecordSaveRequest {
    fn answer(self, _: &mut Asked<'_>) -> Answer<Self> {
        triggers::save()
    }
}

impl Answered for LongPollsRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Answer<Self> {
        long_polls::begin(&mut asked.client().long_polls, self)
    }
}

impl Answered for LongPollReportsRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Answer<Self> {
        long_polls::report(asked.client().long_polls.as_ref())
    }
}
