//! One row's way from a function's registers to those of its caller.

pub use dormouse_sys::stack::CallFrame;

use crate::arch;

/// The size of a word on the stack.
const WORD: usize = size_of::<usize>();

/// The bytes of a stub of the linker's.
const STUB: usize = 16;

/// The register from which the caller's frame is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrameBase {
    /// The stack pointer.
    Stack,
    /// The frame pointer.
    Frame,
    /// The frame pointer, in code that no table covers. Where a call leaves the return address in a
    /// register, such code may have saved nothing.
    Uncovered,
    /// The stack pointer in a stub of the linker's (`.plt`): one word more once the stub has
    /// pushed its number, which it does before the given byte of each sixteen.
    Stub(u8),
}

/// The place of a saved register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SavedAt {
    /// At a distance from the caller's frame.
    Caller(i32),
    /// At a distance from the register from which the frame is found.
    Base(i32),
    /// For a return address: in the register in which a call leaves it.
    Link,
}

/// How to find the caller of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrameRule {
    /// No table covers it, or its table computes the frame in a way that no rule expresses.
    Unknown,
    /// There is no caller.
    Outermost,
    /// By the registers and the stack.
    Caller(CallerRule),
}

/// The way to the caller by the registers and the stack.
///
/// The caller's frame is the value that its stack pointer has after the return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallerRule {
    /// The register.
    pub base: FrameBase,
    /// The distance of the caller's frame from the register.
    pub distance: i32,
    /// Whether the word at that distance holds the address of the frame: functions that align their
    /// stack keep it there, and signal frames the interrupted stack pointer.
    pub is_indirect: bool,
    /// The place of the return address.
    pub returns_to: SavedAt,
    /// The place of the caller's frame pointer; `None`: the register still has it.
    pub frame: Option<SavedAt>,
    /// Whether a signal interrupted the caller, so that it has not called anything.
    pub is_interrupted: bool,
}

/// One step towards the first function of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerStep {
    /// The caller.
    Found(CallFrame),
    /// There is no caller.
    Outermost,
    /// The caller cannot be found.
    Unknown,
}

impl FrameRule {
    /// The rule of code that keeps frame pointers, behind the beginning of a function.
    pub const LINK: Self = Self::by_frame(FrameBase::Frame);

    /// The rule of code that no table covers: the linker's stubs, and what is written by hand. It
    /// keeps frame pointers, or nobody knows.
    pub const UNCOVERED: Self =
        Self::by_frame(if arch::HAS_LINK { FrameBase::Uncovered } else { FrameBase::Frame });

    const fn by_frame(base: FrameBase) -> Self {
        Self::Caller(CallerRule {
            base,
            distance: 2 * WORD as i32,
            is_indirect: false,
            returns_to: SavedAt::Caller(-(WORD as i32)),
            frame: Some(SavedAt::Caller(-2 * WORD as i32)),
            is_interrupted: false,
        })
    }

    /// Whether a function whose caller this rule does not find is the first of its thread: it keeps
    /// a frame pointer, and its caller's is zero. Never true of the innermost function, which may
    /// have any number in the register.
    pub(crate) fn is_first(self, at: CallFrame) -> bool {
        (self == Self::LINK || self == Self::UNCOVERED) && at.frame == 0
    }

    /// The caller of interrupted code that no table covers and that has saved nothing, as the
    /// linker's stubs. The frame pointer is its caller's, so this rule would leave the caller out.
    /// Then the register of the return address leads into code of which `is_other` says that a
    /// table covers it. After a call of its own that has returned, it leads into the code itself;
    /// and a frame record with that return address is the code's own.
    pub(crate) fn linked_caller(
        self,
        from: CallFrame,
        read: impl FnOnce(usize) -> Option<usize>,
        is_other: impl FnOnce(usize) -> bool,
    ) -> Option<CallFrame> {
        let is_uncovered = matches!(self, Self::Caller(rule) if rule.base == FrameBase::Uncovered);
        if !is_uncovered || from.link == 0 {
            return None;
        }
        let instruction = arch::code_address(from.link)?.checked_sub(1)?;
        let recorded = read(from.frame.wrapping_add(WORD)).and_then(arch::code_address);
        let is_leaf = recorded != Some(instruction + 1) && is_other(instruction);
        is_leaf.then_some(CallFrame { instruction, link: 0, ..from })
    }

