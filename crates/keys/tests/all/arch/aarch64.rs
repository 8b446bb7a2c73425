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
