//! What a site is made of. Each architecture exports the same list: [`PATCHING`], the site macro
//! `__dormouse_site!`, and for those that patch `LENGTH`, `Form` and `encode`.

#[cfg(dormouse_patching)]
mod x86_64;
#[cfg(dormouse_patching)]
pub use x86_64::PATCHING;
#[cfg(dormouse_patching)]
pub(crate) use x86_64::{Form, LENGTH, encode};

#[cfg(not(dormouse_patching))]
mod portable;
#[cfg(not(dormouse_patching))]
pub use portable::PATCHING;
