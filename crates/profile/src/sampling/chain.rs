//! Callers in a copy of a stack of which only the stack pointer is known.
//!
//! A call leaves its return address on the stack: an address in code, right after a call
//! instruction. Code that keeps frame pointers stores its caller's below that, so both together are
//! a *link*: it points to the next link, further up. Memory that was not overwritten since an
//! earlier call may look the same; so a link counts only if the one that it points to does, too, up
//! to the end of the stack or of the copy.
//!
//! Return addresses below the first link belong to code without frame pointers, such as the C
//! library, or to calls that have returned. Nearly all of them are the former, because code that
//! has just called into the kernel has short frames.
//!
//! On arm64 a function that calls none leaves no return address on the stack, so above the stack
//! pointer is its caller's frame, with what earlier calls have left among the variables. There a
//! link is checked: it has to lie where that caller keeps its own, by its code. Compilers of Rust
//! keep it above the variables, so the uppermost one that passes is the first. If none does, it is
//! the lowest of those that could not be checked, and at last the lowest of all.

/// How far from the stack pointer the first link may lie.
const REACH: usize = 16 * 1024;
/// The most return addresses below the first link, and the most whose positions are returned.
const MOST_BELOW: usize = 16;
/// The most callers.
const MOST: usize = 128;

const WORD: usize = size_of::<u64>();

/// Whether a link lies where its function keeps it, by that function's code. The last is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Checked {
    Failed,
    /// It is not known where.
    Not,
    Passed,
}

/// A copy of a stack from its pointer on.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopiedStack<'a> {
    /// The stack pointer.
    pub(super) from: u64,
    pub(super) bytes: &'a [u8],
    /// Whether links have to be checked.
    pub(super) is_of_leaf: bool,
}

/// The callers that were found in a copy.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    /// The addresses to which they return, the innermost first.
    pub(super) returns: Vec<u64>,
    /// Whether a chain of links is among them. Otherwise it is not known where they end.
    pub(super) has_link: bool,
    /// The first places where return addresses lie, whether they were found to be callers or not.
    pub(super) places: Vec<u64>,
}

