//! x86-64.

/// The first bytes of a sleeping site.
pub(crate) const ASLEEP: &[u8] = &[0xa9];

/// A breakpoint, as long as a site.
pub(crate) const BREAKPOINT: [u8; 5] = [0xcc; 5];

/// Whether batches may use the int3 protocol.
pub(crate) const HAS_INT3: bool = true;

/// A function of one `unlikely` site whose first byte lies this many bytes before a boundary (a
/// power of two); its own module, with its `KEY`.
macro_rules! placed {
    ($($name:ident: $before:literal before 1 << $boundary:literal;)*) => {
        $(pub(crate) mod $name {
            use dormouse_keys::StaticKey;

            pub(crate) static KEY: StaticKey<false> = StaticKey::new(stringify!($name), file!(), line!());

            std::arch::global_asm!(
                concat!(".pushsection .text.", stringify!($name), ",\"ax\",@progbits"),
                concat!(".p2align ", $boundary),
                concat!(".skip (1 << ", $boundary, ") - ", $before, ", 0x90"),
                concat!(".globl ", stringify!($name)),
                concat!(stringify!($name), ":"),
                concat!(".L", stringify!($name), "_site:"),
                concat!(".byte 0xa9\n.long .L", stringify!($name), "_on - (.L", stringify!($name), "_site + 5)"),
                "xor eax, eax",
                "ret",
                concat!(".L", stringify!($name), "_on:"),
                "mov eax, 1",
                "ret",
                concat!(".pushsection dormouse_sites_v1,\"ao\",@progbits,.L", stringify!($name), "_site"),
                ".balign 4",
                concat!(".long .L", stringify!($name), "_site - ."),
                concat!(".long .L", stringify!($name), "_on - ."),
                ".long {key}@GOTPCREL",
                ".long 0",
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

/// The instruction of a uprobe: `int3`.
pub(crate) const UPROBE: &[u8] = &[0xcc];

/// The calls that open a file.
pub(crate) const OPENS: &[i64] = &[libc::SYS_open, libc::SYS_openat];

/// The number of an interrupted system call.
pub(crate) fn call_number(registers: &libc::mcontext_t) -> i64 {
    registers.gregs[libc::REG_RAX as usize]
}

/// Answers it.
pub(crate) fn answer_call(registers: &mut libc::mcontext_t, answer: i64) {
    registers.gregs[libc::REG_RAX as usize] = answer;
}

/// The instruction of a site's other state, with another target.
pub(crate) fn retargeted(_own: [u8; 5], other: [u8; 5]) -> [u8; 5] {
    let mut jump = other;
    jump[1] ^= 1;
    jump
}
