//! The seam behind which loom takes std's place.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64},
};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64},
};

/// A `const fn`, or under loom, which knows no constant atomics, a plain one.
macro_rules! const_fn {
    ($(#[$meta:meta])* $vis:vis const fn $($rest:tt)*) => {
        #[cfg(not(all(test, loom)))]
        $(#[$meta])* $vis const fn $($rest)*
        #[cfg(all(test, loom))]
        $(#[$meta])* $vis fn $($rest)*
    };
}

/// A static, or under loom one that every execution makes anew.
macro_rules! shared {
    ($(#[$meta:meta])* static $name:ident: $type:ty = $value:expr;) => {
        #[cfg(not(all(test, loom)))]
        $(#[$meta])* static $name: $type = $value;
        #[cfg(all(test, loom))]
        loom::lazy_static! { $(#[$meta])* static ref $name: $type = $value; }
    };
}

pub(crate) use {const_fn, shared};
