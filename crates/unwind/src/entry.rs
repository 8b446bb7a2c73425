//! The entries of `.eh_frame`: one for each function, with a program that gives a rule for each of
//! its instructions, and a common one for the beginning of many.

use crate::arch;
use crate::bytes::{Cursor, MappedBytes};
use crate::memory::{self, MemorySource};
use crate::rule::{CallerRule, FrameBase, FrameRule, PackedRule, SavedAt};

/// The deepest stack of rules that a program may remember.
const DEEPEST: usize = 8;

/// A word on the stack.
const WORD: i64 = 8;

/// Where a register of the caller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saved {
    /// In the same register.
    Same,
    /// At this distance from the caller's frame.
    At(i64),
    /// At this distance from a register.
    AtRegister(u64, i64),
    /// Nowhere: there is no caller.
    Nowhere,
    /// In another register, or at an address that an expression computes.
    Elsewhere,
}

/// The way to the caller's frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    /// A register and a distance.
    Register(u64, i64),
    /// The word at a distance from a register.
    Word(u64, i64),
    /// The frame of a stub of the linker's, which has pushed a word from this byte on.
    Stub(u8),
    /// Another expression.
    Computed,
}

/// The rules at one instruction.
#[derive(Debug, Clone, Copy)]
struct Rules {
    base: Base,
    frame: Saved,
    returns_to: Saved,
}

/// The part that the entries of many functions have in common.
#[derive(Debug)]
struct Common<'a> {
    code_unit: u64,
    data_unit: i64,
    return_register: u64,
    /// How addresses are written.
    encoding: u8,
    /// Whether functions have data of their own.
    is_augmented: bool,
    /// Whether the callers are interrupted by signals.
    is_interrupted: bool,
    program: Cursor<'a>,
}

/// Room for the bytes of an entry, and of the part that it has in common with others.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    own: Vec<u8>,
    common: Vec<u8>,
}

/// The entry of a function.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    common: Common<'a>,
    /// The function's first address, and the first behind it.
    pub(crate) start: u64,
    pub(crate) end: u64,
    program: Cursor<'a>,
}

impl<'a> Common<'a> {
    fn read(bytes: MappedBytes<'a>) -> Option<Self> {
        let mut rest = bytes.at(bytes.address)?;
        let (_length, id, version) = (rest.word()?, rest.word()?, rest.byte()?);
        if id != 0 || !matches!(version, 1 | 3) {
            return None;
        }
        let augmentation = rest.text()?;
        let (code_unit, data_unit) = (rest.unsigned()?, rest.signed()?);
        let return_register = if version == 1 { u64::from(rest.byte()?) } else { rest.unsigned()? };
        let mut common = Self {
            code_unit,
            data_unit,
            return_register,
            encoding: 0,
            is_augmented: false,
            is_interrupted: false,
            program: rest,
        };
        if let Some((b'z', parts)) = augmentation.split_first() {
            let length = rest.unsigned()?;
            let mut data = rest.split(length)?;
            for part in parts {
                match part {
                    b'R' => common.encoding = data.byte()?,
                    b'L' => data.skip(1)?,
                    b'P' => {
                        let encoding = data.byte()?;
                        data.skip_pointer(encoding)?;
                    }
                    b'S' => common.is_interrupted = true,
                    // The key of signatures.
                    b'B' => {}
                    _ => return None,
                }
            }
            common.is_augmented = true;
        } else if !augmentation.is_empty() {
            return None;
        }
        common.program = rest;
        Some(common)
    }
}

impl<'a> Entry<'a> {
    /// The entry at an address.
    pub(crate) fn read(memory: &impl MemorySource, address: u64, buffers: &'a mut Buffers) -> Option<Self> {
        let Buffers { own, common } = buffers;
        let own = memory::entry(memory, address, own)?;
        let mut rest = own.at(address)?;
        let _length = rest.word()?;
        let place = rest.address();
        let back = rest.word().filter(|&back| back != 0)?;
        let common = Common::read(memory::entry(memory, place.checked_sub(back.into())?, common)?)?;
        let start = rest.pointer(common.encoding, 0)?;
        let end = start.checked_add(rest.offset(common.encoding)?)?;
        if common.is_augmented {
            let length = rest.unsigned()?;
            rest.skip(length)?;
        }
        Some(Self { common, start, end, program: rest })
    }

