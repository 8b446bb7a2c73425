//! Sites on arm64: `nop` and `b`, four bytes each.
//!
//! Data cannot refer to the global offset table here, so each site has a slot of its own, which the
//! dynamic linker fills with the key's address. It is tied to the site's label as the entry is.

/// One site. Not for use by hand: see [`likely!`](crate::likely) and
/// [`unlikely!`](crate::unlikely).
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_site {
    ($key:path, branch = $branch:literal) => {
        $crate::__dormouse_site_of!(
            $key,
            branch = $branch,
            instruction = [".if (\\flags ^ (\\flags >> 1)) & 1" "b \\target" ".else" "nop" ".endif"],
            none = ".reloc .Ldormouse_site_v1_\\+, R_AARCH64_NONE, \\key",
            key = ".long .Ldormouse_slot_v1_\\+ - .",
            beside = [
                ".pushsection .data.rel.ro.dormouse_slots_v1,\"awo\",@progbits,.Ldormouse_site_v1_\\+"
                ".balign 8"
                ".Ldormouse_slot_v1_\\+:"
                ".quad \\key"
                ".popsection"
            ],
            // `bti c`: constructors are called by a register.
            register = [
                "hint #34"
                "adrp x0, dormouse_object_v1"
                "add x0, x0, :lo12:dormouse_object_v1"
                "b {register}"
            ],
            unregister = [
                "hint #34"
                "adrp x0, dormouse_object_v1"
                "add x0, x0, :lo12:dormouse_object_v1"
                "b {unregister}"
            ],
            options(nomem, nostack, preserves_flags)
        )
    };
}
