//! Ids of traces and spans: digits on the wire, bytes in memory.

use std::fmt;

use dormouse_encode::hex::{IdDigits, id};
use serde::de::{Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// An id of `N` bytes. On the wire it is text, two digits for each byte. It is no `String` because
/// an answer may contain ten thousand.
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

#[cfg(feature = "schema")]
impl<const N: usize> schemars::JsonSchema for WireId<N> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Id{}", 8 * N).into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "pattern": format!("^[0-9a-f]{{{}}}$", 2 * N),
        })
    }
}

/// An id, or `None` where the text is none: an answer is not refused for one of them.
pub(crate) fn known<'de, D, const N: usize>(from: D) -> Result<Option<WireId<N>>, D::Error>
where
    D: Deserializer<'de>,
{
    struct Text<const N: usize>;

    impl<'de, const N: usize> Visitor<'de> for Text<N> {
        type Value = Option<WireId<N>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{} digits", 2 * N)
        }

        fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
            Ok(id(text.as_bytes()).map(WireId))
        }

        fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
            from.deserialize_str(self)
        }

        fn visit_none<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    }

    // Looked at where it is: an answer may have ten thousand.
    from.deserialize_option(Text)
}

#[cfg(test)]
mod tests {
    use crate::ExemplarRow;

    use super::*;

    #[test]
    fn ids_are_digits_on_the_wire() {
        let of = ExemplarRow { span_id: Some(WireId([0x4b; 8])), ..ExemplarRow::default() };
        let json = serde_json::to_string(&of).unwrap();
        assert!(json.contains(r#""span_id":"4b4b4b4b4b4b4b4b""#) && !json.contains("trace_id"), "{json}");
        assert_eq!(serde_json::from_str::<ExemplarRow>(&json).unwrap(), of);
        for wrong in ["4b4b", "4b4b4b4b4b4b4b4g", ""] {
            let read: ExemplarRow = serde_json::from_str(&json.replace("4b4b4b4b4b4b4b4b", wrong)).unwrap();
            assert_eq!(read, ExemplarRow { span_id: None, ..of.clone() }, "{wrong}");
        }
    }
}
