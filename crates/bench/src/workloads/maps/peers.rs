//! What else there is to look an address up in, and the addresses.
//!
//! Maps of a size are the same for all peers: mappings of 1 to 64 pages with gaps of up to 16. So are the addresses; each
//! lies in a mapping.

use std::ops::Range;

use super::replay::{Fault, each};
use crate::runner::SplitMix64;

/// How look-ups go about a map.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pattern {
    /// They stay in a mapping for 33 look-ups on average, as a program counter does.
    Run,
    /// Nine of ten go to four mappings, in no order.
    Hot90,
    /// All go anywhere.
    Uniform,
}

impl Pattern {
    pub(super) const ALL: [Self; 3] = [Self::Run, Self::Hot90, Self::Uniform];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Hot90 => "hot90",
            Self::Uniform => "uniform",
        }
    }
}

/// Addresses asked for before they come again: more than a branch predictor learns.
const ADDRESSES: usize = 1 << 15;
const PAGE: u64 = 4096;

/// A range of addresses and its value.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) range: Range<u64>,
    pub(super) value: u64,
}

impl Place {
    pub(super) fn last(&self) -> u64 {
        self.range.end - 1
    }
}

/// So many, by address.
pub(super) fn places(count: usize) -> Vec<Place> {
    let mut random = SplitMix64(1);
    let mut end = 0x7f00_0000_0000;
    (0..count as u64)
        .map(|value| {
            let start = end + random.next() % 17 * PAGE;
            end = start + (1 + random.next() % 64) * PAGE;
            Place { range: start..end, value }
        })
        .collect()
}

/// What is looked up, one after the other, by one thread.
pub(super) fn faults(pattern: Pattern, places: &[Place]) -> Vec<Fault> {
    let mut random = SplitMix64(2);
    let mut below = |bound: u64| random.next() % bound;
    let hot: Vec<usize> = (0..4).map(|_| below(places.len() as u64) as usize).collect();
    let mut at = 0;
    (0..ADDRESSES)
        .map(|_| {
            let anywhere = below(places.len() as u64) as usize;
            at = match pattern {
                Pattern::Run if below(33) > 0 => at,
                Pattern::Hot90 if below(10) > 0 => hot[below(4) as usize],
                Pattern::Run | Pattern::Hot90 | Pattern::Uniform => anywhere,
            };
            let Range { start, end } = places[at].range;
            (0, start + below(end - start))
        })
        .collect()
}

/// A sorted array that is searched by halves: first addresses apart, so that a search touches few lines.
#[derive(Debug, Clone)]
pub(super) struct Sorted {
    starts: Vec<u64>,
    rest: Vec<(u64, u64)>,
}

impl Sorted {
    pub(super) fn of(places: &[Place]) -> Self {
        Self {
            starts: places.iter().map(|place| place.range.start).collect(),
            rest: places.iter().map(|place| (place.last(), place.value)).collect(),
        }
    }

    #[inline]
    pub(super) fn find(&self, addr: u64) -> Option<u64> {
        let (last, value) = *self.rest.get(self.at(addr)?)?;
        (addr <= last).then_some(value)
    }

    /// All of them.
    #[inline]
    pub(super) fn look_up(&self, faults: &[Fault], answers: u64) -> u64 {
        each(faults, answers, |_| (), |(), addr| self.find(addr))
    }

    /// Gives the mapping of `addr` another value.
    pub(super) fn set(&mut self, addr: u64, value: u64) {
        if let Some(place) = self.at(addr).and_then(|at| self.rest.get_mut(at)) {
            place.1 = value;
        }
    }

    #[inline]
    fn at(&self, addr: u64) -> Option<usize> {
        self.starts.partition_point(|&start| start <= addr).checked_sub(1)
    }
}
