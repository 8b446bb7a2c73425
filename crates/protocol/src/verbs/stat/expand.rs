//! Columns of groups as rows. They may come from any peer, so columns may differ in length, and
//! numbers may be any.

use std::borrow::Cow;

use dormouse_statistics::buckets::{SCALE, place};

use super::columns::{CountColumns, ExemplarColumns, GroupColumns, HistogramColumns, KnownId, WaitsColumns};
use super::outcomes::{OutcomesRow, known_word};
use super::{BlockingRow, CountRow, GroupRow, LongLivedRow, Stat};
use crate::objective::Objective;
use crate::verbs::objectives::ObjectiveRow;
use crate::verbs::waits::{
    CarriedRow, ExemplarRow, HistogramRow, MessagesRow, QueueRow, StreamsRow, UnansweredRow, WaitsRow,
    bucket_index,
};

/// The most bytes of all names of events, with [`EACH_EVENT`] for each: every group gets a copy of
/// them. A service counts 32 events for a client.
const MOST_EVENTS: usize = 8 << 10;
const EACH_EVENT: usize = 64;

/// The most objectives of a group.
const MOST_OBJECTIVES: usize = 8;

/// The most things that polls of a group slept in: a service tells nine apart.
const MOST_WITHIN: usize = 16;

/// The most words for outcomes of exemplars, and the bytes of each, because every exemplar gets a
/// copy: a service has eleven words, the longest of 64 bytes.
const MOST_OUTCOMES: usize = 16;
const LONGEST_OUTCOME: usize = 64;

/// The most rows of calls: a service has fewer, even if each of its groups has one of peers without
/// rows of their own.
const MOST_CALLS: usize = 4096;

impl Stat {
    /// Restores the rows of groups from their columns. Returns the number of groups that were left
    /// out because they are more than `most`.
    pub fn expand(&mut self, most: usize) -> usize {
        let all = self.columns.as_ref().map_or(self.groups.len(), |columns| columns.id.len());
        match self.columns.take() {
            Some(columns) => self.groups = columns.rows().take(most).collect(),
            None => self.groups.truncate(most),
        }
        self.calls.truncate(MOST_CALLS);
        all.saturating_sub(most)
    }
}

impl GroupColumns {
    /// The groups, one by one. Columns of a peer that are shorter than the others end with zeros.
    fn rows(self) -> impl Iterator<Item = GroupRow> {
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
                let own = own.next();
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
            waits: waits.as_mut().and_then(|waits| waits.next()?).map(Box::new),
            outliving: outliving.next(),
            long_lived: long_lived.next().map(|(tasks, age_ns)| LongLivedRow { tasks, age_ns }),
        })
    }
}

impl CountColumns {
    /// The counts of the groups, one by one.
    fn rows(self) -> impl Iterator<Item = Option<CountRow>> {
        let (mut enabled_ns, mut running_ns) = (Column::of(self.enabled_ns), Column::of(self.running_ns));
        self.value.into_iter().map(move |value| {
            let (enabled_ns, running_ns) = (enabled_ns.next(), running_ns.next());
            Some(CountRow { event: self.event.clone(), value: value?, enabled_ns, running_ns })
        })
    }
}

impl WaitsColumns {
    /// The times of the groups, one by one; `None` for a group without times.
    fn rows(self) -> impl Iterator<Item = Option<WaitsRow>> {
        let empty = HistogramRow {
            scale: self.scale,
            unit_ns: self.unit_ns,
            zero_threshold_ns: self.zero_threshold_ns,
            sum_ns: Some(0),
            ..HistogramRow::default()
        };
        let (first, scale) = (self.first_bucket, self.scale);
        let mut requests = self.requests.rows(empty.clone(), first);
        let [mut polls, mut delays, mut awaits, mut bodies, mut gaps] =
            [self.polls, self.delays, self.awaits, self.bodies, self.gaps]
                .map(|columns| columns.map(|columns| columns.rows(empty.clone(), first)));
        let mut exemplars = self.exemplars.map(|exemplars| exemplars.lists(scale));
        let (mut on_cpu_ns, mut runnable_ns) = (Column::of(self.on_cpu_ns), Column::of(self.runnable_ns));
        let (mut await_ns, mut queue) = (Column::of(self.await_ns), Column::of(self.queue));
        let (mut unanswered, mut streams) = (Column::of(self.unanswered), Column::of(self.streams));
        let (mut carried, mut messages) = (Column::of(self.carried), Column::of(self.messages));
        let mut stalls = Column::of(self.stalls);
        self.poll_ns.into_iter().map(move |poll_ns| {
            let next =
                |of: &mut Option<_>| of.as_mut().map_or_else(HistogramRow::default, HistogramRows::next);
            let requests = requests.next();
            let exemplars = exemplars.as_mut().map_or_else(Vec::new, ExemplarLists::next);
            let row = |(requests, received, unseen_ns, behind_ns)| QueueRow {
                requests,
                received,
                unseen_ns,
                behind_ns,
            };
            let row = WaitsRow {
                on_cpu_ns: on_cpu_ns.next(),
                poll_ns: poll_ns.unwrap_or_default(),
                runnable_ns: runnable_ns.next(),
                await_ns: await_ns.next(),
                queue: queue.next().map(row),
                unanswered: unanswered.next().map(|(requests, age_ns)| UnansweredRow { requests, age_ns }),
                polls: next(&mut polls),
                delays: next(&mut delays),
                awaits: next(&mut awaits),
                bodies: next(&mut bodies),
                gaps: next(&mut gaps),
                streams: streams.next().map(|(frames, bytes, sending)| StreamsRow { frames, bytes, sending }),
                carried: carried.next().map(|(read, written)| CarriedRow { read, written }),
                messages: messages.next().map(|(messages, bytes)| MessagesRow { messages, bytes }),
                stalls: stalls.next().map(|mut of| {
                    of.within.truncate(MOST_WITHIN);
                    of
                }),
                requests: HistogramRow { exemplars, ..requests },
            };
            poll_ns.map(|_| row)
        })
    }
}

