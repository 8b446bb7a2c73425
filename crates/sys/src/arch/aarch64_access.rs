//! Accesses to memory that a handler makes in the place of the code that it has interrupted.
//!
//! The address and the values are those of the interrupted code's registers, and the results go
//! there. Each access is made by one instruction that is as atomic as the interrupted one, and at
//! least as ordered. Known are loads, stores and atomic operations of the general and of the vector
//! registers. Not known are exclusive accesses (`ldxr`, `stxr`), of which the second fails after
//! any exception, and those of several structures, of scalable vectors, and of tags.
//!
//! # References
//!
//! Arm Architecture Reference Manual, C4.1.94 "Loads and Stores".
//!
//! # Safety
//!
//! The unsafe code accesses the memory that the interrupted code would have accessed next, and the
//! frame that the kernel has made.
#![allow(unsafe_code)]

use std::arch::asm;
use std::ffi::c_void;
use std::sync::atomic::{Ordering, fence};

use super::KernelFrame;
use crate::errno::keeping_errno;
use crate::peek;
use crate::perf::is_filtered;
use crate::trap_types::Made;

/// The kind of record of the values of vector registers, and where these lie in it.
const VALUES: u32 = 0x4650_8001;
const VALUES_AT: usize = 16;
/// The size of a record of scalable vectors without values.
const NO_VECTORS: u32 = 16;
/// The bits of an address. The processor ignores those above, which programs may use as tags.
const ADDRESS: usize = (1 << 56) - 1;
/// The number of the stack pointer where it is a base, and elsewhere of the register that is zero.
const STACK_OR_ZERO: u32 = 31;

/// An access to memory, as its instruction describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Access {
    what: What,
    /// The number of bytes of one register, as a power of two.
    log: u32,
    /// The register that is loaded or stored, and the second one of a pair.
    registers: (u32, Option<u32>),
    base: u32,
    offset: Offset,
    /// The number that is added to the base for good.
    step: Option<i64>,
    is_ordered: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Store,
    Load(Extension),
    StoreVector,
    LoadVector,
    /// The operation by its number, with this register as operand; [`SWAP`], [`COMPARE`].
    Atomic(u32, u32),
    /// Zeros a block.
    Zero,
}

/// How the bits above a loaded value are filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extension {
    Zero,
    SignTo32,
    SignTo64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offset {
    Number(i64),
    /// A register, as this kind of number, shifted.
    Register(u32, u32, u32),
}

/// Atomic operations behind the eight of `ldadd` to `ldumin`.
const SWAP: u32 = 8;
const COMPARE: u32 = 9;

/// Makes the access before which code was interrupted, and has the code go on behind it. `None`: it
/// is of no known kind, and nothing was done.
///
/// # Safety
///
/// `context` is the kernel's, and the interrupted code is at an access that it may make.
pub(crate) unsafe fn make_access(context: *mut c_void) -> Option<Made> {
    // SAFETY: the caller's promise.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    let at = registers.pc as usize;
    // Code need not be readable. Under a filter the kernel is not asked.
    // SAFETY: the instruction at which the thread stands, which linkers make readable.
    let read = || unsafe { std::ptr::with_exposed_provenance::<u32>(at).read_volatile() };
    // The access may store to `errno`, so that is restored before the access, and never after it.
    let instruction =
        keeping_errno(
            || if is_filtered() { Some(read()) } else { peek::value(at, 4).map(|word| word as u32) },
        )?;
    let access = Access::of(instruction)?;
    // SAFETY: the context is in the kernel's frame.
    let vectors = unsafe { Vectors::of(context.byte_sub(KernelFrame::CONTEXT).cast()) };
    // SAFETY: the caller's promise.
    let made = unsafe { access.make(registers, &vectors) }?;
    super::go_on_at(registers, at + 4);
    Some(made)
}

/// The values of vector registers in the kernel's frame.
struct Vectors {
    values: *mut u128,
    /// Whether they are a part of longer ones.
    are_parts: bool,
}