    /// The caller of a function with the registers `from`. `read` returns the word at an address of
    /// the stack, if it can be read.
    ///
    /// # Async-signal-safety
    ///
    /// If `read` is: no lock, allocation or panic.
    #[inline]
    pub fn caller(self, from: CallFrame, read: impl FnMut(usize) -> Option<usize>) -> CallerStep {
        match self {
            Self::Unknown => CallerStep::Unknown,
            Self::Outermost => CallerStep::Outermost,
            Self::Caller(rule) => rule.caller(from, read).unwrap_or(CallerStep::Unknown),
        }
    }
}

impl CallerRule {
    /// `None`: the caller cannot be found.
    #[inline(always)]
    pub(crate) fn caller(
        self,
        from: CallFrame,
        mut read: impl FnMut(usize) -> Option<usize>,
    ) -> Option<CallerStep> {
        let base = match self.base {
            FrameBase::Stack => from.stack,
            FrameBase::Frame | FrameBase::Uncovered => from.frame,
            FrameBase::Stub(pushed) => {
                let has_pushed = from.instruction % STUB >= usize::from(pushed);
                from.stack.wrapping_add(if has_pushed { WORD } else { 0 })
            }
        };
        let mut stack = base.wrapping_add_signed(self.distance as isize);
        if self.is_indirect {
            stack = read(stack)?;
        }
        // Of a caller the register is not known, so no second step goes on by it.
        let is_linked = arch::HAS_LINK && self.returns_to == SavedAt::Link && from.link != 0;
        // Stacks grow downwards, so the walk ends, whatever the stack holds. A function that has
        // saved nothing may use none. A signal may have come on another stack.
        let goes_up = stack > from.stack || is_linked && stack == from.stack || self.is_interrupted;
        if !goes_up || !stack.is_multiple_of(WORD) {
            return None;
        }
        let place = |saved| match saved {
            SavedAt::Caller(at) => Some(stack.wrapping_add_signed(at as isize)),
            SavedAt::Base(at) => Some(base.wrapping_add_signed(at as isize)),
            SavedAt::Link => None,
        };
        let returns_to = match place(self.returns_to) {
            Some(at) => read(at)?,
            None if is_linked => from.link,
            None => return None,
        };
        // A thread's first function.
        if returns_to == 0 {
            return Some(CallerStep::Outermost);
        }
        let frame = match self.frame.and_then(place) {
            // Below the stack pointer the function has just fetched it from there.
            Some(saved) => read(saved).or((saved < from.stack).then_some(from.frame))?,
            None => from.frame,
        };
        let link = match place(self.returns_to) {
            Some(at) if arch::HAS_LINK && self.is_interrupted => read(at.wrapping_sub(2 * WORD))?,
            _ => 0,
        };
        let returns_to = arch::code_address(returns_to)?;
        let instruction = returns_to.checked_sub(usize::from(!self.is_interrupted))?;
        Some(CallerStep::Found(CallFrame { instruction, stack, frame, link }))
    }
}

/// Rules as they are kept: a word each.
///
/// From the lowest bit on: the kind (four bits), the distance (20), the place of the return address
/// (12), and that of the frame pointer (14), the last three in words of the stack; then which of
/// these two are relative to the register, whether the caller's frame pointer is on the stack, the
/// byte of a stub (four), and whether the return address is in its register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PackedRule(pub(crate) u64);

