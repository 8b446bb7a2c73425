//! How alike two names are, to suggest a name in the place of one that does not exist.

/// The share of adjacent pairs of bytes that two names have in common (Dice's coefficient): 1 for
/// equal names, 0 for those without a common pair.
///
/// ```
/// assert_eq!(dormouse_sys::likeness("night", "nacht"), 0.25);
/// ```
pub fn likeness(one: &str, other: &str) -> f64 {
    let pairs = |name: &str| name.as_bytes().windows(2).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (ours, mut theirs) = (pairs(one), pairs(other));
    let all = ours.len() + theirs.len();
    let is_common = |pair: &&Vec<u8>| {
        let at = theirs.iter().position(|it| it == *pair);
        at.map(|at| theirs.swap_remove(at)).is_some()
    };
    let common = ours.iter().filter(is_common).count();
    if all == 0 { 0.0 } else { 2.0 * common as f64 / all as f64 }
}
