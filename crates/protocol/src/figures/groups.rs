//! The figures of a group: one table, whose sections are files by subject.

mod blocking;
mod cpu;
mod entry;
mod latencies;
mod requests;
mod stalls;
mod states;
mod streams;
mod tasks;
mod values;

use super::Figure;

pub use streams::{BODY_DURATION, RECEIVED_GAP, STREAM_GAP};
pub use tasks::GROUP_POLLS;
pub use values::{GroupFigure, GroupSpan, OBJECTIVE_REQUESTS, OBJECTIVE_TARGET, REQUESTS};

/// In texts, buckets of requests end at 2 to the power of these, in seconds: from 244 µs to 16 s,
/// each four times as long as the one before.
pub(super) const REQUEST_BUCKETS: &[i32] = &[-12, -10, -8, -6, -4, -2, 0, 2, 4];

const SECTIONS: &[&[Figure<GroupFigure>]] = &[
    cpu::FIGURES,
    requests::FIGURES,
    tasks::FIGURES,
    blocking::FIGURES,
    states::FIGURES,
    stalls::FIGURES,
    latencies::FIGURES,
    streams::FIGURES,
];

/// The figures of a group. Metrics are exported in this order.
pub static GROUP_FIGURES: &[Figure<GroupFigure>] = &joined::<{ count(SECTIONS) }>(SECTIONS);

const fn count(mut sections: &[&[Figure<GroupFigure>]]) -> usize {
    let mut count = 0;
    while let [section, rest @ ..] = sections {
        count += section.len();
        sections = rest;
    }
    count
}

const fn joined<const COUNT: usize>(mut sections: &[&[Figure<GroupFigure>]]) -> [Figure<GroupFigure>; COUNT] {
    let mut all = [sections[0][0]; COUNT];
    let mut at = 0;
    while let [section, rest @ ..] = sections {
        let mut from = 0;
        while from < section.len() {
            all[at] = section[from];
            (at, from) = (at + 1, from + 1);
        }
        sections = rest;
    }
    all
}

#[cfg(test)]
mod tests;
