//! The macros by which loom's types take the place of std's, in unit tests under `--cfg loom`.
//!
//! Both expand in the crate that uses them, and only the crate under test has loom's types: the
//! statics of all others need constant ones.

/// Imports these names from `std::sync::atomic`, or from loom.
#[macro_export]
macro_rules! atomics {
    ($($name:ident),* $(,)?) => {
        #[cfg(all(test, loom))]
        pub(crate) use loom::sync::atomic::{$($name),*};
        #[cfg(not(all(test, loom)))]
        pub(crate) use std::sync::atomic::{$($name),*};
    };
}

/// A `const fn`; under loom, which has no constant atomics, a plain one.
#[macro_export]
macro_rules! const_unless_loom {
    ($(#[$attribute:meta])* $visible:vis const fn $($rest:tt)*) => {
        #[cfg(not(all(test, loom)))]
        $(#[$attribute])* $visible const fn $($rest)*
        #[cfg(all(test, loom))]
        $(#[$attribute])* $visible fn $($rest)*
    };
}
