//! What has lain where, and when: the mappings that are gone.
//!
//! Looks at the maps file are moments. A mapping that two looks have shown was there from the one to the other, as far
//! as anybody can tell; between the last look that shows it and the first that does not it went, nobody knows when, and
//! likewise it came. So what was seen has two spans of time, in which it surely was there and in which it may have
//! been. What was registered has one, since both its ends were told.
//!
//! # Invariants
//!
//! `past` is sorted by the time of the end, so that what can have been there at a time is a suffix, as long as what has
//! changed since.

use std::collections::VecDeque;
use std::time::Duration;

use super::region::{Kind, ObjectId, Region};
use crate::Mapping;

/// How much is remembered of what is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Mappings at most.
    pub mappings: usize,
    /// For how long after their end.
    pub age: Duration,
}

impl Default for Keep {
    /// 16,384 mappings, ten minutes.
    fn default() -> Self {
        Self { mappings: 1 << 14, age: Duration::from_secs(600) }
    }
}

/// A mapping and when it was there. The present ones have no end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) mapping: Mapping<Region>,
    /// The last look that has shown it; for what was registered the end.
    pub(super) last_ns: u64,
    /// The first look that has not shown it, or its end.
    pub(super) gone_ns: u64,
}

/// What a time has to do with a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    /// It was registered at that time, or seen before and after it.
    Inside,
    /// It may have been there: it was seen so many nanoseconds away, at that time.
    Near { apart_ns: u64, seen_ns: u64 },
}

impl Span {
    pub(super) fn present(mapping: Mapping<Region>, looked_ns: u64) -> Self {
        let last_ns =
            if mapping.value.kind == Kind::Jit { u64::MAX } else { looked_ns.max(mapping.value.since_ns) };
        Self { mapping, last_ns, gone_ns: u64::MAX }
    }

    /// Whether it may have been at `addr` at `time_ns`, and how surely.
    pub(super) fn fit(&self, addr: u64, time_ns: u64) -> Option<Fit> {
        let Region { kind, since_ns, unseen_ns, .. } = self.mapping.value;
        let came_ns = if kind == Kind::Jit { since_ns } else { unseen_ns };
        if !self.mapping.contains(addr) || time_ns < came_ns || time_ns >= self.gone_ns {
            return None;
        }
        Some(if time_ns < since_ns {
            Fit::Near { apart_ns: since_ns - time_ns, seen_ns: since_ns }
        } else if time_ns <= self.last_ns {
            Fit::Inside
        } else {
            Fit::Near { apart_ns: time_ns - self.last_ns, seen_ns: self.last_ns }
        })
    }
}

/// The mappings that are gone.
#[derive(Debug)]
pub(super) struct History {
    past: VecDeque<Span>,
    keep: Keep,
    /// The latest end of what was dropped.
    forgotten_ns: u64,
}

impl History {
    pub(super) fn new(keep: Keep) -> Self {
        Self { past: VecDeque::new(), keep, forgotten_ns: 0 }
    }

    /// Takes in what is gone, and drops what is too old or too much.
    pub(super) fn push(&mut self, span: Span, now_ns: u64) {
        // Nearly always the end; a time that was told may lie back.
        let at = self.past.partition_point(|before| before.gone_ns <= span.gone_ns);
        self.past.insert(at, span);
        let oldest_ns = now_ns.saturating_sub(u64::try_from(self.keep.age.as_nanos()).unwrap_or(u64::MAX));
        while let Some(first) = self.past.front()
            && (self.past.len() > self.keep.mappings || first.gone_ns < oldest_ns)
        {
            self.forgotten_ns = self.forgotten_ns.max(first.gone_ns);
            self.past.pop_front();
        }
    }

    /// What may have been at `addr` at `time_ns`, beside `present`.
    pub(super) fn find(
        &self,
        addr: u64,
        time_ns: u64,
        present: impl IntoIterator<Item = Span>,
    ) -> Option<(Mapping<Region>, Fit)> {
        let from = self.past.partition_point(|span| span.gone_ns <= time_ns);
        let spans = self.past.range(from..).copied().chain(present);
        spans.filter_map(|span| Some((span.mapping, span.fit(addr, time_ns)?))).min_by_key(
            |&(mapping, fit)| {
                // Registered code lies inside of what was mapped for it.
                (fit, mapping.value.kind != Kind::Jit)
            },
        )
    }