impl Vectors {
    /// # Safety
    ///
    /// The frame is the kernel's.
    unsafe fn of(frame: *mut KernelFrame) -> Self {
        let mut found = Self { values: std::ptr::null_mut(), are_parts: false };
        // SAFETY: the caller's promise; a record has its size behind its kind.
        unsafe {
            KernelFrame::records(frame, |kind, at| match kind {
                VALUES => found.values = at.add(VALUES_AT).cast(),
                super::VECTORS => found.are_parts = at.add(4).cast::<u32>().read() > NO_VECTORS,
                _ => {}
            });
        }
        found
    }
}

impl Access {
    fn of(instruction: u32) -> Option<Self> {
        let field = |at: u32, bits: u32| instruction >> at & ((1 << bits) - 1);
        let is_set = |at: u32| field(at, 1) == 1;
        let number =
            |at: u32, bits: u32| i64::from(((field(at, bits) << (32 - bits)).cast_signed()) >> (32 - bits));
        let (size, is_vector, kind) = (field(30, 2), is_set(26), field(22, 2));
        let (first, base, second, third) = (field(0, 5), field(5, 5), field(10, 5), field(16, 5));
        if instruction & 0xffff_ffe0 == 0xd50b_7420 {
            let zero = Self::new(What::Zero, 0, first, first);
            return Some(zero);
        }
        // The kind of access, and the length of one register.
        let single = || {
            Some(match (is_vector, kind, size) {
                (true, 0 | 1, _) => (if kind == 1 { What::LoadVector } else { What::StoreVector }, size),
                (true, _, 0) => (if kind == 3 { What::LoadVector } else { What::StoreVector }, 4),
                (false, 0, _) => (What::Store, size),
                (false, 1, _) => (What::Load(Extension::Zero), size),
                (false, 2, 0..3) => (What::Load(Extension::SignTo64), size),
                (false, 3, 0..2) => (What::Load(Extension::SignTo32), size),
                _ => return None,
            })
        };
        let indexed = |way: u32, by: i64| match way {
            POST => (Offset::Number(0), Some(by)),
            PRE => (Offset::Number(by), Some(by)),
            _ => (Offset::Number(by), None),
        };
        const POST: u32 = 1;
        const PRE: u32 = 3;
        match field(24, 6) {
            // Unsigned offset.
            0b11_1001 | 0b11_1101 => {
                let (what, log) = single()?;
                let offset = Offset::Number(i64::from(field(10, 12)) << log);
                Some(Self { offset, ..Self::new(what, log, first, base) })
            }
            // Signed offset: as it is, behind, of no privilege, before.
            0b11_1000 | 0b11_1100 if !is_set(21) => {
                let (what, log) = single()?;
                let (offset, step) = indexed(field(10, 2), number(12, 9));
                Some(Self { offset, step, ..Self::new(what, log, first, base) })
            }
            // A register as offset.
            0b11_1000 | 0b11_1100 if field(10, 2) == 2 => {
                let (what, log) = single()?;
                let shift = if is_set(12) { log } else { 0 };
                let offset = Offset::Register(third, field(13, 3), shift);
                is_set(14).then_some(Self { offset, ..Self::new(what, log, first, base) })
            }
            // Atomic operations.
            0b11_1000 if field(10, 2) == 0 => match (is_set(15), field(12, 3)) {
                (false, operation) => Some(Self::new(What::Atomic(operation, third), size, first, base)),
                (true, 0) => Some(Self::new(What::Atomic(SWAP, third), size, first, base)),
                // `ldapr`.
                (true, 4) => Some(Self::ordered(What::Load(Extension::Zero), size, first, base)),
                _ => None,
            },
            // Pairs.
            0b10_1000 | 0b10_1001 | 0b10_1100 | 0b10_1101 => {
                let is_load = is_set(22);
                let (what, log) = match (is_vector, size, is_load) {
                    (true, 0..3, true) => (What::LoadVector, size + 2),
                    (true, 0..3, false) => (What::StoreVector, size + 2),
                    (false, 1, true) => (What::Load(Extension::SignTo64), 2),
                    (false, 0 | 2, true) => (What::Load(Extension::Zero), 2 + size / 2),
                    (false, 0 | 2, false) => (What::Store, 2 + size / 2),
                    _ => return None,
                };
                let (offset, step) = indexed(field(23, 2), number(15, 7) << log);
                let pair = Self::new(what, log, first, base);
                Some(Self { registers: (first, Some(second)), offset, step, ..pair })
            }
            // Ordered: a load, a store, `cas`. The others are exclusive, or `casp`.
            0b00_1000 if is_set(23) => match (is_set(21), is_set(22)) {
                (false, true) => Some(Self::ordered(What::Load(Extension::Zero), size, first, base)),
                (false, false) => Some(Self::ordered(What::Store, size, first, base)),
                (true, _) => Some(Self::new(What::Atomic(COMPARE, third), size, first, base)),
            },
            // `stlur`, `ldapur`.
            0b01_1001 if !is_set(21) && field(10, 2) == 0 => {
                let (what, log) = single()?;
                let offset = Offset::Number(number(12, 9));
                Some(Self { offset, ..Self::ordered(what, log, first, base) })
            }
            _ => None,
        }
    }

