//! Rules in two bytes, as a thread remembers them: nearly all rules that compilers make.
//!
//! Zero is none. Otherwise, from the lowest bit on: the *shape*, which says where the return
//! address and the caller's frame pointer are (four bits, by [`arch::shape`]), the distance in
//! words (ten), whether it is one from the frame pointer, and a one.

use crate::arch;
use crate::rule::{CallFrame, CallerRule, CallerStep, FrameBase, FrameRule};

const UNKNOWN: u16 = 1;
const OUTERMOST: u16 = 2;
const CALLER: u16 = 1 << 15;
const BY_FRAME: u16 = 1 << 14;
const SHAPES: u16 = 16;
const DISTANCES: i32 = 1 << 10;
const WORD: i32 = size_of::<usize>() as i32;

/// A rule in two bytes, but not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShortRule(pub(crate) u16);

impl ShortRule {
    /// `None`: the rule has none, so it has to be searched for each time.
    pub(crate) fn of(rule: FrameRule) -> Option<Self> {
        let rule = match rule {
            FrameRule::Unknown => return Some(Self(UNKNOWN)),
            FrameRule::Outermost => return Some(Self(OUTERMOST)),
            FrameRule::Caller(rule) => rule,
        };
        let by_frame = match rule.base {
            FrameBase::Stack => 0,
            FrameBase::Frame => BY_FRAME,
            FrameBase::Uncovered | FrameBase::Stub(_) => return None,
        };
        let is_plain = !rule.is_indirect && !rule.is_interrupted && rule.distance % WORD == 0;
        let words = rule.distance / WORD;
        if !is_plain || !(0..DISTANCES).contains(&words) {
            return None;
        }
        let shape = arch::shape_of(rule.returns_to, rule.frame, rule.distance)?;
        Some(Self(CALLER | by_frame | (words as u16) << 4 | shape))
    }

    /// The caller of a function with the registers `from`, by [`CallerRule`] alone: nearly all
    /// steps of a walk.
    #[inline(always)]
    pub(crate) fn caller(
        self,
        from: CallFrame,
        read: impl FnMut(usize) -> Option<usize>,
    ) -> Option<CallFrame> {
        match self.rule() {
            FrameRule::Caller(rule) => match rule.caller(from, read)? {
                CallerStep::Found(caller) => Some(caller),
                CallerStep::Outermost | CallerStep::Unknown => None,
            },
            FrameRule::Outermost | FrameRule::Unknown => None,
        }
    }

    /// The rule of which this is the short form.
    #[inline(always)]
    pub(crate) fn rule(self) -> FrameRule {
        let Self(number) = self;
        if number & CALLER == 0 {
            return if number == OUTERMOST { FrameRule::Outermost } else { FrameRule::Unknown };
        }
        let distance = i32::from(number >> 4) % DISTANCES * WORD;
        let (returns_to, frame) = arch::shape(number % SHAPES, distance);
        let base = if number & BY_FRAME != 0 { FrameBase::Frame } else { FrameBase::Stack };
        let (is_indirect, is_interrupted) = (false, false);
        FrameRule::Caller(CallerRule { base, distance, is_indirect, returns_to, frame, is_interrupted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::SavedAt;

    #[test]
    fn each_number_is_of_one_rule() {
        let numbers = [UNKNOWN, OUTERMOST].into_iter().chain(CALLER..=u16::MAX);
        for of in numbers.map(ShortRule) {
            // Two shapes may be one for a distance; then the lower one stands for both.
            let first = ShortRule::of(of.rule()).unwrap();
            assert!(first.0 <= of.0);
            assert_eq!(first.rule(), of.rule());
        }
    }

    #[test]
    fn the_usual_rules_have_numbers() {
        assert!(ShortRule::of(FrameRule::LINK).is_some());
        let FrameRule::Caller(link) = FrameRule::LINK else { panic!("it leads to a caller") };
        for unusual in [
            CallerRule { is_interrupted: true, ..link },
            CallerRule { is_indirect: true, ..link },
            CallerRule { base: FrameBase::Stub(11), ..link },
            CallerRule { distance: DISTANCES * WORD, ..link },
            CallerRule { distance: -WORD, ..link },
            CallerRule { frame: Some(SavedAt::Base(1 << 20)), ..link },
        ] {
            assert_eq!(ShortRule::of(FrameRule::Caller(unusual)), None);
        }
    }
}