    /// Calls `give` for each row, with the rule and the first address for which it holds. If the
    /// program cannot be followed, the rest is unknown. Returns `None` once `give` does: it has no
    /// room for a row.
    pub(crate) fn rows(&self, mut give: impl FnMut(u64, PackedRule) -> Option<()>) -> Option<()> {
        let mut run = Run {
            common: &self.common,
            at: self.start,
            end: self.end,
            rules: Rules { base: Base::Computed, frame: Saved::Same, returns_to: Saved::Same },
            first: None,
            remembered: Vec::new(),
            give: &mut give,
        };
        let mut ended = run.follow(self.common.program)?;
        if ended == Ended::Whole {
            run.first = Some(run.rules);
            ended = run.follow(self.program)?;
        }
        let rule = if ended == Ended::Whole { run.rule() } else { PackedRule::UNKNOWN };
        let at = run.at;
        if at < self.end { give(at, rule) } else { Some(()) }
    }
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Whole,
    /// At an invalid instruction, or one that no rule can express.
    Lost,
}

/// A program that is being followed.
struct Run<'a, 'b, G> {
    common: &'a Common<'b>,
    /// The address for which the rules hold.
    at: u64,
    end: u64,
    rules: Rules,
    /// The rules at the function's first instruction; none while they are being made.
    first: Option<Rules>,
    remembered: Vec<Rules>,
    give: &'a mut G,
}

/// An instruction's effect.
enum Effect {
    Changed,
    /// The next rules hold from this address on.
    Advanced(u64),
}

impl<G: FnMut(u64, PackedRule) -> Option<()>> Run<'_, '_, G> {
    fn follow(&mut self, mut program: Cursor<'_>) -> Option<Ended> {
        while !program.is_at_end() {
            match self.instruction(&mut program) {
                Some(Effect::Changed) => {}
                Some(Effect::Advanced(to)) if to >= self.at => {
                    if to > self.at && self.at < self.end {
                        let rule = self.rule();
                        (self.give)(self.at, rule)?;
                    }
                    self.at = to;
                }
                _ => return Some(Ended::Lost),
            }
        }
        Some(Ended::Whole)
    }

