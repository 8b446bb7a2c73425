//! Sites: one instruction each, in the form of `crates/keys/src/macros/x86_64.rs`, which explains
//! it. The entries lie in the same section; the constructor that passes on its bounds is dormouse's
//! own.
//!
//! # Safety
//!
//! As there: only dormouse changes a site's instruction, and only into its twin.
#![allow(unsafe_code)]

use crate::abi::StaticKey;

/// The flags of a site's entry. The parameter is a pointer, to which nothing coerces: the static
/// that a site names must be a key itself.
#[doc(hidden)]
pub const fn flags<const INITIAL: bool>(_: *const StaticKey<INITIAL>, branch: bool) -> u32 {
    branch as u32 | (INITIAL as u32) << 1
}

/// Defines static keys: `pub static NAME: "dotted.name" = false;`, with attributes and doc
/// comments.
///
/// ```
/// dormouse_api::static_key! {
///     /// Checks each page of the cache.
///     static CHECKED: "cache.checked" = false;
/// }
///
/// fn look_up() {
///     if dormouse_api::unlikely!(CHECKED) {
///         // …
///     }
/// }
/// # look_up();
/// ```
#[macro_export]
macro_rules! static_key {
    ($($(#[$meta:meta])* $vis:vis static $key:ident: $name:literal = $initial:literal;)+) => {
        $(
            $(#[$meta])*
            $vis static $key: $crate::StaticKey<$initial> =
                $crate::StaticKey::new($name, ::core::file!(), ::core::line!());
        )+
    };
}

/// Whether a key is on that usually is not: asleep, the site falls through to `false`.
///
/// Takes the path of a static [`StaticKey`](crate::StaticKey). Never fails.
#[macro_export]
macro_rules! unlikely {
    ($key:path) => {
        $crate::__dormouse_api_site!($key, branch = false)
    };
}

/// Whether a key is on that usually is: on, the site falls through to `true`.
///
/// Takes the path of a static [`StaticKey`](crate::StaticKey). Never fails.
#[macro_export]
macro_rules! likely {
    ($key:path) => {
        $crate::__dormouse_api_site!($key, branch = true)
    };
}

/// One site. Not for use by hand.
#[cfg(all(
    target_arch = "x86_64",
    target_os = "linux",
    target_pointer_width = "64",
    not(any(dormouse_fallback, dormouse_off, loom, miri))
))]
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_api_site {
    ($key:path, branch = $branch:literal) => {{
        // The labels are made unique by `\+`; the lint cannot see that.
        #[allow(named_asm_labels, unsafe_code, unused_unsafe)]
        let taken: bool = 'site: {
            // SAFETY: the block touches no memory and no register but the flags; both ways out are
            // Rust's own.
            unsafe {
                ::core::arch::asm!(
                    ".ifndef .Ldormouse_api_v1",
                    ".set .Ldormouse_api_v1, 1",
                    ".macro dormouse_api_site_v1 target, key, flags",
                    ".Ldormouse_api_site_v1_\\+:",
                    // Bit 0: branch, bit 1: initial state. They differ: assembled as a jump.
                    ".byte 0xa9 + 0x40 * ((\\flags ^ (\\flags >> 1)) & 1)",
                    ".long \\target - (.Ldormouse_api_site_v1_\\+ + 5)",
                    ".reloc .Ldormouse_api_site_v1_\\+, R_X86_64_NONE, \\key",
                    ".pushsection dormouse_sites_v1,\"ao\",@progbits,.Ldormouse_api_site_v1_\\+",
                    ".balign 4",
                    ".long .Ldormouse_api_site_v1_\\+ - .",
                    ".long \\target - .",
                    ".long \\key@GOTPCREL",
                    ".long \\flags",
                    ".popsection",
                    ".endm",
                    ".endif",
                    "dormouse_api_site_v1 {target}, {key}, {flags}",
                    target = label { break 'site !$branch },
                    key = sym $key,
                    flags = const { $crate::macros::flags(&raw const $key, $branch) },
                    // Not preserves_flags: `test` sets them.
                    options(nomem, nostack),
                )
            };
            $branch
        };
        taken
    }};
}

/// One site, where dormouse is off: the state at the start of the program.
#[cfg(dormouse_off)]
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_api_site {
    ($key:path, branch = $branch:literal) => {{
        const FLAGS: u32 = $crate::macros::flags(&raw const $key, $branch);
        FLAGS & 2 != 0
    }};
}

/// One site, where nothing switches it.
#[cfg(not(any(
    dormouse_off,
    all(
        target_arch = "x86_64",
        target_os = "linux",
        target_pointer_width = "64",
        not(any(dormouse_fallback, loom, miri))
    )
)))]
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_api_site {
    ($key:path, branch = $branch:literal) => {{
        const _: u32 = $crate::macros::flags(&raw const $key, $branch);
        $key.key().is_enabled()
    }};
}
