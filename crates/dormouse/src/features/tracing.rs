//! The macros of the `tracing` crate, with callsites that can sleep behind static keys.
//!
//! Callsites of level INFO, DEBUG or TRACE sleep from the start: a callsite is one instruction,
//! with no level check, no filter, no arguments, until its key is switched on. Callsites of level
//! WARN or ERROR are awake from the start, so that a service that changes the import loses no
//! warning; `event!` and `span!`, whose level is an argument, sleep. Awake, a callsite is the real
//! `tracing` macro: the service's subscriber sees it and applies its own filters.
//!
//! Callsites are keys. An event is named after its module and line (`teaparty::orders:77`), a span
//! after its module and its own name (`teaparty::orders::brew`); the glob `teaparty::orders:*`
//! selects all of a module's. `DORMOUSE_ON=teaparty::*` wakes them from [`init`](crate::init) on,
//! `dormouse on` at any time; `dormouse off` switches off callsites that start awake only by their
//! whole name.
//!
//! ```
//! use dormouse::tracing::{debug, debug_span};
//!
//! fn brew(cups: u32) {
//!     let _span = debug_span!("brew", cups).entered();
//!     debug!(cups, "water is hot");
//! }
//! # brew(2);
//! ```
//!
//! # Safety
//!
//! The unsafe code asserts that the number of the attachment is this type's alone.

#[cfg(feature = "tracing-calls")]
mod calls;
#[cfg(feature = "tracing-calls")]
mod fields;

#[cfg(feature = "tracing-calls")]
pub use calls::{CallsFilter, CallsLayer, calls, carry};

pub use crate::{
    __dormouse_tracing_debug as debug, __dormouse_tracing_debug_span as debug_span,
    __dormouse_tracing_error as error, __dormouse_tracing_error_span as error_span,
    __dormouse_tracing_event as event, __dormouse_tracing_info as info,
    __dormouse_tracing_info_span as info_span, __dormouse_tracing_span as span,
    __dormouse_tracing_trace as trace, __dormouse_tracing_trace_span as trace_span,
    __dormouse_tracing_warn as warn, __dormouse_tracing_warn_span as warn_span,
};
pub use ::tracing::{Instrument, Level, Span, field};

/// Attached to the keys of tracing callsites, so that listings can recognise them.
#[derive(Debug)]
pub struct Callsite;

#[expect(unsafe_code, reason = "the number must be this type's alone")]
// SAFETY: 2 is the number of `Callsite` alone. The type has no size, so C and other copies of
// dormouse cannot disagree about its layout.
unsafe impl dormouse_keys::Attachment for Callsite {
    const KIND: u32 = 2;
}

/// An event behind a key, which starts as said and whose site is laid out for that.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_keyed_event {
    ($initial:literal, $site:ident, $real:ident, $($arg:tt)*) => {{
        static KEY: $crate::StaticKey<$initial> =
            $crate::StaticKey::new(concat!(module_path!(), ":", line!()), file!(), line!())
                .with(&$crate::tracing::Callsite);
        if $crate::$site!(KEY) {
            $crate::macros::tracing::$real!($($arg)*);
        }
    }};
}

/// A span behind a key, which starts as said; while it is off, a span that is none. As in
/// `tracing`, `target:` and `parent:` come first, then a level where the macro takes one, then the
/// name.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_keyed_span {
    ($key:tt, $real:ident, target: $target:expr, parent: $parent:expr, $($rest:tt)*) => {
        $crate::__dormouse_tracing_keyed_span!(@$key $real [target: $target, parent: $parent,] $($rest)*)
    };
    ($key:tt, $real:ident, target: $target:expr, $($rest:tt)*) => {
        $crate::__dormouse_tracing_keyed_span!(@$key $real [target: $target,] $($rest)*)
    };
    ($key:tt, $real:ident, parent: $parent:expr, $($rest:tt)*) => {
        $crate::__dormouse_tracing_keyed_span!(@$key $real [parent: $parent,] $($rest)*)
    };
    ($key:tt, $real:ident, $($rest:tt)*) => {
        $crate::__dormouse_tracing_keyed_span!(@$key $real [] $($rest)*)
    };
    (@$key:tt span [$($first:tt)*] $level:expr, $name:literal $($rest:tt)*) => {
        $crate::__dormouse_tracing_keyed_span!(@@$key $name span!($($first)* $level, $name $($rest)*))
    };
    (@$key:tt $real:ident [$($first:tt)*] $name:literal $($rest:tt)*) => {
        $crate::__dormouse_tracing_keyed_span!(@@$key $name $real!($($first)* $name $($rest)*))
    };
    (@@($initial:literal $site:ident) $name:literal $($span:tt)*) => {{
        static KEY: $crate::StaticKey<$initial> =
            $crate::StaticKey::new(concat!(module_path!(), "::", $name), file!(), line!())
                .with(&$crate::tracing::Callsite);
        if $crate::$site!(KEY) { $crate::macros::tracing::$($span)* } else { $crate::tracing::Span::none() }
    }};
}

/// The `tracing` event of any level, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_event {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_keyed_event!(false, unlikely, event, $($arg)*) };
}

/// The `tracing` event of level TRACE, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_trace {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_keyed_event!(false, unlikely, trace, $($arg)*) };
}

/// The `tracing` event of level DEBUG, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_debug {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_keyed_event!(false, unlikely, debug, $($arg)*) };
}

/// The `tracing` event of level INFO, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_info {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_keyed_event!(false, unlikely, info, $($arg)*) };
}

/// The `tracing` event of level WARN, awake behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_warn {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_keyed_event!(true, likely, warn, $($arg)*) };
}

/// The `tracing` event of level ERROR, awake behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_error {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_keyed_event!(true, likely, error, $($arg)*) };
}

/// The `tracing` span of any level, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_span {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_keyed_span!((false unlikely), span, $($arg)*) };
}

/// The `tracing` span of level TRACE, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_trace_span {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_keyed_span!((false unlikely), trace_span, $($arg)*) };
}

/// The `tracing` span of level DEBUG, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_debug_span {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_keyed_span!((false unlikely), debug_span, $($arg)*) };
}

/// The `tracing` span of level INFO, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_info_span {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_keyed_span!((false unlikely), info_span, $($arg)*) };
}

/// The `tracing` span of level WARN, awake behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_warn_span {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_keyed_span!((true likely), warn_span, $($arg)*) };
}

/// The `tracing` span of level ERROR, awake behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_error_span {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_keyed_span!((true likely), error_span, $($arg)*) };
}
