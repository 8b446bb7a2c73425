//! Accesses that a handler makes, beside what the processor does by itself.
//!
//! # Safety
//!
//! The unsafe code runs one instruction on memory and registers of the test.
#![allow(unsafe_code)]

use super::*;

/// Where `x0` points in the memory: all offsets of the test stay inside.
const AT: usize = 192;

/// Memory, the registers `x0` to `x5`, and `v0` and `v1`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C, align(64))]
struct Machine {
    memory: [u8; 512],
    registers: [u64; 6],
    vectors: [u128; 2],
}

impl Machine {
    /// All machines have the same values.
    fn new() -> Self {
        let memory = std::array::from_fn(|at| (at as u8).wrapping_mul(37) ^ 0x80);
        let registers = [0, 0x8182_8384_8586_8788, 0x9192_9394_9596_9798, 8, u64::MAX - 7, 0x1234];
        Self { memory, registers, vectors: [0x0102_0304 << 96 | 0xfefd, 0x7172_7374 << 64 | 0x81] }
    }

    /// `x0` points into the memory.
    fn begin(&mut self) {
        self.registers[0] = self.at();
    }

    fn at(&self) -> u64 {
        (self.memory.as_ptr().addr() + AT) as u64
    }

    /// With the address in `x0` as distance.
    fn relate(&mut self) {
        self.registers[0] = self.registers[0].wrapping_sub(self.at());
    }
}

/// A context of a handler with the registers of a machine at an instruction, and its vectors.
fn make(machine: &mut Machine, instruction: u32) -> Option<Made> {
    // SAFETY: registers that are zeros are whole.
    let mut registers: libc::mcontext_t = unsafe { std::mem::zeroed() };
    registers.regs[..6].copy_from_slice(&machine.registers);
    let vectors = Vectors { values: machine.vectors.as_mut_ptr(), are_parts: false };
    // SAFETY: the addresses are in the machine's memory.
    let made = unsafe { Access::of(instruction)?.make(&mut registers, &vectors) };
    machine.registers.copy_from_slice(&registers.regs[..6]);
    made
}

/// Runs an instruction, and returns it.
macro_rules! run {
    ($machine:expr, $code:literal) => {{
        let machine: &mut Machine = $machine;
        let at: *const u32;
        let [mut x0, mut x1, mut x2, mut x3, mut x4, mut x5] = machine.registers;
        // SAFETY: the addresses are in the machine's memory.
        unsafe {
            asm!(
                ".arch_extension lse",
                ".arch_extension rcpc",
                "ldp q0, q1, [{vectors}]",
                "adr {at}, 2f",
                concat!("2: ", $code),
                "stp q0, q1, [{vectors}]",
                at = out(reg) at,
                vectors = in(reg) machine.vectors.as_mut_ptr(),
                inout("x0") x0, inout("x1") x1, inout("x2") x2, inout("x3") x3, inout("x4") x4,
                inout("x5") x5, out("v0") _, out("v1") _, options(nostack),
            );
            machine.registers = [x0, x1, x2, x3, x4, x5];
            at.read()
        }
    }};
}

macro_rules! each {
    ($($code:literal)*) => {
        $({
            let mut real = Machine::new();
            real.begin();
            let instruction = run!(&mut real, $code);
            let mut ours = Machine::new();
            ours.begin();
            let made = make(&mut ours, instruction);
            assert!(made.is_some(), "{} is not known: {instruction:08x}", $code);
            ours.relate();
            real.relate();
            assert_eq!(ours, real, "{}", $code);
        })*
    };
}