/// The kinds of packed rules; the low bits of those that lead to a caller are flags.
const OUTERMOST: u64 = 1;
const CALLER: u64 = 8;
const BY_FRAME: u64 = 1;
const INDIRECT: u64 = 2;
const INTERRUPTED: u64 = 4;
/// Flags above the distances.
const RETURNS_BY_BASE: u64 = 1 << 50;
const FRAME_BY_BASE: u64 = 1 << 51;
const HAS_FRAME: u64 = 1 << 52;
const IS_STUB: u64 = 1 << 53;
const STUB_SHIFT: u32 = 54;
const RETURNS_BY_LINK: u64 = 1 << 58;

impl PackedRule {
    pub(crate) const UNKNOWN: Self = Self(0);

    /// `None`: a distance is longer than any that compilers make.
    pub(crate) fn new(rule: FrameRule) -> Option<Self> {
        let rule = match rule {
            FrameRule::Unknown => return Some(Self::UNKNOWN),
            FrameRule::Outermost => return Some(Self(OUTERMOST)),
            FrameRule::Caller(rule) => rule,
        };
        let (base, stub) = match rule.base {
            FrameBase::Stack => (0, 0),
            FrameBase::Frame => (BY_FRAME, 0),
            // Stubs go by the stack pointer.
            FrameBase::Uncovered => (BY_FRAME, IS_STUB),
            FrameBase::Stub(pushed) => (0, IS_STUB | u64::from(pushed & 15) << STUB_SHIFT),
        };
        let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
        let (returns_to, returns_by_base) = place(rule.returns_to);
        let (frame, frame_by_base) = rule.frame.map_or((0, false), place);
        Some(Self(
            CALLER
                | base
                | stub
                | flag(rule.is_indirect, INDIRECT)
                | flag(rule.is_interrupted, INTERRUPTED)
                | words(rule.distance, 4, 20)?
                | words(returns_to, 24, 12)?
                | words(frame, 36, 14)?
                | flag(returns_by_base, RETURNS_BY_BASE)
                | flag(rule.returns_to == SavedAt::Link, RETURNS_BY_LINK)
                | flag(frame_by_base, FRAME_BY_BASE)
                | flag(rule.frame.is_some(), HAS_FRAME),
        ))
    }

    #[inline]
    pub(crate) fn rule(self) -> FrameRule {
        let has = |flag: u64| self.0 & flag != 0;
        if !has(CALLER) {
            return if has(OUTERMOST) { FrameRule::Outermost } else { FrameRule::Unknown };
        }
        let base = if has(BY_FRAME) {
            if has(IS_STUB) { FrameBase::Uncovered } else { FrameBase::Frame }
        } else if has(IS_STUB) {
            FrameBase::Stub((self.0 >> STUB_SHIFT & 15) as u8)
        } else {
            FrameBase::Stack
        };
        let saved =
            |at: i32, by_base: u64| if has(by_base) { SavedAt::Base(at) } else { SavedAt::Caller(at) };
        FrameRule::Caller(CallerRule {
            base,
            distance: self.distance(4, 20),
            is_indirect: has(INDIRECT),
            returns_to: if arch::HAS_LINK && has(RETURNS_BY_LINK) {
                SavedAt::Link
            } else {
                saved(self.distance(24, 12), RETURNS_BY_BASE)
            },
            frame: has(HAS_FRAME).then(|| saved(self.distance(36, 14), FRAME_BY_BASE)),
            is_interrupted: has(INTERRUPTED),
        })
    }

    /// The signed number of `bits` bits from `shift` on, in bytes.
    #[inline]
    fn distance(self, shift: u32, bits: u32) -> i32 {
        let above = u64::BITS - bits;
        ((self.0 << (above - shift)) as i64 >> above) as i32 * WORD as i32
    }
}

fn place(saved: SavedAt) -> (i32, bool) {
    match saved {
        SavedAt::Caller(at) => (at, false),
        SavedAt::Base(at) => (at, true),
        SavedAt::Link => (0, false),
    }
}