    /// Follows one instruction (DWARF 5, 6.4.2; those of GNU in LSB 10.6).
    fn instruction(&mut self, program: &mut Cursor<'_>) -> Option<Effect> {
        let data_unit = self.common.data_unit;
        let operation = program.byte()?;
        let low = u64::from(operation & 0x3f);
        let factored =
            |program: &mut Cursor<'_>| Some(i64::try_from(program.unsigned()?).ok()?.wrapping_mul(data_unit));
        match (operation & 0xc0, operation) {
            (0x40, _) => return self.advanced(low),
            (0x80, _) => self.save(low, Saved::At(factored(program)?)),
            (0xc0, _) => self.restore(low)?,
            (_, 0x00) => {}
            (_, 0x01) => return program.pointer(self.common.encoding, 0).map(Effect::Advanced),
            (_, 0x02) => return self.advanced(program.byte()?.into()),
            (_, 0x03) => return self.advanced(program.half()?.into()),
            (_, 0x04) => return self.advanced(program.word()?.into()),
            (_, 0x05) => {
                let register = program.unsigned()?;
                self.save(register, Saved::At(factored(program)?));
            }
            (_, 0x06) => {
                let register = program.unsigned()?;
                self.restore(register)?;
            }
            (_, 0x07) => {
                let register = program.unsigned()?;
                self.save(register, Saved::Nowhere);
            }
            (_, 0x08) => {
                let register = program.unsigned()?;
                self.save(register, Saved::Same);
            }
            // In a register; a value at a distance, of either sign.
            (_, 0x09 | 0x14 | 0x15) => {
                let register = program.unsigned()?;
                program.unsigned()?;
                self.save(register, Saved::Elsewhere);
            }
            (_, 0x0a) => {
                if self.remembered.len() == DEEPEST || self.remembered.try_reserve(1).is_err() {
                    return None;
                }
                self.remembered.push(self.rules);
            }
            (_, 0x0b) => self.rules = self.remembered.pop()?,
            (_, 0x0c) => {
                let register = program.unsigned()?;
                self.rules.base = Base::Register(register, i64::try_from(program.unsigned()?).ok()?);
            }
            (_, 0x0d) => {
                let register = program.unsigned()?;
                self.rules.base = Base::Register(register, self.base()?.1);
            }
            (_, 0x0e) => {
                let distance = i64::try_from(program.unsigned()?).ok()?;
                self.rules.base = Base::Register(self.base()?.0, distance);
            }
            (_, 0x0f) => {
                let length = program.unsigned()?;
                self.rules.base = Base::of(program.split(length)?);
            }
            // An expression for a place.
            (_, 0x10) => {
                let (register, length) = (program.unsigned()?, program.unsigned()?);
                let mut expression = program.split(length)?;
                let place = at_register(&mut expression).filter(|_| expression.is_at_end());
                self.save(register, place.map_or(Saved::Elsewhere, |(from, at)| Saved::AtRegister(from, at)));
            }
            // An expression for a value.
            (_, 0x16) => {
                let (register, length) = (program.unsigned()?, program.unsigned()?);
                program.skip(length)?;
                self.save(register, Saved::Elsewhere);
            }
            (_, 0x11) => {
                let register = program.unsigned()?;
                self.save(register, Saved::At(program.signed()?.wrapping_mul(data_unit)));
            }
            (_, 0x12) => {
                let register = program.unsigned()?;
                self.rules.base = Base::Register(register, program.signed()?.wrapping_mul(data_unit));
            }
            (_, 0x13) => {
                let distance = program.signed()?.wrapping_mul(data_unit);
                self.rules.base = Base::Register(self.base()?.0, distance);
            }
            // From here on the return address is signed, or is not: signatures are removed anyway.
            (_, 0x2d) if arch::HAS_LINK => {}
            // The length of arguments on the stack.
            (_, 0x2e) => {
                program.unsigned()?;
            }
            (_, 0x2f) => {
                let register = program.unsigned()?;
                self.save(register, Saved::At(factored(program)?.wrapping_neg()));
            }
            _ => return None,
        }
        Some(Effect::Changed)
    }

    /// The register and the distance of the frame.
    fn base(&self) -> Option<(u64, i64)> {
        match self.rules.base {
            Base::Register(register, distance) => Some((register, distance)),
            Base::Word(..) | Base::Stub(_) | Base::Computed => None,
        }
    }

    fn rule(&self) -> PackedRule {
        // A rule with a distance that no compiler makes is unknown.
        PackedRule::new(self.rules.rule(self.common.is_interrupted)).unwrap_or(PackedRule::UNKNOWN)
    }

    fn advanced(&self, units: u64) -> Option<Effect> {
        self.at.checked_add(units.checked_mul(self.common.code_unit)?).map(Effect::Advanced)
    }

    fn place(rules: &mut Rules, register: u64, returns: u64) -> Option<&mut Saved> {
        match register {
            arch::FRAME => Some(&mut rules.frame),
            _ if register == returns => Some(&mut rules.returns_to),
            _ => None,
        }
    }

    fn save(&mut self, register: u64, saved: Saved) {
        if let Some(place) = Self::place(&mut self.rules, register, self.common.return_register) {
            *place = saved;
        }
    }

    fn restore(&mut self, register: u64) -> Option<()> {
        let (mut first, returns) = (self.first?, self.common.return_register);
        if let Some(saved) = Self::place(&mut first, register, returns).copied() {
            self.save(register, saved);
        }
        Some(())
    }
}

impl Base {
    /// The frame that an expression computes.
    fn of(mut expression: Cursor<'_>) -> Self {
        /// DWARF's operations.
        const DEREF: u8 = 0x06;
        const LIT: u8 = 0x30;
        /// The stack pointer and 8; and 8 more if the lowest four bits of the instruction's address
        /// are not less than a number.
        const STUB: [[u8; 6]; 2] = [
            [arch::BREG + arch::STACK as u8, 8, arch::BREG + 16, 0, 0x3f, 0x1a],
            [0, 0x2a, 0x33, 0x24, 0x22, 0],
        ];
        let mut whole = expression;
        if let Some((register, distance)) = at_register(&mut expression)
            && expression.byte() == Some(DEREF)
            && expression.is_at_end()
        {
            return Self::Word(register, distance);
        }
        let [head, [_, tail @ .., _]] = STUB;
        let is_head = head.iter().all(|&byte| whole.byte() == Some(byte));
        let pushed = whole.byte().and_then(|byte| byte.checked_sub(LIT)).filter(|&pushed| pushed < 16);
        let is_tail = tail.iter().all(|&byte| whole.byte() == Some(byte)) && whole.is_at_end();
        match pushed {
            Some(pushed) if is_head && is_tail => Self::Stub(pushed),
            _ => Self::Computed,
        }
    }
}

