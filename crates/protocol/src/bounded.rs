//! Lists of which a peer may send more elements than a service has.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};

/// Reads a list, and keeps its first `MOST` elements.
pub(crate) fn at_most<'de, const MOST: usize, T, D>(from: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    from.deserialize_seq(First::<MOST, T>(PhantomData))
}

struct First<const MOST: usize, T>(PhantomData<T>);

impl<'de, const MOST: usize, T: Deserialize<'de>> Visitor<'de> for First<MOST, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while list.len() < MOST
            && let Some(element) = from.next_element()?
        {
            list.push(element);
        }
        while from.next_element::<IgnoredAny>()?.is_some() {}
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_behind_the_last_are_skipped() {
        let read = |json: &str| at_most::<2, u8, _>(&mut serde_json::Deserializer::from_str(json)).ok();
        assert_eq!(read("[]"), Some(vec![]));
        assert_eq!(read("[7]"), Some(vec![7]));
        assert_eq!(read(r#"[7,8,9,{"x":[1]}]"#), Some(vec![7, 8]));
        assert_eq!(read("[7,8,9"), None);
    }
}
