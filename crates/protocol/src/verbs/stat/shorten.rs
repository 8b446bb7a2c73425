//! Rows of groups as columns.

use dormouse_statistics::buckets::{SCALE, UNIT_NS, ZERO_THRESHOLD_NS};

use super::columns::{
    CountColumns, ExemplarColumns, GroupColumns, HistogramColumns, KnownId, StatPart, WaitsColumns,
};
use super::{CountRow, GroupRow, Stat};
use crate::verbs::objectives::ObjectiveRow;
use crate::verbs::waits::{ExemplarRow, HistogramRow, QueueRow, WaitsRow, bucket_index};

impl Stat {
    /// Puts groups into columns, and drops what the part does not have.
    pub fn shorten(&mut self, to: StatPart) {
        if to < StatPart::Whole {
            self.thread_total = Some(std::mem::take(&mut self.threads).len() as u64);
        }
        for calls in &mut self.calls {
            calls.times = std::mem::take(&mut calls.times).at_scale(to.scale());
        }
        self.columns = Some(Box::new(GroupColumns::of(std::mem::take(&mut self.groups), to)));
    }
}

impl GroupColumns {
    fn of(groups: Vec<GroupRow>, part: StatPart) -> Self {
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
            group.counts.into_iter().for_each(|count| all.count(at, count));
            all.outliving.push(group.outliving.filter(|_| part >= StatPart::Groups));
            all.long_lived.push(group.long_lived.map(|of| (of.tasks, of.age_ns)));
            if let Some(waits) = &mut waits {
                waits.push(group.waits, part);
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
    fn count(&mut self, at: usize, count: CountRow) {
        let CountRow { event, value, enabled_ns, running_ns } = count;
        let known = self.counts.iter().position(|of| of.event == event).unwrap_or_else(|| {
            self.counts.push(CountColumns { event, ..CountColumns::default() });
            self.counts.len() - 1
        });
        let of = &mut self.counts[known];
        of.value.resize(at, None);
        of.enabled_ns.resize(at, 0);
        of.running_ns.resize(at, 0);
        of.value.push(Some(value));
        of.enabled_ns.push(enabled_ns);
        of.running_ns.push(running_ns);
    }
}

impl WaitsColumns {
    fn of_part(part: StatPart) -> Self {
        let histogram = || (part >= StatPart::Histograms).then(HistogramColumns::default);
        Self {
            scale: part.scale(),
            unit_ns: UNIT_NS,
            zero_threshold_ns: ZERO_THRESHOLD_NS,
            first_bucket: bucket_index(1) >> (SCALE - part.scale()),
            bodies: Some(HistogramColumns::default()),
            gaps: Some(HistogramColumns::default()),
            polls: histogram(),
            delays: histogram(),
            awaits: histogram(),
            exemplars: (part >= StatPart::Exemplars).then(ExemplarColumns::default),
            ..Self::default()
        }
    }

    fn push(&mut self, row: Option<Box<WaitsRow>>, part: StatPart) {
        let is_there = row.is_some();
        let mut row = row.unwrap_or_default();
        if part < StatPart::Whole {
            row.requests.tasks.clear();
        }
        let queue = |of: QueueRow| (of.requests, of.received, of.unseen_ns, of.behind_ns);
        self.on_cpu_ns.push(row.on_cpu_ns);
        self.poll_ns.push(is_there.then_some(row.poll_ns));
        self.runnable_ns.push(row.runnable_ns);
        self.await_ns.push(row.await_ns);
        self.queue.push(row.queue.map(queue));
        self.unanswered.push(row.unanswered.map(|of| (of.requests, of.age_ns)));
        self.stalls.push(row.stalls);
        self.streams.push(row.streams.map(|of| (of.frames, of.bytes, of.sending)));
        self.carried.push(row.carried.map(|of| (of.read, of.written)));
        self.messages.push(row.messages.map(|of| (of.messages, of.bytes)));
        if let Some(exemplars) = &mut self.exemplars {
            exemplars.push(&row.requests.exemplars);
        }
        let (scale, first) = (self.scale, self.first_bucket);
        self.requests.push(&row.requests.at_scale(scale), first);
        let others = [
            (&mut self.bodies, row.bodies),
            (&mut self.gaps, row.gaps),
            (&mut self.polls, row.polls),
            (&mut self.delays, row.delays),
            (&mut self.awaits, row.awaits),
        ];
        for (columns, row) in others {
            if let Some(columns) = columns {
                columns.push(&row.at_scale(scale), first);
            }
        }
    }

    fn leave_out(&mut self) {
        leave_out(&mut self.on_cpu_ns);
        leave_out(&mut self.queue);
        leave_out(&mut self.unanswered);
        leave_out(&mut self.streams);
        leave_out(&mut self.carried);
        leave_out(&mut self.messages);
        leave_out(&mut self.stalls);
        let others = [&mut self.bodies, &mut self.gaps, &mut self.polls, &mut self.delays, &mut self.awaits];
        for columns in others.into_iter().flatten().chain([&mut self.requests]) {
            leave_out(&mut columns.max_task);
            leave_out(&mut columns.tasks);
        }
        if let Some(exemplars) = &mut self.exemplars {
            leave_out(&mut exemplars.outcome);
            leave_out(&mut exemplars.trace_id);
            leave_out(&mut exemplars.span_id);
        }
    }
}

impl HistogramColumns {
    fn push(&mut self, row: &HistogramRow, first: i32) {
        self.zero_count.push(row.zero_count);
        self.sum_ns.push(row.sum_ns.unwrap_or_default());
        self.max_ns.push(row.max_ns);
        self.max_task.push(row.max_task);
        let (mut next, mut tasks) = (i64::from(first), row.tasks.iter().peekable());
        for &(index, n) in &row.buckets {
            let empty = i64::from(index) - next;
            if empty > 0 {
                self.buckets.push(-empty);
            }
            next = i64::from(index) + 1;
            self.buckets.push(i64::try_from(n).unwrap_or(i64::MAX));
            let task = tasks.next_if(|(at, _)| *at == index);
            self.tasks.push(task.map_or(0, |(_, task)| *task));
        }
        self.buckets.push(0);
    }
}

impl ExemplarColumns {
    fn push(&mut self, exemplars: &[ExemplarRow]) {
        self.of_group.push(exemplars.len() as u32);
        for of in exemplars {
            self.task.push(of.task);
            self.duration_ns.push(of.duration_ns);
            self.unix_ns.push(of.unix_ns);
            let outcome = of.outcome.as_ref().map_or(0, |word| self.place_of(word));
            self.outcome.push(outcome);
            self.trace_id.push(KnownId(of.trace_id));
            self.span_id.push(KnownId(of.span_id));
        }
    }

    /// The place of a word among the outcomes, from 1 on; 0 if there is no room for it, which no
    /// service of ours has.
    fn place_of(&mut self, word: &str) -> u8 {
        let known = self.outcomes.iter().position(|known| known == word);
        let at = known.unwrap_or_else(|| {
            if self.outcomes.len() < usize::from(u8::MAX) {
                self.outcomes.push(word.to_owned().into());
            }
            self.outcomes.len() - 1
        });
        if self.outcomes[at] == *word { at as u8 + 1 } else { 0 }
    }
}

/// Drops a column of which no group has anything.
fn leave_out<T: Default + PartialEq>(column: &mut Vec<T>) {
    if column.iter().all(|value| *value == T::default()) {
        *column = Vec::new();
    }
}