impl CopiedStack<'_> {
    fn word(&self, at: u64) -> Option<u64> {
        let offset = usize::try_from(at.checked_sub(self.from)?).ok()?;
        self.bytes.get(offset..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// The callers. `returns_to` returns the address in code, right after a call, that a word
    /// stands for, and `record` how far above its stack pointer the function that was called there
    /// has its link, if that is known.
    pub(super) fn callers(
        &self,
        mut returns_to: impl FnMut(u64) -> Option<u64>,
        mut record: impl FnMut(u64) -> Option<u64>,
    ) -> Chain {
        let mut chain = Chain::default();
        let (mut first, mut below) = (None, 0);
        let reach = self.bytes.len().min(REACH) as u64;
        for at in (self.from..self.from.saturating_add(reach)).step_by(WORD) {
            let is_enough = first.is_some() || chain.returns.len() == MOST_BELOW;
            if !self.is_of_leaf && chain.places.len() == MOST_BELOW && is_enough {
                break;
            }
            let Some(address) = self.word(at).and_then(&mut returns_to) else { continue };
            if chain.places.len() < MOST_BELOW {
                chain.places.push(at);
            }
            if !self.is_of_leaf && first.is_some() {
                continue;
            }
            let linked = at.checked_sub(WORD as u64).filter(|&link| link >= self.from);
            let above = linked.and_then(|link| self.follow(link, &mut returns_to));
            let Some((link, above)) = linked.zip(above) else {
                if first.is_none() && chain.returns.len() < MOST_BELOW {
                    chain.returns.push(address);
                }
                continue;
            };
            let checked = match record(address) {
                Some(place) if place == link - self.from => Checked::Passed,
                Some(_) => Checked::Failed,
                None => Checked::Not,
            };
            let is_better =
                first.as_ref().is_none_or(|(before, _)| checked > *before || checked == Checked::Passed);
            if is_better {
                below = if checked == Checked::Passed { 0 } else { chain.returns.len() };
                first = Some((checked, above));
            }
        }
        if let Some((_, above)) = first {
            chain.has_link = true;
            chain.returns.truncate(below);
            chain.returns.extend(above);
        }
        chain
    }

    /// The addresses to which the links from there on return; `None`: it is no link.
    fn follow(&self, first: u64, address: &mut impl FnMut(u64) -> Option<u64>) -> Option<Vec<u64>> {
        let (mut at, mut returns) = (first, Vec::new());
        loop {
            let (next, word) = (self.word(at)?, self.word(at + WORD as u64)?);
            let Some(returns_to) = address(word) else {
                // The first function of a thread has a caller that keeps none.
                return (returns.len() > 1).then_some(returns);
            };
            returns.push(returns_to);
            let goes_on = next > at && next.is_multiple_of(WORD as u64);
            let is_there = goes_on && self.word(next.saturating_add(WORD as u64)).is_some();
            if !is_there || returns.len() == MOST {
                // The outermost, or the copy ends before the stack, or the caller uses the register
                // for something else: then one alone is none.
                return (returns.len() > 1).then_some(returns);
            }
            at = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: u64 = 0x7000_0000;

    fn callers(words: &[u64]) -> Vec<u64> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let stack = CopiedStack { from: FROM, bytes: &bytes, is_of_leaf: true };
        let code = |word| (0x1000..0x2000).contains(&word).then_some(word);
        // Before 0x1f30 a function is called whose link is 48 bytes above, and so on.
        let record = |returns_to| (returns_to > 0x1f00).then(|| returns_to - 0x1f00);
        stack.callers(code, record).returns
    }

    /// The address of a word.
    fn at(index: u64) -> u64 {
        FROM + 8 * index
    }

    #[test]
    fn links_are_followed_to_the_end() {
        assert_eq!(callers(&[7, at(4), 0x1001, 7, at(6), 0x1002, 0, 0x1003]), [0x1001, 0x1002, 0x1003]);
        // The first function's caller is the C library's, and has no link.
        assert_eq!(callers(&[at(3), 0x1001, 7, at(5), 0x1002, 9, 7]), [0x1001, 0x1002]);
        // The copy ends before the stack does.
        assert_eq!(callers(&[at(3), 0x1001, 7, at(90), 0x1002]), [0x1001, 0x1002]);
    }

    #[test]
    fn code_without_links_is_told_before_them() {
        let words = [0x1001, 7, 0x1002, 7, at(6), 0x1003, 0, 0x1004];
        assert_eq!(callers(&words), [0x1001, 0x1002, 0x1003, 0x1004]);
        assert_eq!(callers(&[0x1001, 7, 0x1002]), [0x1001, 0x1002], "no link at all");
    }

    #[test]
    fn links_of_earlier_calls_are_passed_over() {
        // Two could not be checked, and one of an earlier function passes, too.
        let words = [0x1001, 7, at(6), 0x1002, at(8), 0x1f20, at(8), 0x1f30, 0, 0x1003];
        assert_eq!(callers(&words), [0x1f30, 0x1003]);
        // None passes: the lowest that may be one, or the lowest.
        assert_eq!(callers(&[7, at(3), 0x1f40, at(5), 0x1002, 0, 0x1003]), [0x1002, 0x1003]);
        assert_eq!(callers(&[at(2), 0x1f40, at(4), 0x1f40, 0, 0x1003]), [0x1f40, 0x1f40, 0x1003]);
    }

    #[test]
    fn links_that_lead_nowhere_are_none() {
        // Downwards, in a circle, unaligned, to something else.
        for next in [FROM - 8, at(0), at(4) + 1, at(5)] {
            assert_eq!(callers(&[next, 0x1001, 7, 7, 7, 7, 7]), [0x1001], "{next:#x}");
        }
        assert_eq!(callers(&[]), [0_u64; 0]);
    }
}
