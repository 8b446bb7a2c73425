//! The cost of dormouse itself in a process.

use serde::{Deserialize, Serialize};

/// The cost of dormouse itself in the process since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OwnCost {
    /// CPU time of dormouse's own threads, in nanoseconds: exact.
    pub threads_ns: u64,
    /// CPU time that tasks of groups, calls and notes of locks took because of dormouse, on the
    /// service's threads, in nanoseconds: an estimate, by calls of dormouse's that were timed
    /// there, and by the number of locks that were noted. Absent, as each part, if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polls_ns: Option<u64>,
    /// CPU time that records of probes took, estimated in the same way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records_ns: Option<u64>,
    /// CPU time that threads of the service spent in the handler that samples their CPU time, as
    /// measured there in one sample of eight. The kernel's part of such a signal is not in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_ns: Option<u64>,
    /// Time that threads of the service spent in the handler of hits of watches, as measured there.
    /// The kernel's part of a hit is not in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hits_ns: Option<u64>,
    /// Resident memory, in bytes: pages of tables, queues, rings and stacks of dormouse's threads
    /// that were written to, groups, the recorder's records and unwind tables. Its code, tables of
    /// profiles that run, and memory for answers are not in it.
    pub memory_bytes: u64,
    /// Whether it is address space instead, because the kernel does not show which pages are
    /// resident: an upper bound.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory_is_most: bool,
}

impl OwnCost {
    /// The use since `before`, an earlier one of the same process; memory is that of now. A part
    /// that was not known before has no difference.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let part = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Self {
            threads_ns: self.threads_ns.saturating_sub(before.threads_ns),
            polls_ns: part(self.polls_ns, before.polls_ns),
            records_ns: part(self.records_ns, before.records_ns),
            samples_ns: part(self.samples_ns, before.samples_ns),
            hits_ns: part(self.hits_ns, before.hits_ns),
            memory_bytes: self.memory_bytes,
            memory_is_most: self.memory_is_most,
        }
    }

    /// The estimated part, on the service's threads; `None` if neither that of tasks nor that of
    /// records is known, and no handler has run.
    pub fn estimated_ns(self) -> Option<u64> {
        let calls = [self.polls_ns, self.records_ns];
        let handlers = [self.samples_ns, self.hits_ns];
        let known = calls.into_iter().chain(handlers.map(|part| part.filter(|ns| *ns > 0))).flatten();
        known.reduce(u64::saturating_add)
    }

    /// Whether all parts are known. Otherwise [`OwnCost::cpu_ns`] is less than was used.
    pub fn is_whole(self) -> bool {
        [self.polls_ns, self.records_ns, self.samples_ns, self.hits_ns].iter().all(Option::is_some)
    }

    /// CPU time of all parts that are known, in nanoseconds.
    pub fn cpu_ns(self) -> u64 {
        self.threads_ns.saturating_add(self.estimated_ns().unwrap_or(0))
    }

    /// For people: the parts, with the share of what the process has used, in nanoseconds.
    pub fn sentence(self, process_cpu_ns: u64) -> String {
        let ms = |ns: u64| ns as f64 / 1e6;
        let [at_least, about] = if self.is_whole() { ["", "about"] } else { ["at least ", "at least"] };
        let estimated = self.estimated_ns().map_or_else(
            || "what it takes on the service's threads was not measured".to_owned(),
            |ns| format!("{about} {:.0} ms on the service's threads", ms(ns)),
        );
        let percent = self.cpu_ns() as f64 / process_cpu_ns.max(1) as f64 * 100.0;
        format!(
            "dormouse has used {at_least}{percent:.2} % of the process's CPU time: {:.0} ms on its own threads, {estimated}; \
             {}{:.1} MiB of memory, without its code",
            ms(self.threads_ns),
            if self.memory_is_most { "at most " } else { "" },
            self.memory_bytes as f64 / f64::from(1 << 20),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_part_is_not_zero() {
        let known = OwnCost {
            threads_ns: 3_000_000,
            polls_ns: Some(7_000_000),
            records_ns: Some(0),
            samples_ns: Some(0),
            hits_ns: Some(0),
            memory_bytes: 1 << 20,
            memory_is_most: false,
        };
        assert_eq!((known.estimated_ns(), known.cpu_ns()), (Some(7_000_000), 10_000_000));
        assert_eq!(
            known.sentence(1_000_000_000),
            "dormouse has used 1.00 % of the process's CPU time: 3 ms on its own threads, about 7 ms on the \
             service's threads; 1.0 MiB of memory, without its code"
        );
        let part = OwnCost { records_ns: None, ..known };
        assert!(known.is_whole() && !part.is_whole() && !known.since(part).is_whole());
        let sentence = part.sentence(1_000_000_000);
        assert!(sentence.starts_with("dormouse has used at least 1.00 %"), "{sentence}");
        assert!(sentence.contains(" threads, at least 7 ms on"), "{sentence}");
        let unknown = OwnCost { polls_ns: None, records_ns: None, ..known };
        let since = unknown.since(known).polls_ns;
        assert_eq!((unknown.estimated_ns(), since), (None, None), "no handler has run");
        assert_eq!(known.since(unknown).polls_ns, None, "a total is no difference");
        assert!(unknown.sentence(1).contains("was not measured"));
        assert_eq!(known.since(OwnCost { polls_ns: Some(9_000_000), ..known }).cpu_ns(), 0);
        let hit = OwnCost { samples_ns: Some(2_000_000), hits_ns: Some(4_000_000), ..known };
        assert_eq!((hit.estimated_ns(), hit.since(known).hits_ns), (Some(13_000_000), Some(4_000_000)));
    }
}
