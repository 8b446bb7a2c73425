//! All other processors.

/// The left child of `node`, or the right one where `addr` is less than the address there.
#[inline]
pub(crate) fn below(node: usize, addr: u64, start: u64) -> usize {
    2 * node + usize::from(addr < start)
}
