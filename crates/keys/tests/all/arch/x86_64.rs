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
