//! Counts of one event.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::column::Column;
use crate::verbs::stat::CountRow;

/// The counts of one event, by columns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CountColumns {
    /// The event's name.
    pub event: Cow<'static, str>,
    /// The `value` of each group; null for a group without a count of the event.
    pub value: Vec<Option<u64>>,
    /// The `enabled_ns` of each group.
    pub enabled_ns: Vec<u64>,
    /// The `running_ns` of each group.
    pub running_ns: Vec<u64>,
}

impl CountColumns {
    /// The column of an event, without counts yet.
    pub(super) fn of(event: Cow<'static, str>) -> Self {
        Self { event, ..Self::default() }
    }

    /// Adds a count of the group that is number `at`.
    pub(super) fn push(&mut self, at: usize, CountRow { value, enabled_ns, running_ns, .. }: &CountRow) {
        self.value.resize(at, None);
        self.enabled_ns.resize(at, 0);
        self.running_ns.resize(at, 0);
        self.value.push(Some(*value));
        self.enabled_ns.push(*enabled_ns);
        self.running_ns.push(*running_ns);
    }

    /// The counts of the groups, one by one.
    pub(super) fn rows(self) -> impl Iterator<Item = Option<CountRow>> {
        let (mut enabled_ns, mut running_ns) = (Column::of(self.enabled_ns), Column::of(self.running_ns));
        self.value.into_iter().map(move |value| {
            let (enabled_ns, running_ns) = (enabled_ns.next(), running_ns.next());
            Some(CountRow { event: self.event.clone(), value: value?, enabled_ns, running_ns })
        })
    }
}
