//! The order of a batch's keys, by address.
//!
//! A large batch whose keys come in no order would spend most of its time on comparisons. So they
//! are sorted by the digits of their addresses, from the last digit to the first: a hundred
//! thousand keys side by side take two passes.

use std::collections::TryReserveError;

use crate::key::Key;
use crate::room::collect;

/// A key, with the number of its change.
pub(super) type Named = (&'static Key, u32);

/// The most bits of a digit: each of its values has a place to write to, and all of these should
/// stay in the first-level cache.
const WIDEST: u32 = 10;

/// So few are compared.
const FEW: usize = 256;

/// Sorts by address, then by change. The changes of one key must be in order.
pub(super) fn by_address(all: &mut Vec<Named>) -> Result<(), TryReserveError> {
    if all.is_sorted_by_key(|one| one.0.address()) {
        return Ok(());
    }
    if all.len() <= FEW {
        all.sort_unstable_by_key(|&(key, change)| (key.address(), change));
        return Ok(());
    }
    let differing = all.iter().fold(0, |bits, one| bits | (one.0.address() ^ all[0].0.address()));
    let mut shift = differing.trailing_zeros();
    let bits = usize::BITS - differing.leading_zeros() - shift;
    // As few bits as that many passes need.
    let width = bits.div_ceil(bits.div_ceil(WIDEST));
    let mut other = Vec::new();
    other.try_reserve_exact(all.len())?;
    other.extend_from_slice(all);
    let mut ends = collect(std::iter::repeat_n(0_usize, 1 << width))?;
    while shift < usize::BITS && differing >> shift != 0 {
        let digit = |one: &Named| (one.0.address() >> shift) & ((1 << width) - 1);
        ends.fill(0);
        for one in &*all {
            ends[digit(one)] += 1;
        }
        let mut end = 0;
        for count in &mut ends {
            end += *count;
            *count = end;
        }
        // From the last, so that what was in order stays so.
        for one in all.iter().rev() {
            let at = &mut ends[digit(one)];
            *at -= 1;
            other[*at] = *one;
        }
        std::mem::swap(all, &mut other);
        shift += width;
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::StaticKey;

    const ALL: usize = if cfg!(miri) { 600 } else { 2000 };

    fn address(one: &Named) -> (usize, u32) {
        (one.0.address(), one.1)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn few_and_many_are_sorted_as_by_comparison(picks in prop::collection::vec(0..ALL, 0..ALL)) {
            static KEYS: std::sync::OnceLock<Vec<StaticKey<false>>> = std::sync::OnceLock::new();
            let new = |_| StaticKey::<false>::new("k", file!(), line!());
            let keys = KEYS.get_or_init(|| (0..ALL).map(new).collect());
            let mut all: Vec<Named> =
                picks.iter().enumerate().map(|(change, &at)| (keys[at].key(), change as u32)).collect();
            let mut expected: Vec<_> = all.iter().map(address).collect();
            expected.sort_unstable();
            by_address(&mut all).unwrap();
            prop_assert_eq!(all.iter().map(address).collect::<Vec<_>>(), expected);
        }
    }
}