    /// What ended before that may be forgotten.
    pub(super) fn forgotten_ns(&self) -> u64 {
        self.forgotten_ns
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.past.iter().map(|span| span.mapping.value.object)
    }
}

#[cfg(test)]
mod tests {
    use super::super::region::Perms;
    use super::*;

    fn span(kind: Kind, offset: u64, [unseen_ns, since_ns, last_ns, gone_ns]: [u64; 4]) -> Span {
        let value = Region {
            kind,
            perms: Perms::default(),
            offset,
            object: ObjectId::next(),
            since_ns,
            unseen_ns,
            is_loaded: false,
        };
        Span { mapping: Mapping { start: 0x1000, last: 0x1fff, value }, last_ns, gone_ns }
    }

    fn history(keep: usize) -> History {
        History::new(Keep { mappings: keep, age: Duration::from_micros(1) })
    }

    #[test]
    fn what_was_seen_is_sure_between_looks_and_likely_around_them() {
        let mut history = history(10);
        // Seen at 20 and 30, not at 10 and 40; then another, at 50 and 60.
        history.push(span(Kind::File, 1, [10, 20, 30, 40]), 40);
        history.push(span(Kind::File, 2, [40, 50, 60, 70]), 70);
        let found = |time| history.find(0x1800, time, None).map(|(mapping, fit)| (mapping.value.offset, fit));
        for (time, right) in [
            (9, None),
            (12, Some((1, Fit::Near { apart_ns: 8, seen_ns: 20 }))),
            (20, Some((1, Fit::Inside))),
            (30, Some((1, Fit::Inside))),
            (39, Some((1, Fit::Near { apart_ns: 9, seen_ns: 30 }))),
            (41, Some((2, Fit::Near { apart_ns: 9, seen_ns: 50 }))),
            (69, Some((2, Fit::Near { apart_ns: 9, seen_ns: 60 }))),
            (70, None),
        ] {
            assert_eq!(found(time), right, "at {time}");
        }
        assert!(history.find(0x2000, 25, None).is_none());
    }

    #[test]
    fn registered_code_is_sure_from_its_first_to_its_last_moment_and_goes_before_its_memory() {
        let mut history = history(10);
        history.push(span(Kind::Jit, 1, [0, 20, 30, 30]), 30);
        let memory = span(Kind::Anonymous, 2, [0, 5, 50, u64::MAX]);
        let found = |time| history.find(0x1800, time, Some(memory)).map(|(mapping, _)| mapping.value.offset);
        assert_eq!([19, 20, 29, 30].map(found), [Some(2), Some(1), Some(1), Some(2)]);
    }

    #[test]
    fn too_many_and_too_old_ones_are_forgotten_and_that_is_said() {
        let mut history = history(2);
        for n in 0..3 {
            history.push(span(Kind::Jit, n, [0, 10 * n, 10 * n + 5, 10 * n + 5]), 30);
        }
        assert_eq!((history.past.len(), history.forgotten_ns()), (2, 5));
        assert!(history.find(0x1000, 2, None).is_none());
        history.push(span(Kind::Jit, 4, [0, 1_100, 1_200, 1_200]), 1_200);
        assert_eq!((history.past.len(), history.forgotten_ns()), (1, 25));
    }

    #[test]
    fn an_end_that_was_told_late_takes_its_place() {
        let mut history = history(10);
        history.push(span(Kind::Jit, 1, [0, 50, 60, 60]), 60);
        history.push(span(Kind::Jit, 2, [0, 10, 20, 20]), 60);
        assert_eq!(history.find(0x1000, 55, None).unwrap().0.value.offset, 1);
        assert_eq!(history.find(0x1000, 15, None).unwrap().0.value.offset, 2);
    }
}
