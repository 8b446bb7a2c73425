//! `stat`, what groups count for the client that asks (`events`, `count`), and `spawn-sites`.

use dormouse_keys::Key;
use dormouse_protocol::{
    CountAnswer, CountRequest, Events, EventsRequest, SpawnSites, SpawnSitesRequest, Stat, StatPart,
    StatRequest, WireError,
};

use super::counting::{self, ClientEvents};
use crate::agent::request::bad;
use crate::agent::{Answered, Asked, ClientState};
use crate::features::waits::taking::ClientWaits;

/// The event that groups count for a client that has not asked for any.
const TASK_CLOCK: &str = "task-clock";

/// Events that a client may have counted.
const MAX_EVENTS: usize = 32;

impl ClientState for ClientEvents {
    fn what(&self) -> String {
        match self.names().as_slice() {
            [] => "counts nothing".to_owned(),
            names => format!("counts {}", names.join(", ")),
        }
    }

    fn keys(&self) -> Vec<&'static Key> {
        ClientEvents::keys(self).collect()
    }

    fn ends_with_memory(&self) -> bool {
        true
    }
}

impl Answered for StatRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<Stat, WireError> {
        let states = &mut asked.client().states;
        // A client that does not use `count` wants CPU time.
        if states.get::<ClientEvents>().is_none()
            && let Ok((counting, _)) = ClientEvents::start_counting(&[TASK_CLOCK.to_owned()])
        {
            states.add(counting);
        }
        let waits = states.get::<ClientWaits>();
        let scope = waits.map(|waits| waits.scope().of_request(self));
        let stalls = waits.map(ClientWaits::stalls).unwrap_or_default();
        Ok(match self.part {
            Some(part) => {
                let mut stat = super::columns(states.get(), scope, stalls, part);
                if let Some(most) = self.most_bytes {
                    stat.fit(most);
                }
                stat
            }
            None => super::rows(states.get(), scope, stalls, StatPart::Whole),
        })
    }
}

impl Answered for SpawnSitesRequest {
    fn answer(self, _: &mut Asked<'_>) -> Result<SpawnSites, WireError> {
        Ok(super::history::spawn_sites())
    }
}

impl Answered for EventsRequest {
    fn answer(self, _: &mut Asked<'_>) -> Result<Events, WireError> {
        Ok(Events { events: counting::countable_events() })
    }
}

impl Answered for CountRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<CountAnswer, WireError> {
        if self.events.len() > MAX_EVENTS {
            return Err(bad(format!("more than {MAX_EVENTS} events: ask for fewer")));
        }
        let (counting, answer) = ClientEvents::start_counting(&self.events)?;
        // This ends what the client had counted before.
        asked.client().states.set(counting);
        Ok(answer)
    }
}
