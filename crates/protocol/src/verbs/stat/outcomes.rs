//! How requests ended.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::bounded::at_most;

/// The most words of a service's own: a service has six.
pub(super) const MOST_OWN: usize = 16;

/// The outcomes that dormouse finds by itself: `completed`, `client_error`, `error`, `cancelled`,
/// `panicked`.
pub(super) type KnownOutcomes = (u64, u64, u64, u64, u64);

/// The same word, without memory of its own if it is one that dormouse finds by itself.
pub(super) fn known_word(word: Cow<'static, str>) -> Cow<'static, str> {
    const KNOWN: [&str; 5] = ["completed", "client_error", "error", "cancelled", "panicked"];
    KNOWN.into_iter().find(|known| *known == word).map_or(word, Cow::Borrowed)
}

/// The requests of a group, by their outcomes. The sum is the `requests` of the group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OutcomesRow {
    /// Requests that ran to their end and were answered without an error.
    pub completed: u64,
    /// Requests whose answer blames the request: a status 4xx, or such a status of gRPC.
    pub client_error: u64,
    /// Requests that failed: a status 5xx, such a status of gRPC, an error of the service or of the
    /// body.
    pub error: u64,
    /// Requests that were dropped before their end: by a client that was gone, a timeout, an abort.
    pub cancelled: u64,
    /// Requests that a panic unwound, or that answered an error after a panic.
    pub panicked: u64,
    /// Requests with an outcome that the service has named: the word, and how many.
    #[serde(deserialize_with = "at_most::<MOST_OWN, _, _>", skip_serializing_if = "Vec::is_empty")]
    pub own: Vec<(Cow<'static, str>, u64)>,
}

impl OutcomesRow {
    /// Requests that failed, by an error or by a panic.
    pub fn failed(&self) -> u64 {
        self.error.saturating_add(self.panicked)
    }

    /// All outcomes, and how many requests had them; the service's own are the last.
    pub fn all(&self) -> impl Iterator<Item = (&str, u64)> {
        let known = [
            ("completed", self.completed),
            ("client_error", self.client_error),
            ("error", self.error),
            ("cancelled", self.cancelled),
            ("panicked", self.panicked),
        ];
        known.into_iter().chain(self.own.iter().map(|(word, n)| (&**word, *n)))
    }

    /// Those that dormouse finds by itself, in the order of the columns.
    pub(super) fn known(&self) -> KnownOutcomes {
        (self.completed, self.client_error, self.error, self.cancelled, self.panicked)
    }

    /// The requests since `before`, an earlier answer.
    pub(super) fn since(&self, before: &Self) -> Self {
        let own = self.own.iter().map(|(word, n)| {
            let earlier = before.own.iter().find(|(earlier, _)| earlier == word).map_or(0, |(_, n)| *n);
            (word.clone(), n.saturating_sub(earlier))
        });
        Self {
            completed: self.completed.saturating_sub(before.completed),
            client_error: self.client_error.saturating_sub(before.client_error),
            error: self.error.saturating_sub(before.error),
            cancelled: self.cancelled.saturating_sub(before.cancelled),
            panicked: self.panicked.saturating_sub(before.panicked),
            own: own.collect(),
        }
    }
}
