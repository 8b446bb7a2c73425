//! arm64.

/// The first bytes of a sleeping site: `nop`.
pub(crate) const ASLEEP: &[u8] = &[0x1f, 0x20, 0x03, 0xd5];

/// A breakpoint, as long as a site: `brk`.
pub(crate) const BREAKPOINT: [u8; 4] = [0, 0, 0x20, 0xd4];

/// Whether batches may use the int3 protocol.
pub(crate) const HAS_INT3: bool = false;

/// A function of one `unlikely` site that lies this many instructions before a boundary (a power of
/// two); its own module, with its `KEY`.
macro_rules! placed {
    ($($name:ident: $before:literal before 1 << $boundary:literal;)*) => {
        $(pub(crate) mod $name {
            use dormouse_keys::StaticKey;

            pub(crate) static KEY: StaticKey<false> = StaticKey::new(stringify!($name), file!(), line!());

            std::arch::global_asm!(
                concat!(".pushsection .text.", stringify!($name), ",\"ax\",@progbits"),
                concat!(".p2align ", $boundary),
                concat!(".skip (1 << ", $boundary, ") - 4 * ", $before),
                concat!(".globl ", stringify!($name)),
                concat!(stringify!($name), ":"),
                concat!(".L", stringify!($name), "_site:"),
                "nop",
                "mov w0, #0",
                "ret",
                concat!(".L", stringify!($name), "_on:"),
                "mov w0, #1",
                "ret",
                concat!(".pushsection dormouse_sites_v1,\"ao\",@progbits,.L", stringify!($name), "_site"),
                ".balign 4",
                concat!(".long .L", stringify!($name), "_site - ."),
                concat!(".long .L", stringify!($name), "_on - ."),
                concat!(".long .L", stringify!($name), "_slot - ."),
                ".long 0",
                ".popsection",
                concat!(
                    ".pushsection .data.rel.ro.dormouse_slots_v1,\"awo\",@progbits,.L",
                    stringify!($name),
                    "_site"
                ),
                ".balign 8",
                concat!(".L", stringify!($name), "_slot:"),
                ".quad {key}",
                ".popsection",
                ".popsection",
                key = sym KEY,
            );

            unsafe extern "C" {
                safe fn $name() -> bool;
            }

            /// Whether the site is taken.
            pub(crate) const SITE: extern "C" fn() -> bool = $name;
        })*
    };
}

pub(crate) use placed;

/// The instruction of a uprobe: `brk #5`.
pub(crate) const UPROBE: &[u8] = &[0xa0, 0, 0x20, 0xd4];

/// The calls that open a file.
pub(crate) const OPENS: &[i64] = &[libc::SYS_openat];

/// The number of an interrupted system call.
pub(crate) fn call_number(registers: &libc::mcontext_t) -> i64 {
    registers.regs[8] as i64
}

/// Answers it.
pub(crate) fn answer_call(registers: &mut libc::mcontext_t, answer: i64) {
    registers.regs[0] = answer as u64;
}

/// The jump of a site with another target than its own; `other` is the code of its other state.
/// (`nop` has no target.)
pub(crate) fn retargeted(own: [u8; 4], other: [u8; 4]) -> [u8; 4] {
    let mut jump = if own == ASLEEP { other } else { own };
    jump[0] ^= 1;
    jump
}