    fn new(what: What, log: u32, register: u32, base: u32) -> Self {
        let offset = Offset::Number(0);
        Self { what, log, registers: (register, None), base, offset, step: None, is_ordered: false }
    }

    fn ordered(what: What, log: u32, register: u32, base: u32) -> Self {
        Self { is_ordered: true, ..Self::new(what, log, register, base) }
    }

    /// # Safety
    ///
    /// That of [`make_access`].
    unsafe fn make(self, registers: &mut libc::mcontext_t, vectors: &Vectors) -> Option<Made> {
        let Self { what, log, registers: (first, second), base, .. } = self;
        let value = |register: u32| registers.regs.get(register as usize).copied().unwrap_or(0);
        let begin = match base {
            STACK_OR_ZERO if what != What::Zero => registers.sp,
            _ => value(base),
        };
        let offset = match self.offset {
            Offset::Number(number) => number,
            Offset::Register(register, kind, shift) => match kind {
                2 => i64::from(value(register) as u32) << shift,
                6 => i64::from(value(register) as i32) << shift,
                _ => value(register).cast_signed() << shift,
            },
        };
        let address = begin.wrapping_add_signed(offset) as usize;
        let is_of_vectors = matches!(what, What::LoadVector | What::StoreVector);
        if is_of_vectors && (vectors.values.is_null() || what == What::LoadVector && vectors.are_parts) {
            return None;
        }
        if self.is_ordered {
            // At least as ordered as the instruction, whatever is beside it.
            fence(Ordering::SeqCst);
        }
        let both = |of: &dyn Fn(u32) -> u128| [of(first), second.map_or(0, of)];
        // SAFETY: the caller's promise; there are 32 vector registers.
        unsafe {
            let vector = |register: u32| vectors.values.add(register as usize);
            match what {
                What::Store => store(address, log, second.is_some(), &both(&|it| value(it).into())),
                What::StoreVector => {
                    store(address, log, second.is_some(), &both(&|it| vector(it).read_unaligned()));
                }
                What::Load(extension) => {
                    let loaded = load(address, log, second.is_some());
                    for (register, value) in [Some(first), second].into_iter().zip(loaded) {
                        let place = register.and_then(|it| registers.regs.get_mut(it as usize));
                        place.into_iter().for_each(|it| *it = extension.of(value as u64, log));
                    }
                }
                What::LoadVector => {
                    let loaded = load(address, log, second.is_some());
                    for (register, value) in [Some(first), second].into_iter().zip(loaded) {
                        register.iter().for_each(|&it| vector(it).write_unaligned(value));
                    }
                }
                What::Atomic(operation, operand) => {
                    let (operand_value, new) = (value(operand), value(first));
                    let old = atomic(operation, log, address, operand_value, new);
                    let result = if operation == COMPARE { operand } else { first };
                    if let Some(place) = registers.regs.get_mut(result as usize) {
                        *place = old;
                    }
                }
                What::Zero => asm!("dc zva, {}", in(reg) address, options(nostack, preserves_flags)),
            }
        }
        if self.is_ordered {
            fence(Ordering::SeqCst);
        }
        if let Some(step) = self.step {
            let end = begin.wrapping_add_signed(step);
            match registers.regs.get_mut(base as usize) {
                Some(place) => *place = end,
                None => registers.sp = end,
            }
        }
        let is_store = !matches!(what, What::Load(_) | What::LoadVector);
        Some(Made { address: address & ADDRESS, is_store })
    }
}

