//! Pairs of turns, and the differences in them that a test can use.
//!
//! A pair is one turn with the keys on and one with the keys off, in random order. If the keys cost
//! nothing, either order would have given the same two turns. So each difference is as likely as
//! its opposite, whatever the service did meanwhile, and a test that needs no more than that is
//! exact.
//!
//! # Invariants
//!
//! Only the sign of a block's difference depends on the states of its turns: with all states
//! exchanged, the same pairs make the same blocks, and the same groups have enough requests.

use std::collections::{BTreeSet, HashMap};

use super::metric::{Turn, Use};

/// Requests that one part of a block has at least: fewer are more of a lottery than of a mean.
const LEAST: u64 = 8;
/// The fewest requests for a 99th percentile: two are beyond it.
const LEAST_P99: u64 = 200;
/// Blocks that a group must have to be judged: fewer cannot show anything at the level of an
/// experiment.
const FEWEST_BLOCKS: usize = 16;

/// One turn of each state.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Pair {
    pub(super) off: Turn,
    pub(super) on: Turn,
}

/// The figure of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Statistic {
    /// The amount per request.
    Mean,
    /// The amount that 99 % of the requests do not exceed.
    P99,
}

/// The requests that a row is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Whose {
    /// All groups of the process together.
    All,
    /// The average of the changes of all groups, each weighted by how steady it is.
    Average,
    Group(u32),
}

/// A row: its differences between on and off, one for each block, each as a part of the mean of
/// both.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Contrast {
    pub(super) whose: Whose,
    pub(super) statistic: Statistic,
    /// Requests with the keys off, and on.
    pub(super) requests: [u64; 2],
    /// The figure with the keys off, and on, over all turns; the average of groups has none.
    pub(super) values: Option<[f64; 2]>,
    pub(super) differences: Vec<f64>,
    /// By this factor a value may be off: the width of the widest bucket of latencies.
    pub(super) blur: f64,
    /// Whether requests last longer than turns, so that both states are mixed in them.
    pub(super) is_mixed: bool,
}

impl Contrast {
    /// Whether there is enough of it to show anything.
    pub(super) fn is_enough(&self) -> bool {
        self.differences.len() >= FEWEST_BLOCKS
    }

    /// From all pairs so far: one for each group with requests, one for the whole, and if there are
    /// several groups, one for their average.
    pub(super) fn of(pairs: &[Pair], has_p99: bool) -> Vec<Contrast> {
        let turns = || pairs.iter().flat_map(|pair| [&pair.off, &pair.on]);
        let groups: BTreeSet<u32> = turns().flat_map(|turn| turn.groups.keys()).copied().collect();
        let mut contrasts = Vec::new();
        // The amount that a request of each group uses, whatever the state.
        let mut usual = HashMap::new();
        for id in groups {
            let part = |turn: &Turn| {
                let used = turn.groups.get(&id).cloned().unwrap_or_default();
                Part { usual: used.requests as f64, used }
            };
            let mean = Blocks::of(pairs, LEAST, part);
            let [off, on] = &mean.whole;
            if off.used.requests + on.used.requests == 0 {
                continue;
            }
            let contrast = mean.contrast(Whose::Group(id), Statistic::Mean);
            if contrast.is_enough() {
                let each = (off.used.amount + on.used.amount) / (off.usual + on.usual);
                // Of a group whose requests mix both states, the size of a change is no good.
                let weight = if contrast.is_mixed { 0.0 } else { weight(id, each, pairs) };
                usual.insert(id, Usual { each, weight });
            }
            contrasts.push(contrast);
            if has_p99 {
                let p99 = Blocks::of(pairs, LEAST_P99, part).contrast(Whose::Group(id), Statistic::P99);
                contrasts.extend(Some(p99).filter(Contrast::is_enough));
            }
        }
        let all = Blocks::of(pairs, LEAST, |turn| {
            let (mut part, mut used) = (Part::default(), Use::default());
            for (of, Usual { each, .. }) in known(turn, &usual) {
                used.requests += of.requests;
                used.alive += of.alive;
                used.amount += of.amount;
                // An expensive request more is no change of the code: requests are weighed.
                part.usual += of.requests as f64 * each;
            }
            used.amount = turn.whole.unwrap_or(used.amount);
            part.used = used;
            part
        });
        if !usual.is_empty() {
            contrasts.push(all.contrast(Whose::All, Statistic::Mean));
        }
        if usual.values().filter(|usual| usual.weight > 0.0).count() > 1 {
            let average = Blocks::of(pairs, LEAST, |turn| {
                let mut part = Part::default();
                for (of, Usual { each, weight }) in known(turn, &usual).filter(|(_, it)| it.weight > 0.0) {
                    part.used.requests += of.requests;
                    part.used.alive += of.alive;
                    part.used.amount += weight * of.amount / each;
                    part.usual += weight * of.requests as f64;
                }
                part
            });
            let contrast = average.contrast(Whose::Average, Statistic::Mean);
            contrasts.push(Contrast { values: None, ..contrast });
        }
        contrasts.sort_by_key(|contrast| (contrast.whose, contrast.statistic));
        contrasts
    }
}

