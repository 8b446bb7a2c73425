//! `profile` and `profile-report`: what to sample, and what came of it, in parts.
//!
//! A client asks for a profile, and then for its report as often as it likes. The profile is the
//! connection's and ends with it, as a watch does. Addresses are the service's own; their names are
//! the client's business, which has the files.
//!
//! A report may be larger than an answer should be, so it comes in parts. `from` 0 has the service
//! look at what there is so far, and answers with everything but some of the rows; the next parts
//! continue the same look, until one has no `next`.

use serde::{Deserialize, Serialize};

use crate::profile::{Profile, ProfileKind};
use crate::verb::{Each, Memory, Verb};

/// Takes a profile as long as the connection lasts: what to sample, and how often. [`ProfileBegun`]
/// answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProfileRequest {
    /// The kind of samples.
    #[serde(default)]
    pub kind: ProfileKind,
    /// Samples a second of CPU time of each thread; absent: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hz: Option<u32>,
    /// Bytes between two samples of allocations, on average; absent: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Whether allocations that are still there are told apart.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub live: bool,
    /// Whether callers are found in code without frame pointers, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unwind: bool,
    /// Whether the profile says when each sample was taken.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timeline: bool,
    /// A glob list of groups; absent: all, and work in no group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// Of a profile that begins, or of a look at one: a table of stacks, twice; and for a profile of
/// wall time the times of each group.
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
    /// The number of the profile, by which this connection asks for it.
    pub number: u32,
}

/// Asks for what a profile of this connection has seen so far; [`ProfilePart`] answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProfileReportRequest {
    /// Its number.
    pub number: u32,
    /// The first row of the answer: 0 for a new look at the profile, `next` of a part for the next
    /// part of the same look.
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

/// Answer to `profile-report`: a part of what a profile has seen so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProfilePart {
    /// Everything but rows in the first part; a part of the rows, which are [`Profile::stacks`],
    /// [`Profile::samples`] and [`Profile::timeline`], in each.
    pub part: Profile,
    /// The `from` of the next part; absent: this is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl ProfilePart {
    /// The rows of `whole` from this one on, at most `most` of them. The first part takes all else
    /// from it.
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

    /// Puts the rows of the next part behind those of the parts before it.
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
