//! Ids of traces and spans: digits on the wire, bytes in memory.

use std::fmt;

use dormouse_sys::digits::{IdDigits, id};
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use serde::{Serialize, Serializer};

/// An id of `N` bytes, on the wire as text of two digits for each: an answer may have ten thousand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireId<const N: usize>(pub [u8; N]);

impl<const N: usize> fmt::Display for WireId<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(IdDigits::of(self.0).as_str())
    }
}

impl<const N: usize> Serialize for WireId<N> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(IdDigits::of(self.0).as_str())
    }
}

impl<'de, const N: usize> Deserialize<'de> for WireId<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Digits<const N: usize>;
        impl<const N: usize> Visitor<'_> for Digits<N> {
            type Value = WireId<N>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an id of {} digits", 2 * N)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<WireId<N>, E> {
                id(text.as_bytes()).map(WireId).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        from.deserialize_str(Digits::<N>)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_digits_on_the_wire() {
        let of = WireId([0x4b, 0xf9, 0x00, 0x0a]);
        assert_eq!(serde_json::to_string(&of).unwrap(), "\"4bf9000a\"");
        assert_eq!(of.to_string(), "4bf9000a");
        assert_eq!(serde_json::from_str::<WireId<4>>("\"4bf9000a\"").unwrap(), of);
        for wrong in ["\"4bf9000\"", "\"4bf9000g\"", "\"\"", "4"] {
            let error = serde_json::from_str::<WireId<4>>(wrong).unwrap_err().to_string();
            assert!(error.contains("an id of 8 digits"), "{error}");
        }
    }
}
