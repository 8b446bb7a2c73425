//! One row's way from a function's registers to those of its caller.

/// The size of a word on the stack.
const WORD: usize = size_of::<usize>();

/// No code of a process lies at this address or above.
const NO_CODE: usize = 1 << 47;

/// The registers of a function that runs or has called another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallFrame {
    /// An address inside of an instruction: the next one of code that was interrupted; for a
    /// caller, its call (one less than the return address).
    pub instruction: usize,
    /// The stack pointer.
    pub stack: usize,
    /// The register of the frame pointer, whatever the function uses it for.
    pub frame: usize,
}

/// The register from which the caller's frame is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrameBase {
    /// The stack pointer.
    Stack,
    /// The frame pointer.
    Frame,
}

/// How to find the caller of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrameRule {
    /// No table covers it, or its table computes the frame in a way that no rule expresses.
    Unknown,
    /// There is no caller.
    Outermost,
    /// The caller's stack pointer, after the return, is a register and a distance. All places are
    /// relative to that address.
    Caller {
        /// The register.
        base: FrameBase,
        /// The distance.
        distance: i32,
        /// The place of the return address.
        returns_to: i32,
        /// The place of the caller's frame pointer; `None`: the register still has it.
        frame: Option<i32>,
    },
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
    /// The caller of a function with the registers `from`. `read` returns the word at an address of
    /// the stack, if it can be read.
    ///
    /// # Async-signal-safety
    ///
    /// If `read` is: no lock, allocation or panic.
    pub fn caller(self, from: CallFrame, mut read: impl FnMut(usize) -> Option<usize>) -> CallerStep {
        let (base, distance, returns_to, frame) = match self {
            Self::Unknown => return CallerStep::Unknown,
            Self::Outermost => return CallerStep::Outermost,
            Self::Caller { base, distance, returns_to, frame } => (base, distance, returns_to, frame),
        };
        let base = match base {
            FrameBase::Stack => from.stack,
            FrameBase::Frame => from.frame,
        };
        let stack = base.wrapping_add_signed(distance as isize);
        // Stacks grow downwards: the walk ends, whatever the stack holds.
        if stack <= from.stack || !stack.is_multiple_of(WORD) {
            return CallerStep::Unknown;
        }
        let mut word = |place: i32| read(stack.wrapping_add_signed(place as isize));
        let caller = word(returns_to).and_then(|returns_to| {
            let frame = frame.map_or(Some(from.frame), word)?;
            Some(CallFrame { instruction: returns_to.checked_sub(1)?, stack, frame })
        });
        match caller {
            Some(caller) if caller.instruction < NO_CODE => CallerStep::Found(caller),
            _ => CallerStep::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: CallFrame = CallFrame { instruction: 0x1000, stack: 0x7000, frame: 0x7020 };

    fn rule(base: FrameBase, distance: i32, frame: Option<i32>) -> FrameRule {
        FrameRule::Caller { base, distance, returns_to: -8, frame }
    }

    /// A stack whose words are the numbers of their places.
    fn word(at: usize) -> Option<usize> {
        (0x7000..0x7040).contains(&at).then_some(at / 8)
    }

    #[test]
    fn a_rule_leads_to_the_caller() {
        let found = |instruction, stack, frame| CallerStep::Found(CallFrame { instruction, stack, frame });
        let pushed = rule(FrameBase::Stack, 16, Some(-16));
        assert_eq!(pushed.caller(FROM, word), found(0x7008 / 8 - 1, 0x7010, 0x7000 / 8));
        assert_eq!(rule(FrameBase::Stack, 8, None).caller(FROM, word), found(0x7000 / 8 - 1, 0x7008, 0x7020));
        let linked = rule(FrameBase::Frame, 16, Some(-16));
        assert_eq!(linked.caller(FROM, word), found(0x7028 / 8 - 1, 0x7030, 0x7020 / 8));
        assert_eq!(FrameRule::Outermost.caller(FROM, word), CallerStep::Outermost);
    }

    #[test]
    fn no_step_leads_down_or_elsewhere() {
        for (base, distance) in
            [(FrameBase::Stack, 0), (FrameBase::Stack, -8), (FrameBase::Stack, 12), (FrameBase::Stack, 0x50)]
        {
            assert_eq!(rule(base, distance, None).caller(FROM, word), CallerStep::Unknown, "{distance}");
        }
        let wild = CallFrame { frame: usize::MAX, ..FROM };
        assert_eq!(rule(FrameBase::Frame, 17, None).caller(wild, word), CallerStep::Unknown);
        for value in [0, usize::MAX, NO_CODE + 1] {
            let read = |_| Some(value);
            assert_eq!(rule(FrameBase::Stack, 8, None).caller(FROM, read), CallerStep::Unknown);
        }
        assert_eq!(FrameRule::Unknown.caller(FROM, word), CallerStep::Unknown);
    }
}
