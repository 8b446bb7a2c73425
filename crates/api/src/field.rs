//! The values of a probe's fields.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;

/// A value that a probe records.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum ProbeValue<'a> {
    /// An absent value.
    Nothing,
    /// A signed integer.
    Signed(i64),
    /// An unsigned integer.
    Unsigned(u64),
    /// A floating-point number.
    Float(f64),
    /// A boolean.
    Boolean(bool),
    /// Text.
    Text(&'a str),
    /// The text of a value's `Display` or `Debug`.
    Formatted(fmt::Arguments<'a>),
}

/// A type that a field of a probe can have. Record other types as `?value` (`Debug`) or `%value`
/// (`Display`).
pub trait ProbeField {
    /// The value to record.
    fn value(&self) -> ProbeValue<'_>;
}

macro_rules! fields {
    ($($how:ident as $wide:ty: $($type:ty),+;)+) => {
        $($(
            impl ProbeField for $type {
                #[inline]
                fn value(&self) -> ProbeValue<'_> {
                    ProbeValue::$how(*self as $wide)
                }
            }
        )+)+
    };
}

fields! {
    Signed as i64: i8, i16, i32, i64, isize;
    Unsigned as u64: u8, u16, u32, u64, usize;
    Float as f64: f32, f64;
    Boolean as bool: bool;
}

macro_rules! texts {
    ($($type:ty),+) => {
        $(
            impl ProbeField for $type {
                fn value(&self) -> ProbeValue<'_> {
                    ProbeValue::Text(self)
                }
            }
        )+
    };
}

texts!(str, String, Cow<'_, str>);

macro_rules! pointers {
    ($($type:ty),+) => {
        $(
            impl<T: ProbeField + ?Sized> ProbeField for $type {
                fn value(&self) -> ProbeValue<'_> {
                    T::value(self)
                }
            }
        )+
    };
}

pointers!(&T, Box<T>);

impl<T: ProbeField> ProbeField for Option<T> {
    fn value(&self) -> ProbeValue<'_> {
        self.as_ref().map_or(ProbeValue::Nothing, ProbeField::value)
    }
}
