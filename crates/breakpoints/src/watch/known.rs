//! The keeper's last knowledge of a watch, kept for reports to which it does not answer.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_sys::sync::Sequence;

/// The keeper's knowledge of a watch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) hits: u64,
    /// Those that were delivered a moment after that.
    pub(super) delivered: u64,
    pub(super) is_resting: bool,
    pub(super) is_armed: bool,
    pub(super) armed_ns: u64,
    pub(super) wall_ns: u64,
    pub(super) rests: u32,
}

/// The last of it. Only the keeper's thread writes, and nobody waits for it, a forked child
/// included: words that a write comes between are of two moments, each true by itself.
#[derive(Debug, Default)]
pub(super) struct LastKnown {
    written: Sequence,
    words: [AtomicU64; 7],
}

impl LastKnown {
    pub(super) fn set(&self, known: Known) {
        let Known { hits, delivered, is_resting, is_armed, armed_ns, wall_ns, rests } = known;
        let new = [hits, delivered, is_resting.into(), is_armed.into(), armed_ns, wall_ns, rests.into()];
        self.written.write(|| {
            for (word, new) in self.words.iter().zip(new) {
                word.store(new, Ordering::Relaxed);
            }
        });
    }

    pub(super) fn get(&self) -> Known {
        let words = || self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        let ([hits, delivered, is_resting, is_armed, armed_ns, wall_ns, rests], _) = self.written.read(words);
        Known {
            hits,
            delivered,
            is_resting: is_resting != 0,
            is_armed: is_armed != 0,
            armed_ns,
            wall_ns,
            rests: rests as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_comes_back() {
        let last = LastKnown::default();
        assert_eq!(last.get(), Known::default());
        let known = Known {
            hits: 1,
            delivered: 4,
            is_resting: true,
            is_armed: false,
            armed_ns: 2,
            wall_ns: 3,
            rests: u32::MAX,
        };
        last.set(known);
        assert_eq!(last.get(), known);
    }
}
