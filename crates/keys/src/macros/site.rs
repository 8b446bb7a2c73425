//! The assembler of a site, as far as it is the same on all processors. Each processor's file
//! passes its own lines to it.
//!
//! # Site metadata, version 1
//!
//! Every site leaves an entry of 16 bytes in the section `dormouse_sites_v1`
//! (`crate::object::Entry`). That holds in debug and release builds, under thin and fat LTO, with
//! any of the usual linkers, for these reasons:
//!
//! - The assembler macro is defined once per run of the assembler (`.ifndef`) and labels each of
//!   its copies by `\+`, its own count of calls. (`\@` begins at 0 in every inlined copy.)
//! - The section is tied to the site's label (`"ao"`), so the linker drops the entries of the
//!   functions that it drops.
//! - A `.reloc` that changes nothing names the key in the code itself. Without it, identical-code
//!   folding would merge two functions that differ only in their keys.
//! - The key is addressed through a word that the loader fills in, because it may lie in another
//!   object.
//! - The first site of a unit also leaves a constructor and a destructor, one for each linked
//!   object (`comdat`), that pass the bounds of the object's section to `register` and
//!   `unregister`. The bounds are weak: when no site is left, they are null. With their priority
//!   (100, the last one reserved for the implementation) the constructor runs before the object's
//!   other constructors, and the destructor after its other destructors.
//!
//! # Safety
//!
//! Only `crate::text` changes a site's instruction, and only into its twin.
#![allow(unsafe_code)]

/// One site, of these lines: the instruction, the relocation that changes nothing, the word that
/// leads to the key, what else belongs to it, and the beginning of a constructor, which is called
/// with no argument and jumps on with one.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_site_of {
    (
        $key:path,
        branch = $branch:literal,
        instruction = [$($instruction:literal)+],
        none = $none:literal,
        key = $word:literal,
        beside = [$($beside:literal)*],
        register = [$($register:literal)+],
        unregister = [$($unregister:literal)+],
        options($($option:ident),+)
    ) => {{
        // The labels are made unique by `\+`; the lint cannot see that.
        #[allow(named_asm_labels, unsafe_code, unused_unsafe)]
        let taken: bool = 'site: {
            // SAFETY: the block touches no memory, and no register but the flags, if its options do
            // not say otherwise; both ways out are Rust's own.
            unsafe {
                ::core::arch::asm!(
                    ".ifndef .Ldormouse_v1",
                    ".set .Ldormouse_v1, 1",
                    ".macro dormouse_site_v1 target, key, flags",
                    ".Ldormouse_site_v1_\\+:",
                    // Bit 0: branch, bit 1: initial state. They differ: assembled as a jump.
                    $($instruction,)+
                    $none,
                    ".pushsection dormouse_sites_v1,\"ao\",@progbits,.Ldormouse_site_v1_\\+",
                    ".balign 4",
                    ".long .Ldormouse_site_v1_\\+ - .",
                    ".long \\target - .",
                    $word,
                    ".long \\flags",
                    ".popsection",
                    $($beside,)*
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
                    ".Ldormouse_register_v1:",
                    $($register,)+
                    ".Ldormouse_unregister_v1:",
                    $($unregister,)+
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
                    options($($option),+),
                )
            };
            $branch
        };
        taken
    }};
}
