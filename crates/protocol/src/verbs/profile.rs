//! `profile` and `profile-report`: the request for a profile, and its report, in parts.
//!
//! A client requests a profile, and then its report as often as it likes. The profile belongs to
//! the connection and ends with it, as a watch does. Addresses are the service's own; the client,
//! which has the files, resolves their names.
//!
//! A report may be longer than an answer should be, so it comes in parts. `from` 0 has the service
//! take a snapshot of the profile, and the answer has everything but some of the rows; the next
//! parts continue the same snapshot, until one has no `next`.

use serde::{Deserialize, Serialize};

use crate::profile::{Profile, ProfileKind};
use crate::verb::{Each, Memory, Verb};

/// Takes a profile as long as the connection lasts. The answer is [`ProfileBegun`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProfileRequest {
    /// The kind of samples.
    #[serde(default)]
    pub kind: ProfileKind,
    /// Samples per second of CPU time of each thread; absent for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hz: Option<u32>,
    /// Average number of bytes between two samples of allocations; absent for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Whether allocations that are still live are reported separately.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub live: bool,
    /// Whether to find callers in code without frame pointers, too; later services always do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unwind: bool,
    /// Whether to report when each sample was taken.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timeline: bool,
    /// A glob list of groups; if absent, all groups, and work in no group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// For a new profile, or a snapshot of one: a table of stacks, twice. For a profile of wall time
/// also the times of each group.
const MEMORY: Memory = Memory { bytes: 16 * 1024 * 1024, each: &[Each::GroupWithTimes] };

impl Verb for ProfileRequest {
    const NAME: &'static str = "profile";
    const LACKS: &'static str = "knows no profiles";
    const MEMORY: Memory = MEMORY;
    type Answer = ProfileBegun;
}

/// Answer to `profile`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProfileBegun {
    /// The number of the profile, for later requests of this connection.
    pub number: u32,
}

/// Requests what a profile of this connection has recorded so far; the answer is [`ProfilePart`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProfileReportRequest {
    /// The number of the profile.
    pub number: u32,
    /// The first row of the answer: 0 for a new snapshot, `next` of a part for the next part of the
    /// same snapshot.
    #[serde(default)]
    pub from: u64,
}

impl Verb for ProfileReportRequest {
    const NAME: &'static str = "profile-report";
    const ANNOUNCED_AS: &'static str = ProfileRequest::NAME;
    const LACKS: &'static str = "knows no profiles";
    const MEMORY: Memory = MEMORY;
    type Answer = ProfilePart;
}

/// Answer to `profile-report`: a part of what a profile has recorded so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProfilePart {
    /// In the first part everything but rows; in each part some of the rows, which are
    /// [`Profile::stacks`], [`Profile::samples`] and [`Profile::timeline`].
    pub part: Profile,
    /// The `from` of the next part; absent in the last part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl ProfilePart {
    /// Makes a part of at most `most` rows of `whole`, from row `from` on. The first part, from row
    /// 0, also has all that is no row, and `whole` keeps only its rows.
    pub fn of(whole: &mut Profile, from: u64, most: usize) -> Self {
        fn rows<T: Copy>(of: &[T], skip: &mut usize, left: &mut usize) -> Vec<T> {
            let begin = of.len().min(*skip);
            let end = of.len().min(begin + *left);
            *skip -= begin;
            *left -= end - begin;
            of[begin..end].to_vec()
        }
        let all = whole.stacks.len() + whole.samples.len() + whole.timeline.len();
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(all);
        let (mut skip, mut left) = (from, most);
        let mut part = Profile::default();
        if from == 0 {
            let rows = (
                std::mem::take(&mut whole.stacks),
                std::mem::take(&mut whole.samples),
                std::mem::take(&mut whole.timeline),
            );
            part = std::mem::take(whole);
            (whole.stacks, whole.samples, whole.timeline) = rows;
        }
        part.stacks = rows(&whole.stacks, &mut skip, &mut left);
        part.samples = rows(&whole.samples, &mut skip, &mut left);
        part.timeline = rows(&whole.timeline, &mut skip, &mut left);
        let end = from + most - left;
        Self { part, next: (end < all).then_some(end as u64) }
    }

    /// Appends the rows of this part to those of the parts before it.
    pub fn join(self, whole: &mut Profile) {
        whole.stacks.extend(self.part.stacks);
        whole.samples.extend(self.part.samples);
        whole.timeline.extend(self.part.timeline);
    }
}

#[cfg(test)]
mod tests {
    use crate::profile::{Moment, Node, Sample, Thread};

    use super::*;

    fn whole() -> Profile {
        Profile {
            pid: 7,
            live: true,
            threads: vec![Thread { tid: 8, name: "eight".into() }],
            stacks: (0..5).map(|n| Node { parent: n, address: 100 + u64::from(n) }).collect(),
            samples: (0..3).map(|n| Sample { stack: n, ..Sample::default() }).collect(),
            timeline: (0..4).map(|n| Moment { at_ns: n, ..Moment::default() }).collect(),
            ..Profile::default()
        }
    }

    #[test]
    fn parts_of_any_length_make_the_whole() {
        for most in 1..=13 {
            let (mut left, mut from, mut parts) = (whole(), 0, 0);
            let mut joined = Profile::default();
            loop {
                let part = ProfilePart::of(&mut left, from, most);
                let next = part.next;
                if from == 0 {
                    joined = part.part;
                } else {
                    part.join(&mut joined);
                }
                parts += 1;
                let Some(next) = next else { break };
                from = next;
            }
            assert_eq!((joined, parts), (whole(), 12_usize.div_ceil(most)), "{most} rows a part");
        }
    }

    #[test]
    fn beyond_the_end_there_is_nothing() {
        let part = ProfilePart::of(&mut whole(), u64::MAX, 4);
        assert_eq!(part, ProfilePart { part: Profile::default(), next: None });
    }

    #[test]
    fn a_request_may_be_empty() {
        let request: ProfileRequest = serde_json::from_str("{}").unwrap();
        assert_eq!(request, ProfileRequest::default());
        assert_eq!(serde_json::to_string(&request).unwrap(), r#"{"kind":"cpu"}"#);
    }
}