impl Extension {
    fn of(self, value: u64, log: u32) -> u64 {
        let above = u64::BITS - (8 << log);
        let signed = (value << above).cast_signed() >> above;
        match self {
            Self::Zero => value,
            Self::SignTo32 => u64::from(signed as u32),
            Self::SignTo64 => signed.cast_unsigned(),
        }
    }
}

/// Stores the low bytes of a value, or of two.
///
/// # Safety
///
/// The memory may be written.
unsafe fn store(to: usize, log: u32, is_pair: bool, values: &[u128; 2]) {
    macro_rules! by {
        ($code:literal) => {
            // SAFETY: the caller's promise.
            unsafe {
                asm!("ldp q0, q1, [{values}]", $code, values = in(reg) values, to = in(reg) to,
                    out("v0") _, out("v1") _, options(nostack, preserves_flags));
            }
        };
    }
    match (is_pair, log) {
        (false, 0) => by!("str b0, [{to}]"),
        (false, 1) => by!("str h0, [{to}]"),
        (false, 2) => by!("str s0, [{to}]"),
        (false, 3) => by!("str d0, [{to}]"),
        (false, _) => by!("str q0, [{to}]"),
        (true, 2) => by!("stp s0, s1, [{to}]"),
        (true, 3) => by!("stp d0, d1, [{to}]"),
        (true, _) => by!("stp q0, q1, [{to}]"),
    }
}

/// Loads a value, or two, with zeros above.
///
/// # Safety
///
/// The memory may be read.
unsafe fn load(from: usize, log: u32, is_pair: bool) -> [u128; 2] {
    let mut values = [0_u128; 2];
    macro_rules! by {
        ($code:literal) => {
            // SAFETY: the caller's promise.
            unsafe {
                asm!("movi v1.2d, #0", $code, "stp q0, q1, [{values}]", values = in(reg) &raw mut values,
                    from = in(reg) from, out("v0") _, out("v1") _, options(nostack, preserves_flags));
            }
        };
    }
    match (is_pair, log) {
        (false, 0) => by!("ldr b0, [{from}]"),
        (false, 1) => by!("ldr h0, [{from}]"),
        (false, 2) => by!("ldr s0, [{from}]"),
        (false, 3) => by!("ldr d0, [{from}]"),
        (false, _) => by!("ldr q0, [{from}]"),
        (true, 2) => by!("ldp s0, s1, [{from}]"),
        (true, 3) => by!("ldp d0, d1, [{from}]"),
        (true, _) => by!("ldp q0, q1, [{from}]"),
    }
    values
}

/// Makes an atomic operation, and returns the value before it. `new` is what [`COMPARE`] stores.
///
/// # Safety
///
/// The memory may be written, and the processor has these instructions: the interrupted code is at
/// one.
unsafe fn atomic(operation: u32, log: u32, at: usize, operand: u64, new: u64) -> u64 {
    let mut old = operand;
    macro_rules! by {
        ($name:literal) => {
            by!($name, "{operand:w}, {old:w}", "{operand:x}, {old:x}")
        };
        ($name:literal, $short:literal, $long:literal) => {
            match log {
                0 => by!(@ concat!($name, "b ", $short, ", [{at}]")),
                1 => by!(@ concat!($name, "h ", $short, ", [{at}]")),
                2 => by!(@ concat!($name, " ", $short, ", [{at}]")),
                _ => by!(@ concat!($name, " ", $long, ", [{at}]")),
            }
        };
        (@ $code:expr) => {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(".arch_extension lse", $code, "/* {operand} {new} */", at = in(reg) at,
                    operand = in(reg) operand, new = in(reg) new, old = inout(reg) old,
                    options(nostack, preserves_flags));
            }
        };
    }
    match operation {
        0 => by!("ldaddal"),
        1 => by!("ldclral"),
        2 => by!("ldeoral"),
        3 => by!("ldsetal"),
        4 => by!("ldsmaxal"),
        5 => by!("ldsminal"),
        6 => by!("ldumaxal"),
        7 => by!("lduminal"),
        SWAP => by!("swpal"),
        _ => by!("casal", "{old:w}, {new:w}", "{old:x}, {new:x}"),
    }
    old
}

#[cfg(test)]
#[path = "aarch64_access_tests.rs"]
mod tests;