/// A distance in words, as `bits` bits from `shift` on.
fn words(distance: i32, shift: u32, bits: u32) -> Option<u64> {
    let (words, half) = (distance / WORD as i32, 1 << (bits - 1));
    let fits = distance % WORD as i32 == 0 && (-half..half).contains(&words);
    fits.then(|| (words as u64 & ((1 << bits) - 1)) << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: CallFrame = CallFrame { instruction: 0x1000, stack: 0x7000, frame: 0x7020, link: 0 };

    fn rule(base: FrameBase, distance: i32, frame: Option<i32>) -> CallerRule {
        CallerRule {
            base,
            distance,
            is_indirect: false,
            returns_to: SavedAt::Caller(-8),
            frame: frame.map(SavedAt::Caller),
            is_interrupted: false,
        }
    }

    /// A stack whose words are the numbers of their places.
    fn word(at: usize) -> Option<usize> {
        (0x7000..0x7040).contains(&at).then_some(at / 8)
    }

    fn step(rule: CallerRule) -> CallerStep {
        FrameRule::Caller(rule).caller(FROM, word)
    }

    #[test]
    fn a_rule_leads_to_the_caller() {
        let found =
            |instruction, stack, frame| CallerStep::Found(CallFrame { instruction, stack, frame, link: 0 });
        let pushed = rule(FrameBase::Stack, 16, Some(-16));
        assert_eq!(step(pushed), found(0x7008 / 8 - 1, 0x7010, 0x7000 / 8));
        assert_eq!(step(rule(FrameBase::Stack, 8, None)), found(0x7000 / 8 - 1, 0x7008, 0x7020));
        assert_eq!(FrameRule::LINK.caller(FROM, word), found(0x7028 / 8 - 1, 0x7030, 0x7020 / 8));
        assert_eq!(FrameRule::Outermost.caller(FROM, word), CallerStep::Outermost);
        assert_eq!(FrameRule::LINK.caller(FROM, |_| Some(0)), CallerStep::Outermost);
        // Popped, where the place cannot be read any more.
        let popped = FrameRule::Caller(rule(FrameBase::Stack, 8, Some(-16)));
        assert_eq!(popped.caller(FROM, word), found(0x7000 / 8 - 1, 0x7008, 0x7020));
        // Before and after a stub has pushed its number.
        assert_eq!(step(rule(FrameBase::Stub(11), 8, None)), found(0x7000 / 8 - 1, 0x7008, 0x7020));
        assert_eq!(step(rule(FrameBase::Stub(0), 8, None)), found(0x7008 / 8 - 1, 0x7010, 0x7020));
    }

    #[test]
    fn frames_are_kept_on_the_stack() {
        let stack = |at: usize| Some(if at == 0x7008 { 0x9000 } else { at });
        let aligned = CallerRule {
            is_indirect: true,
            frame: Some(SavedAt::Base(0)),
            ..rule(FrameBase::Frame, -0x18, None)
        };
        let right = CallFrame { instruction: 0x8ff7, stack: 0x9000, frame: 0x7020, link: 0 };
        assert_eq!(FrameRule::Caller(aligned).caller(FROM, stack), CallerStep::Found(right));
        // A signal came on a stack that lies higher, and its frame has the interrupted address.
        let stack = |at: usize| Some(if at == 0x70a0 { 0x5000 } else { at });
        let signal = CallerRule {
            is_indirect: true,
            returns_to: SavedAt::Base(168),
            frame: Some(SavedAt::Base(120)),
            is_interrupted: true,
            ..rule(FrameBase::Stack, 160, None)
        };
        let link = if arch::HAS_LINK { 0x70a8 - 16 } else { 0 };
        let right = CallFrame { instruction: 0x70a8, stack: 0x5000, frame: 0x7078, link };
        assert_eq!(FrameRule::Caller(signal).caller(FROM, stack), CallerStep::Found(right));
    }

    #[test]
    fn no_step_leads_down_or_elsewhere() {
        for (base, distance) in
            [(FrameBase::Stack, 0), (FrameBase::Stack, -8), (FrameBase::Stack, 12), (FrameBase::Stack, 0x50)]
        {
            assert_eq!(step(rule(base, distance, None)), CallerStep::Unknown, "{distance}");
        }
        let wild = CallFrame { frame: usize::MAX, ..FROM };
        let by_frame = FrameRule::Caller(rule(FrameBase::Frame, 17, None));
        assert_eq!(by_frame.caller(wild, word), CallerStep::Unknown);
        for value in [usize::MAX, 1 << 55 | 1] {
            let read = |_| Some(value);
            let rule = FrameRule::Caller(rule(FrameBase::Stack, 8, None));
            assert_eq!(rule.caller(FROM, read), CallerStep::Unknown);
        }
        assert_eq!(FrameRule::Unknown.caller(FROM, word), CallerStep::Unknown);
    }

    #[test]
    fn a_leaf_leads_to_its_caller_once() {
        let leaf = CallerRule { returns_to: SavedAt::Link, ..rule(FrameBase::Stack, 0, None) };
        let from = CallFrame { link: 0x4000, ..FROM };
        let caller = CallFrame { instruction: 0x3fff, link: 0, ..from };
        let step = FrameRule::Caller(leaf).caller(from, |_| None);
        let is_right = step == CallerStep::Found(caller);
        assert_eq!(is_right, arch::HAS_LINK, "{step:?}");
        assert_eq!(FrameRule::Caller(leaf).caller(caller, |_| None), CallerStep::Unknown);
        let packed = PackedRule::new(FrameRule::Caller(leaf)).unwrap().rule();
        assert!(packed == FrameRule::Caller(leaf) || !arch::HAS_LINK, "{packed:?}");
    }

    #[test]
    fn a_stub_leads_to_its_caller() {
        let uncovered = FrameRule::by_frame(FrameBase::Uncovered);
        let from = CallFrame { link: 0x4000, ..FROM };
        let caller = CallFrame { instruction: 0x3fff, link: 0, ..from };
        assert_eq!(uncovered.linked_caller(from, word, |at| at == 0x3fff), Some(caller));
        assert_eq!(uncovered.linked_caller(from, word, |_| false), None, "a call of its own has returned");
        assert_eq!(uncovered.linked_caller(from, |_| Some(0x4000), |_| true), None, "it has a record");
        assert_eq!(uncovered.linked_caller(caller, word, |_| true), None, "not interrupted");
        assert_eq!(FrameRule::LINK.linked_caller(from, word, |_| true), None, "its table says where");
        assert_eq!(uncovered.caller(from, word), FrameRule::LINK.caller(from, word));
    }

    #[test]
    fn packed_rules_are_the_same() {
        let mut rules = vec![FrameRule::Unknown, FrameRule::Outermost, FrameRule::LINK];
        for base in [FrameBase::Stack, FrameBase::Frame, FrameBase::Uncovered, FrameBase::Stub(11)] {
            for distance in [8, -8, 160, 4_194_296, -4_194_304] {
                for (returns_to, frame) in [
                    (SavedAt::Caller(-8), None),
                    (SavedAt::Base(168), Some(SavedAt::Base(-65_536))),
                    (SavedAt::Caller(-16_384), Some(SavedAt::Caller(65_528))),
                ] {
                    for flags in 0..4 {
                        let (is_indirect, is_interrupted) = (flags & 1 != 0, flags & 2 != 0);
                        rules.push(FrameRule::Caller(CallerRule {
                            base,
                            distance,
                            is_indirect,
                            returns_to,
                            frame,
                            is_interrupted,
                        }));
                    }
                }
            }
        }
        for rule in rules {
            assert_eq!(PackedRule::new(rule).unwrap().rule(), rule);
        }
        for (distance, frame) in [(4_194_304, 0), (4, 0), (8, 65_536)] {
            let rule = FrameRule::Caller(rule(FrameBase::Stack, distance, Some(frame)));
            assert_eq!(PackedRule::new(rule), None, "{rule:?}");
        }
    }
}
