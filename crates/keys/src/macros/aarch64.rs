//! Sites on arm64: `nop` and `b`, four bytes each.
//!
//! # Site metadata, version 1
//!
//! As on x86-64 (`x86_64.rs`), but for the key: data cannot refer to the global offset table here,
//! so each site has a slot of its own, which the dynamic linker fills with the key's address. It is
//! tied to the site's label as the entry is.
//!
//! # Safety
//!
//! Only `crate::text` changes a site's instruction, and only into its twin.
#![allow(unsafe_code)]

/// One site. Not for use by hand: see [`likely!`](crate::likely) and
/// [`unlikely!`](crate::unlikely).
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_site {
    ($key:path, branch = $branch:literal) => {{
        // The labels are made unique by `\+`; the lint cannot see that.
        #[allow(named_asm_labels, unsafe_code, unused_unsafe)]
        let taken: bool = 'site: {
            // SAFETY: the block touches no memory, no register and no flag; both ways out are
            // Rust's own.
            unsafe {
                ::core::arch::asm!(
                    ".ifndef .Ldormouse_v1",
                    ".set .Ldormouse_v1, 1",
                    ".macro dormouse_site_v1 target, key, flags",
                    ".Ldormouse_site_v1_\\+:",
                    // Bit 0: branch, bit 1: initial state. They differ: assembled as a jump.
                    ".if (\\flags ^ (\\flags >> 1)) & 1",
                    "b \\target",
                    ".else",
                    "nop",
                    ".endif",
                    ".reloc .Ldormouse_site_v1_\\+, R_AARCH64_NONE, \\key",
                    ".pushsection dormouse_sites_v1,\"ao\",@progbits,.Ldormouse_site_v1_\\+",
                    ".balign 4",
                    ".long .Ldormouse_site_v1_\\+ - .",
                    ".long \\target - .",
                    ".long .Ldormouse_slot_v1_\\+ - .",
                    ".long \\flags",
                    ".popsection",
                    ".pushsection .data.rel.ro.dormouse_slots_v1,\"awo\",@progbits,.Ldormouse_site_v1_\\+",
                    ".balign 8",
                    ".Ldormouse_slot_v1_\\+:",
                    ".quad \\key",
                    ".popsection",
                    ".endm",
                    ".weak __start_dormouse_sites_v1",
                    ".hidden __start_dormouse_sites_v1",
                    ".weak __stop_dormouse_sites_v1",
                    ".hidden __stop_dormouse_sites_v1",
                    ".pushsection .data.dormouse_object_v1,\"awG\",@progbits,dormouse_object_v1,comdat",
                    ".weak dormouse_object_v1",
                    ".hidden dormouse_object_v1",
                    ".balign 8",
                    "dormouse_object_v1:",
                    ".quad 40",
                    ".quad __start_dormouse_sites_v1",
                    ".quad __stop_dormouse_sites_v1",
                    ".quad 0",
                    ".quad 1",
                    ".popsection",
                    ".pushsection .text.dormouse_register_v1,\"axG\",@progbits,dormouse_object_v1,comdat",
                    // `bti c`: constructors are called by a register.
                    ".Ldormouse_register_v1:",
                    "hint #34",
                    "adrp x0, dormouse_object_v1",
                    "add x0, x0, :lo12:dormouse_object_v1",
                    "b {register}",
                    ".Ldormouse_unregister_v1:",
                    "hint #34",
                    "adrp x0, dormouse_object_v1",
                    "add x0, x0, :lo12:dormouse_object_v1",
                    "b {unregister}",
                    ".popsection",
                    ".pushsection .init_array.00100,\"awG\",@init_array,dormouse_object_v1,comdat",
                    ".balign 8",
                    ".quad .Ldormouse_register_v1",
                    ".popsection",
                    ".pushsection .fini_array.00100,\"awG\",@fini_array,dormouse_object_v1,comdat",
                    ".balign 8",
                    ".quad .Ldormouse_unregister_v1",
                    ".popsection",
                    ".endif",
                    "dormouse_site_v1 {target}, {key}, {flags}",
                    target = label { break 'site !$branch },
                    key = sym $key,
                    flags = const { $crate::macros::flags(&raw const $key, $branch) },
                    register = sym $crate::macros::register,
                    unregister = sym $crate::macros::unregister,
                    options(nomem, nostack, preserves_flags),
                )
            };
            $branch
        };
        taken
    }};
}
