//! Figures of groups.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::StatPart;
use super::column::{Column, leave_out};
use super::counts::CountColumns;
use super::waits::WaitsColumns;
use crate::bounded::at_most;
use crate::objective::Objective;
use crate::verbs::objectives::ObjectiveRow;
use crate::verbs::stat::outcomes::{KnownOutcomes, MOST_OWN, OutcomesRow};
use crate::verbs::stat::{BlockingRow, CountRow, GroupRow, LongLivedRow, Outliving};

/// The most bytes of all names of events, with [`EACH_EVENT`] for each: every group gets a copy of
/// them. A service counts 32 events for a client.
pub(super) const MOST_EVENTS: usize = 8 << 10;
const EACH_EVENT: usize = 64;

/// The most objectives of a group.
const MOST_OBJECTIVES: usize = 8;

/// The groups of a service, by columns. A column that is empty for all groups is left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GroupColumns {
    /// The numbers of the groups, in order of creation.
    pub id: Vec<u32>,
    /// The names of the groups.
    pub name: Vec<Cow<'static, str>>,
    /// The `cpu_ns` of each group.
    pub cpu_ns: Vec<u64>,
    /// The `entries` of each group.
    pub entries: Vec<u64>,
    /// The `alive` of each group.
    pub alive: Vec<u64>,
    /// The `started` of each group.
    pub started: Vec<u64>,
    /// The `finished` of each group.
    pub finished: Vec<u64>,
    /// The `requests` of each group.
    pub requests: Vec<u64>,
    /// The `outcomes` of each group: `completed`, `client_error`, `error`, `cancelled`, `panicked`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<Option<KnownOutcomes>>,
    /// The `own` outcomes of each group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub own_outcomes: Vec<Vec<(Cow<'static, str>, u64)>>,
    /// The `objectives` of each group: `target_ppm`, `limit_ns`, `met`, `missed`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objectives: Vec<Vec<(u32, u64, u64, u64)>>,
    /// The `blocking` of each group: `begun`, `queued_ns`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocking: Vec<Option<(u64, u64)>>,
    /// The `polls` of each group.
    pub polls: Vec<u64>,
    /// The `counts` of groups, event by event.
    #[serde(
        deserialize_with = "at_most::<{ MOST_EVENTS / EACH_EVENT }, _, _>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub counts: Vec<CountColumns>,
    /// The `outliving` of each group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outliving: Vec<Option<Outliving>>,
    /// The `long_lived` of each group: `tasks`, `age_ns`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub long_lived: Vec<Option<(u64, Option<u64>)>>,
    /// The times of groups; absent if no group has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Box<WaitsColumns>>,
}

impl GroupColumns {
    pub(super) fn of(groups: Vec<GroupRow>, part: StatPart) -> Self {
        let mut all = Self::default();
        all.reserve(groups.len());
        let mut waits = groups.iter().any(|group| group.waits.is_some()).then(|| WaitsColumns::of_part(part));
        for (at, group) in groups.into_iter().enumerate() {
            all.id.push(group.id);
            all.name.push(group.name);
            all.cpu_ns.push(group.cpu_ns);
            all.entries.push(group.entries);
            all.alive.push(group.alive);
            all.started.push(group.started);
            all.finished.push(group.finished);
            all.requests.push(group.requests);
            let (outcomes, own) = group.outcomes.map(|of| (of.known(), of.own)).unzip();
            all.outcomes.push(outcomes);
            all.own_outcomes.push(own.unwrap_or_default());
            let objective =
                |of: ObjectiveRow| (of.objective.target_ppm, of.objective.limit_ns, of.met, of.missed);
            all.objectives.push(group.objectives.into_iter().map(objective).collect());
            all.blocking.push(group.blocking.map(|of| (of.begun, of.queued_ns)));
            all.polls.push(group.polls);
            group.counts.iter().for_each(|count| all.count(at, count));
            all.outliving.push(group.outliving.filter(|_| part >= StatPart::Groups));
            all.long_lived.push(group.long_lived.map(|of| (of.tasks, of.age_ns)));
            if let Some(waits) = &mut waits {
                waits.push(group.waits.as_deref(), part);
            }
        }
        leave_out(&mut all.outliving);
        leave_out(&mut all.long_lived);
        leave_out(&mut all.outcomes);
        leave_out(&mut all.own_outcomes);
        leave_out(&mut all.objectives);
        leave_out(&mut all.blocking);
        all.waits = waits.map(|mut waits| {
            waits.leave_out();
            Box::new(waits)
        });
        all
    }

    fn reserve(&mut self, groups: usize) {
        self.id.reserve(groups);
        self.name.reserve(groups);
        let Self { cpu_ns, entries, alive, started, finished, requests, polls, .. } = self;
        for column in [cpu_ns, entries, alive, started, finished, requests, polls] {
            column.reserve(groups);
        }
    }

    /// Adds a count of the group that is number `at`.
    fn count(&mut self, at: usize, count: &CountRow) {
        let known = self.counts.iter().position(|of| of.event == count.event).unwrap_or_else(|| {
            self.counts.push(CountColumns::of(count.event.clone()));
            self.counts.len() - 1
        });
        self.counts[known].push(at, count);
    }

    /// The groups, one by one. Columns of a peer that are shorter than the others end with zeros.
    pub(super) fn rows(self) -> impl Iterator<Item = GroupRow> {
        let [mut cpu_ns, mut entries, mut alive, mut started, mut finished, mut requests, mut polls] =
            [self.cpu_ns, self.entries, self.alive, self.started, self.finished, self.requests, self.polls]
                .map(Column::of);
        let mut name = Column::of(self.name);
        let mut taken = 0;
        let is_room = |of: &CountColumns| {
            taken += of.event.len() + EACH_EVENT;
            taken <= MOST_EVENTS
        };
        let mut counts: Vec<_> =
            self.counts.into_iter().take_while(is_room).map(CountColumns::rows).collect();
        let (mut outliving, mut waits) = (Column::of(self.outliving), self.waits.map(|waits| waits.rows()));
        let mut long_lived = Column::of(self.long_lived);
        let (mut outcomes, mut own) = (Column::of(self.outcomes), Column::of(self.own_outcomes));
        let (mut objectives, mut blocking) = (Column::of(self.objectives), Column::of(self.blocking));
        let objective = |(target_ppm, limit_ns, met, missed)| ObjectiveRow {
            objective: Objective { target_ppm, limit_ns },
            met,
            missed,
        };
        self.id.into_iter().map(move |id| GroupRow {
            id,
            name: name.next(),
            cpu_ns: cpu_ns.next(),
            entries: entries.next(),
            alive: alive.next(),
            started: started.next(),
            finished: finished.next(),
            requests: requests.next(),
            outcomes: {
                let mut own = own.next();
                own.truncate(MOST_OWN);
                outcomes.next().map(|(completed, client_error, error, cancelled, panicked)| OutcomesRow {
                    completed,
                    client_error,
                    error,
                    cancelled,
                    panicked,
                    own,
                })
            },
            objectives: objectives.next().into_iter().take(MOST_OBJECTIVES).map(objective).collect(),
            blocking: blocking.next().map(|(begun, queued_ns)| BlockingRow { begun, queued_ns }),
            polls: polls.next(),
            counts: counts.iter_mut().filter_map(|rows| rows.next()?).collect(),
            waits: waits.as_mut().and_then(|waits| waits.next()?),
            outliving: outliving.next(),
            long_lived: long_lived.next().map(|(tasks, age_ns)| LongLivedRow { tasks, age_ns }),
        })
    }
}
