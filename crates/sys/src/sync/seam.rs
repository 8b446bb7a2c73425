//! The macros by which loom's types take the place of std's, in unit tests under `--cfg loom`.
//!
//! They expand in the crate that uses them, and only the crate under test has loom's types: the
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

/// A static; under loom, one that each execution makes anew.
#[macro_export]
macro_rules! shared {
    ($($(#[$meta:meta])* $(pub($scope:ident))? static $name:ident: $type:ty = $value:expr;)*) => {$(
        #[cfg(not(all(test, loom)))]
        $(#[$meta])* $(pub($scope))? static $name: $type = $value;
        #[cfg(all(test, loom))]
        loom::lazy_static! { $(#[$meta])* $(pub($scope))? static ref $name: $type = $value; }
    )*};
}

/// Constant values of which each thread has its own; under loom, each of its threads.
#[macro_export]
macro_rules! thread_values {
    ($($(#[$meta:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        #[cfg(not(all(test, loom)))]
        std::thread_local! { $($(#[$meta])* static $name: $type = const { $value };)* }
        #[cfg(all(test, loom))]
        loom::thread_local! { $($(#[$meta])* static $name: $type = $value;)* }
    };
}

/// An array whose values are constants; under loom, each is made anew.
#[macro_export]
macro_rules! array_of {
    ($value:expr; $length:expr) => {{
        #[cfg(not(all(test, loom)))]
        {
            [const { $value }; $length]
        }
        #[cfg(all(test, loom))]
        {
            std::array::from_fn::<_, { $length }, _>(|_| $value)
        }
    }};
}
