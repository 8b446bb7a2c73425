//! Probes: named places with fields.

use crate::abi::Probe;
use crate::field::ProbeValue;
use crate::host::host;

/// Records a hit of an awake [`probe!`](crate::probe).
#[doc(hidden)]
#[cold]
#[inline(never)]
pub fn record(probe: &'static Probe, values: &[ProbeValue<'_>]) {
    if let Some(host) = host() {
        (host.record)(probe, values);
    }
}

/// A probe: a named place with fields, asleep behind a static key.
///
/// ```
/// # let (cups, kind, order, table) = (2, "green", Some(7), "window");
/// dormouse_api::probe!("brew.step", cups = cups, kind, order = ?order, where_to = %table);
/// ```
///
/// A field is `name = value` for a [`ProbeField`](crate::ProbeField) (numbers, booleans, text),
/// `name = ?value` for its `Debug`, `name = %value` for its `Display`; `name` alone stands for
/// `name = name`, also with `?` and `%`.
///
/// # Cost
///
/// Asleep one instruction; the fields are not evaluated. Awake, what a probe of dormouse costs.
#[macro_export]
macro_rules! probe {
    ($name:expr $(, $($fields:tt)*)?) => {{
        $crate::__dormouse_api_fields!($name, [] [] $($($fields)*)?)
    }};
}

/// Collects `[names] [(how, value)]` and then lays down the site.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_api_fields {
    // All collected.
    ($name:expr, [$($field:ident)*] [$(($how:ident $value:expr))*] $(,)?) => {{
        // Items of a macro are visible to the fields: these names are nobody else's.
        static __DORMOUSE_PROBE: $crate::Probe =
            $crate::Probe::new(::core::concat!("" $(, ",", ::core::stringify!($field))*));
        static __DORMOUSE_KEY: $crate::StaticKey<false> =
            $crate::StaticKey::new($name, ::core::file!(), ::core::line!()).with(&__DORMOUSE_PROBE);
        if $crate::unlikely!(__DORMOUSE_KEY) {
            $crate::macros::record(
                &__DORMOUSE_PROBE,
                &[$($crate::__dormouse_api_value!($how $value)),*],
            );
        }
    }};
    // `name = ?value`, `name = %value`, `name = value`.
    ($name:expr, [$($n:ident)*] [$($v:tt)*] $field:ident = ?$value:expr $(, $($rest:tt)*)?) => {
        $crate::__dormouse_api_fields!($name, [$($n)* $field] [$($v)* (debug $value)] $($($rest)*)?)
    };
    ($name:expr, [$($n:ident)*] [$($v:tt)*] $field:ident = %$value:expr $(, $($rest:tt)*)?) => {
        $crate::__dormouse_api_fields!($name, [$($n)* $field] [$($v)* (display $value)] $($($rest)*)?)
    };
    ($name:expr, [$($n:ident)*] [$($v:tt)*] $field:ident = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__dormouse_api_fields!($name, [$($n)* $field] [$($v)* (value $value)] $($($rest)*)?)
    };
    // `?name`, `%name`, `name`.
    ($name:expr, [$($n:ident)*] [$($v:tt)*] ?$field:ident $(, $($rest:tt)*)?) => {
        $crate::__dormouse_api_fields!($name, [$($n)* $field] [$($v)* (debug $field)] $($($rest)*)?)
    };
    ($name:expr, [$($n:ident)*] [$($v:tt)*] %$field:ident $(, $($rest:tt)*)?) => {
        $crate::__dormouse_api_fields!($name, [$($n)* $field] [$($v)* (display $field)] $($($rest)*)?)
    };
    ($name:expr, [$($n:ident)*] [$($v:tt)*] $field:ident $(, $($rest:tt)*)?) => {
        $crate::__dormouse_api_fields!($name, [$($n)* $field] [$($v)* (value $field)] $($($rest)*)?)
    };
}

/// One field's value.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_api_value {
    (value $value:expr) => {
        $crate::ProbeField::value(&$value)
    };
    (debug $value:expr) => {
        $crate::ProbeValue::Formatted(::core::format_args!("{:?}", $value))
    };
    (display $value:expr) => {
        $crate::ProbeValue::Formatted(::core::format_args!("{}", $value))
    };
}
