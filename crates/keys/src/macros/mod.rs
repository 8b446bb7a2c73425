//! The macros that a service uses: `static_key!`, `likely!`, `unlikely!`. The last two expand to
//! `__dormouse_site!`, of which each architecture's file has one, by way of `__dormouse_site_of!`.

#[cfg(dormouse_off)]
mod off;
#[cfg(not(any(dormouse_patching, dormouse_off)))]
mod portable;
#[cfg(dormouse_patching)]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod processor;
#[cfg(dormouse_patching)]
mod site;

pub use crate::key::flags;
#[cfg(dormouse_patching)]
pub use crate::object::Object;
#[cfg(not(dormouse_patching))]
pub use crate::registry::PortableSite;
#[cfg(dormouse_patching)]
pub use crate::registry::{register, unregister};
#[cfg(not(dormouse_patching))]
pub use inventory;

/// Defines static keys: `pub static NAME: "dotted.name" = false;`, with attributes and doc
/// comments.
///
/// The key's type is [`StaticKey<INITIAL>`](crate::StaticKey): a key that starts on is another type
/// than one that starts off, because its sites are assembled awake.
#[macro_export]
macro_rules! static_key {
    ($($(#[$meta:meta])* $vis:vis static $key:ident: $name:literal = $initial:literal;)+) => {
        $(
            $(#[$meta])*
            $vis static $key: $crate::StaticKey<$initial> = $crate::StaticKey::new($name, file!(), line!());
        )+
    };
}

/// Whether a key is on that usually is not: asleep, the site falls through to `false`.
///
/// Takes the path of a static [`StaticKey`](crate::StaticKey). Never fails. A key that is no static
/// has no sites:
///
/// ```compile_fail
/// let key = dormouse_keys::StaticKey::<false>::new("on.the.stack", file!(), line!());
/// let on = dormouse_keys::unlikely!(key);
/// ```
///
/// Nor has a reference to a key:
///
/// ```compile_fail
/// dormouse_keys::static_key! { static KEY: "a.key" = false; }
/// static ALIAS: &dormouse_keys::StaticKey<false> = &KEY;
/// let on = dormouse_keys::unlikely!(ALIAS);
/// ```
#[macro_export]
macro_rules! unlikely {
    ($key:path) => {
        $crate::__dormouse_site!($key, branch = false)
    };
}

/// Whether a key is on that usually is: on, the site falls through to `true`.
///
/// Takes the path of a static [`StaticKey`](crate::StaticKey). Never fails.
#[macro_export]
macro_rules! likely {
    ($key:path) => {
        $crate::__dormouse_site!($key, branch = true)
    };
}
