//! Exemplars of requests.

use std::borrow::Cow;

use dormouse_statistics::buckets::{SCALE, place};
use serde::{Deserialize, Deserializer, Serialize};

use super::column::{Column, leave_out};
use crate::id::{WireId, known};
use crate::verbs::stat::outcomes::known_word;
use crate::verbs::waits::{ExemplarRow, bucket_index};

/// The most words for outcomes of exemplars, and the bytes of each, because every exemplar gets a
/// copy: a service has eleven words, the longest of 64 bytes.
pub(super) const MOST_OUTCOMES: usize = 16;
pub(super) const LONGEST_OUTCOME: usize = 64;

/// The most exemplars of a group: a service has one for each power of two.
const MOST_EXEMPLARS: usize = 64;

/// Exemplars of requests, by columns, group by group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ExemplarColumns {
    /// How many exemplars each group has.
    pub of_group: Vec<u32>,
    /// The `task` of each exemplar.
    pub task: Vec<u64>,
    /// The `duration_ns` of each exemplar, which determines its bucket.
    pub duration_ns: Vec<u64>,
    /// The `unix_ns` of each exemplar.
    pub unix_ns: Vec<u64>,
    /// The words for outcomes that follow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<Cow<'static, str>>,
    /// The `outcome` of each exemplar: its place in `outcomes`, from 1 on; 0 if it is absent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outcome: Vec<u8>,
    /// The `trace_id` of each exemplar.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trace_id: Vec<KnownId<16>>,
    /// The `span_id` of each exemplar.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub span_id: Vec<KnownId<8>>,
}

/// An id, or null.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct KnownId<const N: usize>(Option<WireId<N>>);

impl<'de, const N: usize> Deserialize<'de> for KnownId<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        known(from).map(Self)
    }
}

impl ExemplarColumns {
    pub(super) fn push(&mut self, exemplars: &[ExemplarRow]) {
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

    /// The columns that hold nothing are empty from here on.
    pub(super) fn leave_out(&mut self) {
        leave_out(&mut self.outcome);
        leave_out(&mut self.trace_id);
        leave_out(&mut self.span_id);
    }

    pub(super) fn lists(self, scale: i32) -> ExemplarLists {
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
pub(super) struct ExemplarLists {
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
    pub(super) fn next(&mut self) -> Vec<ExemplarRow> {
        let count = self.of_group.next() as usize;
        // There are no more than these, whatever the peer says.
        let mut exemplars = Vec::with_capacity(count.min(self.task.len()).min(MOST_EXEMPLARS));
        for task in self.task.by_ref().take(count) {
            let duration_ns = self.duration_ns.next();
            let exemplar = ExemplarRow {
                index: bucket_index(place(duration_ns)) >> self.wider,
                task,
                duration_ns,
                unix_ns: self.unix_ns.next(),
                outcome: usize::from(self.outcome.next())
                    .checked_sub(1)
                    .and_then(|at| self.outcomes.get(at)?.clone()),
                trace_id: self.trace_id.next().0,
                span_id: self.span_id.next().0,
            };
            if exemplars.len() < MOST_EXEMPLARS {
                exemplars.push(exemplar);
            }
        }
        exemplars
    }
}
