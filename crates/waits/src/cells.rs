//! Tables without locks: an entry is in one of some cells behind its hash. And sums in such cells.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::counts::add;

/// How far from its hash an entry may lie.
const REACH: usize = 32;

/// [`REACH`] in a table of one thread, which has few entries.
const OWN_REACH: usize = 8;

/// The cells in which what has this hash may be.
#[inline]
pub(crate) fn cells<T>(of: &[T], hash: u64) -> impl Iterator<Item = (usize, &T)> {
    let first = hash as usize % of.len();
    (first..first + REACH).map(move |at| (at % of.len(), &of[at % of.len()]))
}

/// Whether the cell is the one of `key` now, and whether it was free.
#[inline]
pub(crate) fn claim_cell(cell: &AtomicU64, key: u64) -> Option<bool> {
    let found = match cell.load(Ordering::Relaxed) {
        // Acquire: pairs with the store by which a row that was cleared became free.
        0 => cell.compare_exchange(0, key, Ordering::Acquire, Ordering::Relaxed).err(),
        other => Some(other),
    };
    match found {
        None => Some(true),
        Some(found) => (found == key).then_some(false),
    }
}

#[inline]
pub(crate) fn mixed(word: u64) -> u64 {
    word.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

/// The waits with one key.
#[derive(Debug)]
struct KeyedSum {
    /// 0: free.
    key: AtomicU64,
    ns: AtomicU64,
    waits: AtomicU64,
}

/// Times of waits by key. Zeros are none.
#[derive(Debug)]
pub(crate) struct KeyedSums<const CELLS: usize>([KeyedSum; CELLS]);

impl<const CELLS: usize> KeyedSums<CELLS> {
    /// Adds a wait, for any thread. False: there is no cell for its key.
    pub(crate) fn add(&self, key: u64, ns: u64) -> bool {
        let found = cells(&self.0, mixed(key) >> 32).find(|(_, sum)| claim_cell(&sum.key, key).is_some());
        if let Some((_, sum)) = found {
            // Release: both pair with the loads in `read`.
            sum.waits.fetch_add(1, Ordering::Release);
            sum.ns.fetch_add(ns, Ordering::Release);
        }
        found.is_some()
    }

    /// Does what [`KeyedSums::add`] does, for the only thread that writes here.
    #[inline]
    pub(crate) fn add_own(&self, key: u64, ns: u64) -> bool {
        let is_its = |sum: &&KeyedSum| [0, key].contains(&sum.key.load(Ordering::Relaxed));
        let found = cells(&self.0, mixed(key) >> 32).map(|(_, sum)| sum).take(OWN_REACH).find(is_its);
        if let Some(sum) = found {
            sum.key.store(key, Ordering::Relaxed);
            add(&sum.waits, 1);
            add(&sum.ns, ns);
        }
        found.is_some()
    }

    /// The sums so far: key, nanoseconds, and the number of waits. A reader that finds a wait also
    /// finds all that its thread wrote before it added the wait.
    pub(crate) fn read(&self) -> impl Iterator<Item = (u64, [u64; 2])> {
        let used = self.0.iter().filter(|sum| sum.key.load(Ordering::Relaxed) != 0);
        used.map(|sum| {
            // Acquire: pairs with the additions.
            let ns = sum.ns.load(Ordering::Acquire);
            (sum.key.load(Ordering::Relaxed), [ns, sum.waits.load(Ordering::Acquire)])
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn empty<const CELLS: usize>() -> KeyedSums<CELLS> {
        let zero = || AtomicU64::new(0);
        KeyedSums(std::array::from_fn(|_| KeyedSum { key: zero(), ns: zero(), waits: zero() }))
    }

    #[test]
    fn each_wait_is_in_one_table() {
        let (own, shared) = (empty::<16>(), empty::<64>());
        for wait in 0..200 {
            let key = 1 + wait % 40;
            assert!(own.add_own(key, wait) || shared.add(key, wait));
        }
        let mut sums = BTreeMap::<u64, [u64; 2]>::new();
        for (key, [ns, waits]) in own.read().chain(shared.read()) {
            let sum = sums.entry(key).or_default();
            *sum = [sum[0] + ns, sum[1] + waits];
        }
        assert!(sums.iter().all(|(key, &[ns, waits])| (ns, waits) == (5 * (key - 1) + 400, 5)), "{sums:?}");
        assert_eq!((sums.len(), own.read().count()), (40, 16));
    }
}
