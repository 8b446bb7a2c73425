//! arm64: `nop` and `b`. Each site has a slot for the address of its key.
//!
//! # Safety
//!
//! Only dormouse changes a site's instruction, and only into its twin.
#![allow(unsafe_code)]

/// One site. Not for use by hand.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_api_site {
    ($key:path, branch = $branch:literal) => {{
        // The labels are made unique by `\+`; the lint cannot see that.
        #[allow(named_asm_labels, unsafe_code, unused_unsafe)]
        let taken: bool = 'site: {
            // SAFETY: the block touches no memory, no register and no flag; both ways out are
            // Rust's own.
            unsafe {
                ::core::arch::asm!(
                    ".ifndef .Ldormouse_api_v1",
                    ".set .Ldormouse_api_v1, 1",
                    ".macro dormouse_api_site_v1 target, key, flags",
                    ".Ldormouse_api_site_v1_\\+:",
                    // Bit 0: branch, bit 1: initial state. They differ: assembled as a jump.
                    ".if (\\flags ^ (\\flags >> 1)) & 1",
                    "b \\target",
                    ".else",
                    "nop",
                    ".endif",
                    ".reloc .Ldormouse_api_site_v1_\\+, R_AARCH64_NONE, \\key",
                    ".pushsection dormouse_sites_v1,\"ao\",@progbits,.Ldormouse_api_site_v1_\\+",
                    ".balign 4",
                    ".long .Ldormouse_api_site_v1_\\+ - .",
                    ".long \\target - .",
                    ".long .Ldormouse_api_slot_v1_\\+ - .",
                    ".long \\flags",
                    ".popsection",
                    concat!(
                        ".pushsection .data.rel.ro.dormouse_slots_v1,\"awo\",@progbits,",
                        ".Ldormouse_api_site_v1_\\+"
                    ),
                    ".balign 8",
                    ".Ldormouse_api_slot_v1_\\+:",
                    ".quad \\key",
                    ".popsection",
                    ".endm",
                    ".endif",
                    "dormouse_api_site_v1 {target}, {key}, {flags}",
                    target = label { break 'site !$branch },
                    key = sym $key,
                    flags = const { $crate::macros::flags(&raw const $key, $branch) },
                    options(nomem, nostack, preserves_flags),
                )
            };
            $branch
        };
        taken
    }};
}