/// The register and the distance at the beginning of an expression.
fn at_register(expression: &mut Cursor<'_>) -> Option<(u64, i64)> {
    let register = expression.byte()?.checked_sub(arch::BREG).filter(|&register| register < 32)?;
    Some((register.into(), expression.signed()?))
}

impl Rules {
    fn rule(&self, is_interrupted: bool) -> FrameRule {
        if self.returns_to == Saved::Nowhere {
            return FrameRule::Outermost;
        }
        self.caller(is_interrupted).map_or(FrameRule::Unknown, FrameRule::Caller)
    }

    fn caller(&self, is_interrupted: bool) -> Option<CallerRule> {
        let (register, distance, is_indirect) = match self.base {
            Base::Register(register, distance) => (register, distance, false),
            Base::Word(register, distance) => (register, distance, true),
            Base::Stub(_) => (arch::STACK, WORD, false),
            Base::Computed => return None,
        };
        let base = match (self.base, register) {
            (Base::Stub(pushed), _) => FrameBase::Stub(pushed),
            (_, arch::STACK) => FrameBase::Stack,
            (_, arch::FRAME) => FrameBase::Frame,
            _ => return None,
        };
        let saved = |saved| match saved {
            Saved::At(at) => i32::try_from(at).ok().map(SavedAt::Caller),
            Saved::AtRegister(from, at) if from == register => i32::try_from(at).ok().map(SavedAt::Base),
            _ => None,
        };
        let frame = if self.frame == Saved::Same { None } else { Some(saved(self.frame)?) };
        Some(CallerRule {
            base,
            distance: i32::try_from(distance).ok()?,
            is_indirect,
            returns_to: match self.returns_to {
                Saved::Same if arch::HAS_LINK => SavedAt::Link,
                other => saved(other)?,
            },
            frame,
            is_interrupted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last rule of a function that saves the frame pointer where an expression says.
    fn saved_by(expression: &[u8]) -> FrameRule {
        let (mut bytes, mut buffers) = (Vec::new(), Buffers::default());
        let mut put = |head: u32, rest: &[&[u8]]| {
            let rest = rest.concat();
            bytes.extend((rest.len() as u32 + 4).to_ne_bytes());
            bytes.extend(head.to_ne_bytes());
            bytes.extend(rest);
            bytes.len()
        };
        let returns = arch::RETURN as u8;
        // Version 1, no augmentation, units of 1 and -8; the frame is 16 bytes above.
        let common = [1, 0, 1, 0x78, returns, 0x0c, arch::STACK as u8, 16, 0x80 | returns, 1];
        let place = put(0, &[&common]);
        let range = [0x1000_u64, 0x10].map(u64::to_ne_bytes);
        let program = [0x10, arch::FRAME as u8, expression.len() as u8];
        put(place as u32 + 4, &[range.as_flattened(), &program, expression]);
        let memory = MappedBytes { address: 0x8000, bytes: &bytes };
        let entry = Entry::read(&memory, 0x8000 + place as u64, &mut buffers).unwrap();
        let mut last = FrameRule::Outermost;
        let keep = |_, rule: PackedRule| {
            last = rule.rule();
            Some(())
        };
        entry.rows(keep).unwrap();
        last
    }

    #[test]
    fn an_expression_counts_to_its_end() {
        let at_stack = [arch::BREG + arch::STACK as u8, 8];
        let FrameRule::Caller(rule) = saved_by(&at_stack) else { panic!("it leads to a caller") };
        assert_eq!(rule.frame, Some(SavedAt::Base(8)));
        // The word there.
        assert_eq!(saved_by(&[&at_stack[..], &[0x06]].concat()), FrameRule::Unknown);
    }
}
