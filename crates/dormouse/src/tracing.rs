//! The macros of the `tracing` crate, with callsites that sleep behind static keys.
//!
//! Asleep, a callsite is one instruction: no level check, no filter, no arguments. Awake, it is the real
//! `tracing` macro, so the service's subscriber sees it and applies its own filters. Callsites are keys named
//! after their module (`teaparty::orders`), spans after module and span (`teaparty::orders::brew`).
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

pub use crate::{
    __dormouse_tracing_debug as debug, __dormouse_tracing_debug_span as debug_span,
    __dormouse_tracing_error as error, __dormouse_tracing_error_span as error_span,
    __dormouse_tracing_event as event, __dormouse_tracing_info as info,
    __dormouse_tracing_info_span as info_span, __dormouse_tracing_span as span,
    __dormouse_tracing_trace as trace, __dormouse_tracing_trace_span as trace_span,
    __dormouse_tracing_warn as warn, __dormouse_tracing_warn_span as warn_span,
};
pub use ::tracing::{Instrument, Level, Span, field};

/// Attached to the keys of tracing callsites, so that listings can tell them from others.
#[derive(Debug)]
pub struct Callsite;

#[expect(unsafe_code, reason = "the number must be this type's alone")]
// SAFETY: it is, and there is nothing behind it that could be laid out.
unsafe impl dormouse_keys::Attachment for Callsite {
    const KIND: u32 = 2;
}

/// A sleeping event: the real one behind a key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_awake_event {
    ($real:ident, $($arg:tt)*) => {{
        static KEY: $crate::StaticKey<false> =
            $crate::StaticKey::new(module_path!(), file!(), line!()).with(&$crate::tracing::Callsite);
        if $crate::unlikely!(KEY) {
            $crate::macros::tracing::$real!($($arg)*);
        }
    }};
}

/// A sleeping span: the real one behind a key, else a span that is none. As in `tracing`, `target:` and
/// `parent:` come first, then a level where the macro takes one, then the name.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_awake_span {
    ($real:ident, target: $target:expr, parent: $parent:expr, $($rest:tt)*) => {
        $crate::__dormouse_tracing_awake_span!(@$real [target: $target, parent: $parent,] $($rest)*)
    };
    ($real:ident, target: $target:expr, $($rest:tt)*) => {
        $crate::__dormouse_tracing_awake_span!(@$real [target: $target,] $($rest)*)
    };
    ($real:ident, parent: $parent:expr, $($rest:tt)*) => {
        $crate::__dormouse_tracing_awake_span!(@$real [parent: $parent,] $($rest)*)
    };
    ($real:ident, $($rest:tt)*) => {
        $crate::__dormouse_tracing_awake_span!(@$real [] $($rest)*)
    };
    (@span [$($first:tt)*] $level:expr, $name:literal $($rest:tt)*) => {
        $crate::__dormouse_tracing_awake_span!(@@$name span!($($first)* $level, $name $($rest)*))
    };
    (@$real:ident [$($first:tt)*] $name:literal $($rest:tt)*) => {
        $crate::__dormouse_tracing_awake_span!(@@$name $real!($($first)* $name $($rest)*))
    };
    (@@$name:literal $($span:tt)*) => {{
        static KEY: $crate::StaticKey<false> =
            $crate::StaticKey::new(concat!(module_path!(), "::", $name), file!(), line!())
                .with(&$crate::tracing::Callsite);
        if $crate::unlikely!(KEY) { $crate::macros::tracing::$($span)* } else { $crate::tracing::Span::none() }
    }};
}

/// The `tracing` event of any level, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_event {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_awake_event!(event, $($arg)*) };
}

/// The `tracing` event of level TRACE, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_trace {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_awake_event!(trace, $($arg)*) };
}

/// The `tracing` event of level DEBUG, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_debug {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_awake_event!(debug, $($arg)*) };
}

/// The `tracing` event of level INFO, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_info {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_awake_event!(info, $($arg)*) };
}

/// The `tracing` event of level WARN, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_warn {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_awake_event!(warn, $($arg)*) };
}

/// The `tracing` event of level ERROR, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_error {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_awake_event!(error, $($arg)*) };
}

/// The `tracing` span of any level, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_span {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_awake_span!(span, $($arg)*) };
}

/// The `tracing` span of level TRACE, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_trace_span {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_awake_span!(trace_span, $($arg)*) };
}

/// The `tracing` span of level DEBUG, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_debug_span {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_awake_span!(debug_span, $($arg)*) };
}

/// The `tracing` span of level INFO, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_info_span {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_awake_span!(info_span, $($arg)*) };
}

/// The `tracing` span of level WARN, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_warn_span {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_awake_span!(warn_span, $($arg)*) };
}

/// The `tracing` span of level ERROR, asleep behind a static key.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_tracing_error_span {
    ($($arg:tt)*) => { $crate::__dormouse_tracing_awake_span!(error_span, $($arg)*) };
}