#[test]
fn accesses_do_what_the_processor_does() {
    each!(
        "str x1, [x0]" "str w1, [x0, #4]" "strh w1, [x0, #6]" "strb w1, [x0, #7]" "str xzr, [x0, #8]"
        "stur x1, [x0, #-3]" "sturb w1, [x0, #-1]" "str x1, [x0], #8" "str x1, [x0, #-16]!" "strh w1, [x0], #-2"
        "str x1, [x0, x3]" "str w1, [x0, x3, lsl #2]" "str x1, [x0, w3, uxtw]" "str x1, [x0, w4, sxtw]"
        "strb w1, [x0, x4]" "str x1, [x0, x4, sxtx]" "sttr x1, [x0, #8]"
        "ldr x1, [x0]" "ldr w1, [x0]" "ldrh w1, [x0]" "ldrb w1, [x0]" "ldrsw x1, [x0]" "ldrsh x1, [x0]"
        "ldrsb x1, [x0]" "ldrsh w1, [x0]" "ldrsb w1, [x0]" "ldr xzr, [x0]" "ldr x1, [x0], #24" "ldr x1, [x0, #16]!"
        "ldursw x1, [x0, #-4]" "ldr x1, [x0, w4, sxtw #3]"
        "stp x1, x2, [x0]" "stp w1, w2, [x0, #-8]" "stp x1, xzr, [x0], #16" "stp x1, x2, [x0, #-32]!"
        "stnp x1, x2, [x0, #16]" "ldp x1, x2, [x0]" "ldp w1, w2, [x0], #8" "ldpsw x1, x2, [x0, #8]"
        "ldp x1, x2, [x0, #-16]!" "ldnp w1, w2, [x0]"
        "str q0, [x0]" "str d0, [x0, #8]" "str s0, [x0]" "str h0, [x0]" "str b0, [x0, #1]" "stur q1, [x0, #-5]"
        "str q0, [x0], #16" "str q1, [x0, x3]" "str q1, [x0, w3, uxtw #4]"
        "ldr q0, [x0]" "ldr d0, [x0]" "ldr s0, [x0]" "ldr h1, [x0]" "ldr b1, [x0]" "ldr q1, [x0, #-16]!"
        "stp q0, q1, [x0]" "stp d0, d1, [x0, #-16]!" "stp s0, s1, [x0], #8" "ldp q0, q1, [x0, #16]"
        "ldp d0, d1, [x0]" "ldp s1, s0, [x0]"
        "stlr x1, [x0]" "stlrb w1, [x0]" "ldar x1, [x0]" "ldarh w1, [x0]" "ldapr w1, [x0]"
        "ldadd x1, x2, [x0]" "ldaddal w1, w2, [x0]" "ldaddb w1, w2, [x0]" "ldaddalh w1, w2, [x0]" "stadd x1, [x0]"
        "ldclr x1, x2, [x0]" "ldeor x1, x2, [x0]" "ldset x1, x2, [x0]" "ldsmax x1, x2, [x0]" "ldsmin w1, w2, [x0]"
        "ldumax x1, x2, [x0]" "ldumin w1, w2, [x0]" "swpal x1, x2, [x0]" "swpb w1, w2, [x0]"
        "cas x1, x2, [x0]" "casalb w1, w2, [x0]" "cas x5, xzr, [x0]"
    );
}

#[test]
fn a_comparison_that_holds_stores() {
    let mut machine = Machine::new();
    machine.begin();
    machine.registers[1] = u64::from_le_bytes(machine.memory[AT..AT + 8].try_into().unwrap());
    let old = machine.registers[1];
    // `cas x1, x2, [x0]`
    make(&mut machine, 0xc8a1_7c02).unwrap();
    assert_eq!(machine.memory[AT..AT + 8], machine.registers[2].to_le_bytes());
    assert_eq!(machine.registers[1], old);
}

#[test]
fn a_block_is_zeroed_where_it_lies() {
    #[repr(align(256))]
    struct Block([u64; 64]);
    let mut block = Block([7; 64]);
    let mut machine = Machine::new();
    machine.registers[2] = (&raw mut block.0[32]).addr() as u64;
    // `dc zva, x2`
    let made = make(&mut machine, 0xd50b_7422).unwrap();
    assert_eq!((made.address as u64, made.is_store), (machine.registers[2], true));
    assert!(std::hint::black_box(&mut block).0[32] == 0 && block.0[31] == 7);
}

#[test]
fn a_tag_is_no_part_of_the_address() {
    let mut machine = Machine::new();
    machine.begin();
    let at = machine.at();
    machine.registers[0] |= 0xa5 << 56;
    // `str x1, [x0], #8`
    let made = make(&mut machine, 0xf800_8401).unwrap();
    assert_eq!((made.address as u64, made.is_store), (at, true));
    assert_eq!(machine.memory[AT..AT + 8], machine.registers[1].to_le_bytes());
    assert_eq!(machine.registers[0], at + 8 | 0xa5 << 56, "the program's tag stays");
}

#[test]
fn exclusive_and_unknown_accesses_are_refused() {
    for (name, instruction) in [
        ("ldxr x1, [x0]", 0xc85f_7c01),
        ("stxr w2, x1, [x0]", 0xc802_7c01),
        ("stlxrb w2, w1, [x0]", 0x0802_fc01),
        ("stxp w2, x1, x3, [x0]", 0xc822_0c01),
        ("casp x2, x3, x4, x5, [x0]", 0x4822_7c04),
        ("prfm pldl1keep, [x0]", 0xf980_0000),
        ("ldr x1, 8", 0x5800_0041),
        ("st1 {v0.16b}, [x0]", 0x4c00_7000),
        ("st1b {z0.b}, p0, [x0]", 0xe400_e000),
        ("stg x0, [x0]", 0xd920_0800),
        ("add x0, x0, x1", 0x8b01_0000),
        ("svc 0", 0xd400_0001),
    ] {
        assert_eq!(Access::of(instruction), None, "{name}");
    }
}
