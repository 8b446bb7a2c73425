//! Requests from names and values: a query, or the fields of a JSON object.
//!
//! The fields of the request's type are the names that are known; a name may also be spelled with
//! `-` in place of `_`, as on the command line. A list has a value more than once, or with commas.

use std::fmt;
use std::str::FromStr;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

use crate::exit::{Exit, Failure, Outcome};

/// Reads the request of a verb; a failure names what is wrong, and what is known.
pub(crate) fn read<T: DeserializeOwned>(verb: &str, given: &[(String, String)]) -> Outcome<T> {
    T::deserialize(Words { verb, given }).map_err(|Wrong(what)| Failure::new(Exit::Usage, what))
}

/// The names that a request knows.
#[cfg(test)]
pub(crate) fn names<T: DeserializeOwned>() -> Vec<String> {
    let known = T::deserialize(Words { verb: "", given: &[(" ".into(), String::new())] });
    let Err(Wrong(known)) = known else { return Vec::new() };
    let known = known.rsplit_once(": ").and_then(|(_, known)| known.strip_suffix(" do"));
    known.map(|known| known.split(", ").map(str::to_owned).collect()).unwrap_or_default()
}

struct Words<'a> {
    verb: &'a str,
    given: &'a [(String, String)],
}

/// The values of one name.
struct Word<'a> {
    name: &'static str,
    values: Vec<&'a str>,
}

/// One value of a list.
struct Item<'a> {
    name: &'static str,
    value: &'a str,
}

#[derive(Debug)]
struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

impl de::Error for Wrong {
    fn custom<T: fmt::Display>(what: T) -> Wrong {
        Wrong(what.to_string())
    }

    fn missing_field(name: &'static str) -> Wrong {
        Wrong(format!("{name:?} is missing"))
    }
}

impl<'de> Deserializer<'de> for Words<'_> {
    type Error = Wrong;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        let mut words: Vec<Word<'_>> = Vec::new();
        for (name, value) in self.given {
            let field = fields.iter().find(|field| **field == name.replace('-', "_"));
            let &name = field.ok_or_else(|| unknown(self.verb, name, fields))?;
            match words.iter_mut().find(|word| word.name == name) {
                Some(word) => word.values.push(value),
                None => words.push(Word { name, values: vec![value] }),
            }
        }
        visitor.visit_map(MapDeserializer::new(words.into_iter().map(|word| (word.name, word))))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Wrong> {
        Err(de::Error::custom("a request is a structure"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn unknown(verb: &str, name: &str, fields: &[&str]) -> Wrong {
    let known = match fields {
        [] => "nothing does".to_owned(),
        _ => format!("{} do", fields.join(", ").replace('_', "-")),
    };
    Wrong(format!("{:?} means nothing to {verb}: {known}", name.replace('_', "-")))
}

impl<'a> IntoDeserializer<'_, Wrong> for Word<'a> {
    type Deserializer = Word<'a>;

    fn into_deserializer(self) -> Word<'a> {
        self
    }
}

impl<'a> IntoDeserializer<'_, Wrong> for Item<'a> {
    type Deserializer = Item<'a>;

    fn into_deserializer(self) -> Item<'a> {
        self
    }
}

impl<'a> Word<'a> {
    /// The value, of which there is one.
    fn only(self) -> Result<Item<'a>, Wrong> {
        match *self.values {
            [value] => Ok(Item { name: self.name, value }),
            _ => Err(Wrong(format!("{:?} is given more than once", self.name))),
        }
    }
}

impl<'de> Deserializer<'de> for Word<'_> {
    type Error = Wrong;

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        let Word { name, values } = self;
        let items = values.iter().flat_map(|value| value.split(','));
        visitor.visit_seq(SeqDeserializer::new(items.map(|value| Item { name, value })))
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.only()?.deserialize_str(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.only()?.deserialize_bool(visitor)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.only()?.deserialize_u32(visitor)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.only()?.deserialize_u64(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        self.only()?.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct tuple tuple_struct map struct identifier ignored_any
    }
}

impl Item<'_> {
    fn invalid(&self, why: impl fmt::Display) -> Wrong {
        Wrong(format!("invalid value {:?} for {:?}: {why}", self.value, self.name))
    }

    fn number<T: FromStr<Err: fmt::Display>>(&self) -> Result<T, Wrong> {
        self.value.parse().map_err(|why| self.invalid(why))
    }
}

impl<'de> Deserializer<'de> for Item<'_> {
    type Error = Wrong;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_str(self.value).map_err(|Wrong(why)| self.invalid(why))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.value {
            "" | "1" | "true" => visitor.visit_bool(true),
            "0" | "false" => visitor.visit_bool(false),
            _ => Err(Wrong(format!("{:?} is 1 or 0", self.name))),
        }
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_u32(self.number()?).map_err(|Wrong(why)| self.invalid(why))
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_u64(self.number()?).map_err(|Wrong(why)| self.invalid(why))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        let variant: de::value::StrDeserializer<'_, Wrong> = self.value.into_deserializer();
        visitor.visit_enum(variant).map_err(|Wrong(why)| self.invalid(why))
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use serde::Deserialize;

    use super::*;
    use crate::length::Length;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Tea {
        leaves: Option<NonZero<u64>>,
        #[serde(rename = "for")]
        length: Option<Length>,
        is_hot: bool,
        cups: Vec<u32>,
        kind: Kind,
        #[serde(skip)]
        file: Option<String>,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Kind {
        #[default]
        Green,
        EarlGrey,
    }

    fn tea(given: &[(&str, &str)]) -> Result<Tea, String> {
        let given: Vec<_> = given.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        read("tea", &given).map_err(|failure| failure.to_string())
    }

    #[test]
    fn words_become_fields() {
        let all = [("leaves", "3"), ("for", "2s"), ("is-hot", ""), ("cups", "1,2"), ("cups", "3")];
        let read = tea(&[&all[..], &[("kind", "earl-grey")]].concat()).unwrap();
        assert_eq!((read.leaves.map(NonZero::get), read.cups.as_slice()), (Some(3), &[1, 2, 3][..]));
        assert_eq!((read.length.map(|length| length.0.as_secs()), read.is_hot), (Some(2), true));
        assert_eq!(read.kind, Kind::EarlGrey);
        assert_eq!(tea(&[]).unwrap(), Tea::default());
    }

    #[test]
    fn wrong_words_say_what_is_known() {
        for (given, part) in [
            (("file", "x"), "\"file\" means nothing to tea: leaves, for, is-hot, cups, kind do"),
            (("leaves", "0"), "invalid value \"0\" for \"leaves\": "),
            (("leaves", "x"), "invalid value \"x\" for \"leaves\": invalid digit"),
            (("for", "2"), "invalid value \"2\" for \"for\": no unit after 2"),
            (("is_hot", "maybe"), "\"is_hot\" is 1 or 0"),
            (("cups", "1,x"), "invalid value \"x\" for \"cups\""),
            (("kind", "mint"), "expected `green` or `earl-grey`"),
        ] {
            let wrong = tea(&[given]).unwrap_err();
            assert!(wrong.contains(part), "{given:?}: {wrong}");
        }
        assert!(tea(&[("leaves", "1"), ("leaves", "1")]).unwrap_err().contains("more than once"));
    }
}
