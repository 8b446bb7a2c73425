//! Static keys and their sites; `arch` has the instruction of a site.

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