impl HistogramColumns {
    fn rows(self, empty: HistogramRow, first: i32) -> HistogramRows {
        HistogramRows {
            empty,
            first,
            zero_count: Column::of(self.zero_count),
            sum_ns: Column::of(self.sum_ns),
            max_ns: Column::of(self.max_ns),
            max_task: Column::of(self.max_task),
            buckets: self.buckets.into_iter(),
            has_tasks: !self.tasks.is_empty(),
            tasks: Column::of(self.tasks),
        }
    }
}

/// The histograms of columns, group by group.
struct HistogramRows {
    empty: HistogramRow,
    first: i32,
    zero_count: Column<u64>,
    sum_ns: Column<u64>,
    max_ns: Column<u64>,
    max_task: Column<Option<u64>>,
    buckets: std::vec::IntoIter<i64>,
    has_tasks: bool,
    tasks: Column<u64>,
}

impl HistogramRows {
    fn next(&mut self) -> HistogramRow {
        let counts = self.buckets.as_slice();
        let end = counts.iter().position(|&n| n == 0).unwrap_or(counts.len());
        let (mut next, mut tasks) = (self.first, Vec::new());
        let mut buckets = Vec::with_capacity(counts[..end].iter().filter(|&&n| n > 0).count());
        for n in self.buckets.by_ref().take(end) {
            // A peer may send any numbers.
            if n < 0 {
                next = next.saturating_add(i32::try_from(n.unsigned_abs()).unwrap_or(i32::MAX));
                continue;
            }
            buckets.push((next, n.unsigned_abs()));
            if self.has_tasks {
                tasks.push((next, self.tasks.next()));
            }
            next = next.saturating_add(1);
        }
        // The end of the group.
        self.buckets.next();
        tasks.retain(|(_, task)| *task != 0);
        HistogramRow {
            zero_count: self.zero_count.next(),
            buckets,
            sum_ns: Some(self.sum_ns.next()),
            max_ns: self.max_ns.next(),
            max_task: self.max_task.next(),
            tasks,
            ..self.empty.clone()
        }
    }
}

impl ExemplarColumns {
    fn lists(self, scale: i32) -> ExemplarLists {
        ExemplarLists {
            wider: SCALE.saturating_sub(scale).clamp(0, 31),
            of_group: Column::of(self.of_group),
            task: self.task.into_iter(),
            duration_ns: Column::of(self.duration_ns),
            unix_ns: Column::of(self.unix_ns),
            outcomes: self
                .outcomes
                .into_iter()
                .take(MOST_OUTCOMES)
                .map(|word| (word.len() <= LONGEST_OUTCOME).then(|| known_word(word)))
                .collect(),
            outcome: Column::of(self.outcome),
            trace_id: Column::of(self.trace_id),
            span_id: Column::of(self.span_id),
        }
    }
}

/// The exemplars of columns, group by group.
struct ExemplarLists {
    wider: i32,
    of_group: Column<u32>,
    task: std::vec::IntoIter<u64>,
    duration_ns: Column<u64>,
    unix_ns: Column<u64>,
    outcomes: Vec<Option<Cow<'static, str>>>,
    outcome: Column<u8>,
    trace_id: Column<KnownId<16>>,
    span_id: Column<KnownId<8>>,
}

impl ExemplarLists {
    fn next(&mut self) -> Vec<ExemplarRow> {
        let count = self.of_group.next() as usize;
        // There are no more than these, whatever the peer says.
        let mut exemplars = Vec::with_capacity(count.min(self.task.len()));
        for task in self.task.by_ref().take(count) {
            let duration_ns = self.duration_ns.next();
            exemplars.push(ExemplarRow {
                index: bucket_index(place(duration_ns)) >> self.wider,
                task,
                duration_ns,
                unix_ns: self.unix_ns.next(),
                outcome: usize::from(self.outcome.next())
                    .checked_sub(1)
                    .and_then(|at| self.outcomes.get(at)?.clone()),
                trace_id: self.trace_id.next().0,
                span_id: self.span_id.next().0,
            });
        }
        exemplars
    }
}

/// A column that is read from its beginning, and has zeros behind its end.
struct Column<T>(std::vec::IntoIter<T>);

impl<T: Default> Column<T> {
    fn of(column: Vec<T>) -> Self {
        Self(column.into_iter())
    }

    fn next(&mut self) -> T {
        self.0.next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
