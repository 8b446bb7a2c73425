//! The entries of `.eh_frame`: one for each function, with a program that gives a rule for each of
//! its instructions, and a common one for the beginning of many.

use crate::arch;
use crate::bytes::{Cursor, MappedBytes};
use crate::rule::{FrameBase, FrameRule};

/// The deepest stack of rules that a program may remember.
const DEEPEST: usize = 8;

/// Where a register of the caller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saved {
    /// In the same register.
    Same,
    /// At this distance from the caller's frame.
    At(i64),
    /// Nowhere: there is no caller.
    Nowhere,
    /// In another register, or at an address that an expression computes.
    Elsewhere,
}

/// The rules at one instruction.
#[derive(Debug, Clone, Copy)]
struct Rules {
    /// The register and the distance; `None`: an expression.
    base: Option<(u64, i64)>,
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
    program: Cursor<'a>,
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
    fn read(memory: MappedBytes<'a>, address: u64) -> Option<Self> {
        let mut head = memory.at(address)?;
        let length = head.word()?;
        let mut rest = head.split(length.into())?;
        let (id, version) = (rest.word()?, rest.byte()?);
        if id != 0 || !matches!(version, 1 | 3) {
            return None;
        }
        let augmentation = rest.text()?;
        let (code_unit, data_unit) = (rest.unsigned()?, rest.signed()?);
        let return_register = if version == 1 { u64::from(rest.byte()?) } else { rest.unsigned()? };
        let mut common =
            Self { code_unit, data_unit, return_register, encoding: 0, is_augmented: false, program: rest };
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
                    // A signal's frame (`S`) leads to code that was interrupted, not to a caller;
                    // there is no rule for anything else either.
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
    pub(crate) fn read(memory: MappedBytes<'a>, address: u64) -> Option<Self> {
        let mut head = memory.at(address)?;
        let length = head.word()?;
        let mut rest = head.split(length.into())?;
        let place = rest.address();
        let common = Common::read(memory, place.checked_sub(rest.word().filter(|&back| back != 0)?.into())?)?;
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
    pub(crate) fn rows(&self, mut give: impl FnMut(u64, FrameRule) -> Option<()>) -> Option<()> {
        let mut run = Run {
            common: &self.common,
            at: self.start,
            end: self.end,
            rules: Rules { base: None, frame: Saved::Same, returns_to: Saved::Same },
            first: None,
            remembered: Vec::new(),
            give: &mut give,
        };
        let mut ended = run.follow(self.common.program)?;
        if ended == Ended::Whole {
            run.first = Some(run.rules);
            ended = run.follow(self.program)?;
        }
        let (at, rule) = (run.at, if ended == Ended::Whole { run.rules.rule() } else { FrameRule::Unknown });
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

impl<G: FnMut(u64, FrameRule) -> Option<()>> Run<'_, '_, G> {
    fn follow(&mut self, mut program: Cursor<'_>) -> Option<Ended> {
        while !program.is_at_end() {
            match self.instruction(&mut program) {
                Some(Effect::Changed) => {}
                Some(Effect::Advanced(to)) if to >= self.at => {
                    if to > self.at && self.at < self.end {
                        (self.give)(self.at, self.rules.rule())?;
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
                self.rules.base = Some((register, i64::try_from(program.unsigned()?).ok()?));
            }
            (_, 0x0d) => self.rules.base = Some((program.unsigned()?, self.rules.base?.1)),
            (_, 0x0e) => {
                let distance = i64::try_from(program.unsigned()?).ok()?;
                self.rules.base = Some((self.rules.base?.0, distance));
            }
            (_, 0x0f) => {
                let length = program.unsigned()?;
                program.skip(length)?;
                self.rules.base = None;
            }
            // Expressions for a place, or for a value.
            (_, 0x10 | 0x16) => {
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
                self.rules.base = Some((register, program.signed()?.wrapping_mul(data_unit)));
            }
            (_, 0x13) => {
                let distance = program.signed()?.wrapping_mul(data_unit);
                self.rules.base = Some((self.rules.base?.0, distance));
            }
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

impl Rules {
    fn rule(&self) -> FrameRule {
        if self.returns_to == Saved::Nowhere {
            return FrameRule::Outermost;
        }
        self.caller().unwrap_or(FrameRule::Unknown)
    }

    fn caller(&self) -> Option<FrameRule> {
        let (register, distance) = self.base?;
        let base = match register {
            arch::STACK => FrameBase::Stack,
            arch::FRAME => FrameBase::Frame,
            _ => return None,
        };
        let place = |at: i64| i32::try_from(at).ok();
        let Saved::At(returns_to) = self.returns_to else { return None };
        let frame = match self.frame {
            Saved::Same => None,
            Saved::At(at) => Some(place(at)?),
            Saved::Nowhere | Saved::Elsewhere => return None,
        };
        let (distance, returns_to) = (place(distance)?, place(returns_to)?);
        Some(FrameRule::Caller { base, distance, returns_to, frame })
    }
}
