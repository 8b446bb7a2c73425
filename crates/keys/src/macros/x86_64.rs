//! Sites on x86-64: `test eax, imm32` and `jmp rel32`, five bytes each, equal except for the first.
//! The key is addressed through the global offset table.

/// One site. Not for use by hand: see [`likely!`](crate::likely) and
/// [`unlikely!`](crate::unlikely).
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_site {
    ($key:path, branch = $branch:literal) => {
        $crate::__dormouse_site_of!(
            $key,
            branch = $branch,
            instruction = [
                ".byte 0xa9 + 0x40 * ((\\flags ^ (\\flags >> 1)) & 1)"
                ".long \\target - (.Ldormouse_site_v1_\\+ + 5)"
            ],
            none = ".reloc .Ldormouse_site_v1_\\+, R_X86_64_NONE, \\key",
            key = ".long \\key@GOTPCREL",
            beside = [],
            register = ["lea rdi, [rip + dormouse_object_v1]" "jmp {register}@PLT"],
            unregister = ["lea rdi, [rip + dormouse_object_v1]" "jmp {unregister}@PLT"],
            // Not preserves_flags: `test` sets them.
            options(nomem, nostack)
        )
    };
}
