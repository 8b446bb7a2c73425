//! The callers of the code that made a hit.
//!
//! # Async-signal-safety
//!
//! [`walk`] is that of [`walk_unbound`].

use dormouse_sys::trap::PerfTrap;
use dormouse_unwind::{CallFrame, CopyEnd, Walk, WalkEnd, claim, frames, has_room, walk_unbound};

/// The most callers of a hit: of a deeper stack those in the middle are left out.
pub(super) const DEPTH: usize = 128;

/// The most functions that a walk follows.
const MOST: usize = 512;

/// How far the callers of a hit lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HitStackEnd {
    /// Unknown: a function was met for the first time, the signal came late, there was no room for
    /// a walk, or the kernel has found the callers.
    #[default]
    Unknown,
    /// To the first function of the thread.
    Whole,
    /// There was no room for all: those in the middle are left out, or the outermost.
    Cut,
    /// To a function whose caller no rule finds.
    Lost,
}

/// How the walk of a hit's stack ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Walked {
    /// The number of callers, also if there is no room for all.
    pub(super) depth: usize,
    pub(super) end: WalkEnd,
    /// Nothing had been learned about a function: some callers may be missing.
    pub(super) is_missed: bool,
}

/// The callers of a hit, as reports have them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HitStack {
    /// Return addresses, the innermost first.
    pub(super) callers: Vec<usize>,
    /// How many lie before those that are left out.
    pub(super) inner: usize,
    pub(super) end: HitStackEnd,
}

impl Walked {
    const IS_THERE: u64 = 1;
    const IS_MISSED: u64 = 2;
    const ENDS: u32 = 2;
    const DEPTH: u32 = 4;

    /// In one word, which is not 0.
    pub(super) fn word(self) -> u64 {
        let end = match self.end {
            WalkEnd::NoRule | WalkEnd::NoTable | WalkEnd::Unlearned => 0,
            WalkEnd::Outermost => 1,
            WalkEnd::Enough => 2,
        };
        let missed = if self.is_missed { Self::IS_MISSED } else { 0 };
        (self.depth as u64) << Self::DEPTH | end << Self::ENDS | missed | Self::IS_THERE
    }

    pub(super) fn of(word: u64) -> Option<Self> {
        let end = match word >> Self::ENDS & 3 {
            1 => WalkEnd::Outermost,
            2 => WalkEnd::Enough,
            _ => WalkEnd::NoRule,
        };
        let (depth, is_missed) = ((word >> Self::DEPTH) as usize, word & Self::IS_MISSED != 0);
        (word & Self::IS_THERE != 0).then_some(Self { depth, end, is_missed })
    }

    /// The callers, of which `at` returns the one at a place.
    pub(super) fn stack(self, at: impl Fn(usize) -> usize) -> HitStack {
        let kept: Vec<usize> = (0..self.depth.min(DEPTH)).map(at).collect();
        let is_cut = self.depth > DEPTH;
        let end = match self.end {
            _ if self.is_missed => HitStackEnd::Unknown,
            _ if is_cut => HitStackEnd::Cut,
            WalkEnd::Enough => HitStackEnd::Cut,
            WalkEnd::Outermost => HitStackEnd::Whole,
            WalkEnd::NoRule | WalkEnd::NoTable | WalkEnd::Unlearned => HitStackEnd::Lost,
        };
        if !is_cut {
            return HitStack { inner: kept.len(), callers: kept, end };
        }
        let (inner, outer) = frames::in_order(self.depth, &kept);
        // The walk itself was cut: the last functions that it found are not the outermost.
        let outer = outer.take(if self.end == WalkEnd::Enough { 0 } else { DEPTH });
        HitStack { inner: inner.len(), callers: inner.iter().copied().chain(outer).collect(), end }
    }

    /// The callers among the functions of a copied stack, each in its place.
    pub(super) fn of_copy(functions: &[u64], end: CopyEnd) -> (Self, [usize; DEPTH]) {
        let (mut depth, mut callers) = (0, [0; DEPTH]);
        for &function in functions.iter().skip(1) {
            frames::take(function as usize + 1, &mut depth, &mut callers);
        }
        let end = match end {
            CopyEnd::Outermost => WalkEnd::Outermost,
            CopyEnd::Copy | CopyEnd::Enough => WalkEnd::Enough,
            CopyEnd::NoRule | CopyEnd::NoTable | CopyEnd::Unlearned => WalkEnd::NoRule,
        };
        (Self { depth: depth as usize, end, is_missed: false }, callers)
    }
}

/// The registers of the code that made a hit.
pub(super) fn registers(trap: &PerfTrap) -> CallFrame {
    CallFrame { instruction: trap.ip, stack: trap.stack, frame: trap.frame, link: trap.link }
}

/// Passes the callers of a hit to `put`, each with its place in a stack of [`DEPTH`]. `None`: the
/// handler has no room for a walk.
pub(super) fn walk(tid: u32, trap: &PerfTrap, put: &mut dyn FnMut(usize, usize)) -> Option<Walked> {
    if !has_room(trap.lowest) {
        return None;
    }
    let (mut count, cache) = (0_usize, claim(tid));
    let mut take = |caller: CallFrame| {
        if let Some(before) = count.checked_sub(1) {
            put(frames::place(before, DEPTH), caller.instruction + 1);
        }
        count += 1;
        count <= MOST
    };
    // The bounds of the thread's own stack are in a thread-local.
    let Walk { end, is_missed } = walk_unbound(cache.as_deref(), registers(trap), &mut take);
    Some(Walked { depth: count.saturating_sub(1), end, is_missed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_cut_in_the_middle() {
        let end = WalkEnd::Outermost;
        for (depth, is_missed, expected) in [
            (3, false, HitStackEnd::Whole),
            (3, true, HitStackEnd::Unknown),
            (DEPTH, false, HitStackEnd::Whole),
            (DEPTH + 5, false, HitStackEnd::Cut),
        ] {
            let functions: Vec<u64> = (0..=depth as u64).collect();
            let (walked, callers) = Walked::of_copy(&functions, CopyEnd::Outermost);
            assert_eq!(walked, Walked { depth, end, is_missed: false });
            let walked = Walked::of(Walked { is_missed, ..walked }.word()).unwrap();
            let stack = walked.stack(|at| callers[at]);
            let inner = if depth > DEPTH { DEPTH / 2 } else { depth };
            let outer = depth + 1 - (depth.min(DEPTH) - inner);
            let right: Vec<usize> = (1..=inner).chain(outer..=depth).map(|function| function + 1).collect();
            assert_eq!(stack, HitStack { callers: right, inner, end: expected });
        }
        assert_eq!(Walked::of(0), None);
    }

    #[test]
    fn each_end_has_its_word() {
        for (end, expected) in [
            (CopyEnd::Outermost, HitStackEnd::Whole),
            (CopyEnd::Copy, HitStackEnd::Cut),
            (CopyEnd::NoRule, HitStackEnd::Lost),
        ] {
            let (walked, _) = Walked::of_copy(&[7, 8], end);
            assert_eq!(Walked::of(walked.word()), Some(walked));
            assert_eq!(walked.stack(|_| 9).end, expected);
        }
    }
}
