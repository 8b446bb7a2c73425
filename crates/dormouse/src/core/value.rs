//! The types that a probe's field can have. Recording a value allocates nothing.

use std::borrow::Cow;
use std::time::Duration;

use crate::core::record::Writer;

/// A type that a probe can record. Record other types as `?value` (`Debug`) or `%value`
/// (`Display`).
///
/// ```
/// use dormouse::Value;
/// use dormouse::record::Writer;
///
/// struct Tea {
///     cups: u32,
/// }
///
/// impl Value for Tea {
///     fn record(&self, into: &mut Writer) {
///         into.unsigned(self.cups.into());
///     }
/// }
///
/// dormouse::probe!("tea.poured", tea = Tea { cups: 2 });
/// ```
pub trait Value {
    /// Appends the value to a record. Must not allocate, lock or block.
    fn record(&self, into: &mut Writer);
}

macro_rules! values {
    ($($how:ident as $wide:ty: $($type:ty),+;)+) => {
        $($(
            impl Value for $type {
                #[inline]
                fn record(&self, into: &mut Writer) {
                    into.$how(*self as $wide);
                }
            }
        )+)+
    };
}

values! {
    signed as i64: i8, i16, i32, i64, isize;
    unsigned as u64: u8, u16, u32, u64, usize;
    float as f64: f32, f64;
    boolean as bool: bool;
}

macro_rules! texts {
    ($($type:ty),+) => {
        $(
            impl Value for $type {
                fn record(&self, into: &mut Writer) {
                    into.text(self);
                }
            }
        )+
    };
}

texts!(str, String, Cow<'_, str>);

impl Value for char {
    fn record(&self, into: &mut Writer) {
        into.text(self.encode_utf8(&mut [0; 4]));
    }
}

/// In nanoseconds, at most `u64::MAX` of them.
impl Value for Duration {
    fn record(&self, into: &mut Writer) {
        into.unsigned(u64::try_from(self.as_nanos()).unwrap_or(u64::MAX));
    }
}

impl<T: Value> Value for Option<T> {
    fn record(&self, into: &mut Writer) {
        match self {
            Some(value) => value.record(into),
            None => into.nothing(),
        }
    }
}

macro_rules! pointers {
    ($($type:ty),+) => {
        $(
            impl<T: Value + ?Sized> Value for $type {
                fn record(&self, into: &mut Writer) {
                    (**self).record(into);
                }
            }
        )+
    };
}

pointers!(&T, &mut T, Box<T>);