/// A request of a group, whatever the state.
#[derive(Debug, Clone, Copy)]
struct Usual {
    /// The amount that it uses.
    each: f64,
    weight: f64,
}

/// The groups of a turn whose requests are known.
fn known<'a>(turn: &'a Turn, usual: &'a HashMap<u32, Usual>) -> impl Iterator<Item = (&'a Use, Usual)> {
    turn.groups.iter().filter_map(|(id, used)| Some((used, *usual.get(id)?)))
}

/// The weight of a group's requests where groups are put together: one by the variance of a
/// request's amount, as a part of the mean. It is that of the changes from one pair to the next, in
/// which both states are added up: so it does not depend on the states, and neither an effect nor a
/// slow change of the machine is in it. The median, since a turn may be anything.
fn weight(id: u32, each: f64, pairs: &[Pair]) -> f64 {
    let of = |pair: &Pair| {
        let both = [&pair.off, &pair.on].map(|turn| turn.groups.get(&id));
        let both = both.into_iter().flatten();
        both.fold((0.0, 0.0), |(n, amount), used| (n + used.requests as f64, amount + used.amount))
    };
    let all: Vec<(f64, f64)> = pairs.iter().map(of).filter(|(n, _)| *n > 0.0).collect();
    let square = |[(n, before), (m, after)]: [(f64, f64); 2]| {
        ((after / m - before / n) / each).powi(2) / (1.0 / n + 1.0 / m)
    };
    let mut squares: Vec<f64> = all.windows(2).map(|two| square([two[0], two[1]])).collect();
    let middle = squares.len() / 2;
    if squares.is_empty() {
        return 0.0;
    }
    let variance = *squares.select_nth_unstable_by(middle, f64::total_cmp).1;
    // Without any variance, or any amount, it gets no weight beside other groups.
    if variance > 0.0 && variance.is_finite() { 1.0 / variance } else { 0.0 }
}

/// A part of a block: the use of its turns of one state, and the amount that its requests use
/// usually, in any unit.
#[derive(Debug, Clone, Default)]
struct Part {
    used: Use,
    usual: f64,
}

impl Part {
    fn add(&mut self, other: &Part) {
        self.used.add(&other.used);
        self.usual += other.usual;
    }

    fn value(&self, statistic: Statistic) -> f64 {
        match statistic {
            Statistic::Mean if self.usual > 0.0 => self.used.amount / self.usual,
            Statistic::Mean => 0.0,
            Statistic::P99 => self.used.p99_ns(),
        }
    }
}

/// Blocks of one pair or more, and all pairs together. The last pairs may be no whole block.
struct Blocks {
    blocks: Vec<[Part; 2]>,
    whole: [Part; 2],
}

impl Blocks {
    /// Each part has `least` requests or more.
    fn of(pairs: &[Pair], least: u64, part: impl Fn(&Turn) -> Part) -> Blocks {
        let mut all = Blocks { blocks: Vec::new(), whole: Default::default() };
        let mut block: [Part; 2] = Default::default();
        for pair in pairs {
            let parts = [part(&pair.off), part(&pair.on)];
            for (at, part) in parts.iter().enumerate() {
                block[at].add(part);
                all.whole[at].add(part);
            }
            if block.iter().all(|part| part.used.requests >= least) {
                all.blocks.push(std::mem::take(&mut block));
            }
        }
        all
    }

    fn contrast(&self, whose: Whose, statistic: Statistic) -> Contrast {
        let by_request = |used: &Use| match statistic {
            Statistic::Mean => used.amount / used.requests.max(1) as f64,
            Statistic::P99 => used.p99_ns(),
        };
        let values = |block: &[Part; 2]| block.each_ref().map(|part| part.value(statistic));
        let blur = match statistic {
            Statistic::Mean => 1.0,
            Statistic::P99 => self.whole.iter().map(|part| part.used.bucket_factor()).fold(1.0, f64::max),
        };
        Contrast {
            whose,
            statistic,
            requests: self.whole.each_ref().map(|part| part.used.requests),
            values: Some(self.whole.each_ref().map(|part| by_request(&part.used))),
            differences: self.blocks.iter().map(|block| difference(values(block))).collect(),
            blur,
            // Little's law: requests last for as many turns as are there at any time for each that
            // ends in a turn.
            is_mixed: self.whole.iter().map(|part| part.used.alive).sum::<u64>()
                > self.whole.iter().map(|part| part.used.requests).sum(),
        }
    }
}

/// By how much the value with the keys on is larger, as a part of the mean of both.
fn difference([off, on]: [f64; 2]) -> f64 {
    let mean = f64::midpoint(off, on);
    // Nothing happened in either.
    if mean > 0.0 { (on - off) / mean } else { 0.0 }
}
