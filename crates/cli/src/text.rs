//! Making text from others safe for a terminal.
//!
//! Names and field values come from the service, and it may have them from its own clients. A
//! terminal interprets what it is sent, so control characters never reach it raw, nor characters
//! that reorder or hide text. The same holds for JSON, which is read in terminals too; the escaped
//! strings have the same values.

use std::fmt::{self, Display, Write as _};
use std::io;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::Serialize;
use serde::de::{self, Deserializer, Visitor};
use serde_json::ser::{Formatter, Serializer};

/// Shows text with control characters escaped.
pub(crate) struct Clean<'a>(pub(crate) &'a str);

impl Display for Clean<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if is_unsafe(c) { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
        }
        Ok(())
    }
}

/// Shows text in quotes, with quotes and control characters escaped.
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if is_unsafe(c) => write!(f, "{}", c.escape_default())?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// Control characters, line ends, and characters that reorder the text around them or are
/// invisible.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// `value` as JSON on one line, fit for a terminal.
pub(crate) fn json<T: Serialize>(value: &T) -> serde_json::Result<String> {
    let mut text = Vec::with_capacity(128);
    value.serialize(&mut Serializer::with_formatter(&mut text, Escaping))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Writes what JSON need not escape and a terminal must not see as `\uXXXX`.
struct Escaping;

impl Formatter for Escaping {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|&(_, c)| is_unsafe(c)) {
            writer.write_all(&rest.as_bytes()[..at])?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = &rest[at + c.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

/// The clean text as a string.
pub(crate) fn clean(text: &str) -> String {
    Clean(text).to_string()
}

/// `1 key`, `2 keys`.
pub(crate) fn count(n: u64, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}

/// A thread's number as it is seen from here, and beside it the one in its own namespace if that is
/// another.
pub(crate) fn tid(outer: u32, inner: u32) -> String {
    if inner == outer { outer.to_string() } else { format!("{outer} ({inner})") }
}

/// A list for a sentence, cut off where it stops being read.
pub(crate) fn list<S: AsRef<str>>(names: &[S], most: usize) -> String {
    let mut text = String::new();
    for (i, name) in names.iter().take(most).enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        let _ = write!(text, "{comma}{}", Clean(name.as_ref()));
    }
    if names.len() > most {
        let _ = write!(text, " and {} more", names.len() - most);
    }
    text
}

/// Has serde read types as clap does, by [`FromStr`].
macro_rules! read_by_text {
    ($($read:ty),*) => {
        $(
            impl<'de> serde::Deserialize<'de> for $read {
                fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                    crate::text::by_text(from)
                }
            }
        )*
    };
}
pub(crate) use read_by_text;

/// Reads a value from a text.
pub(crate) fn by_text<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    struct ByText<T>(PhantomData<T>);

    impl<T: FromStr<Err: Display>> Visitor<'_> for ByText<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }

    from.deserialize_str(ByText(PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_never_reach_the_terminal() {
        assert_eq!(clean("a\x1b[31mb\nc\u{202e}d"), "a\\u{1b}[31mb\\nc\\u{202e}d");
        assert_eq!(clean("GET /menü"), "GET /menü");
        assert_eq!(Quoted("say \"hi\"\t").to_string(), "\"say \\\"hi\\\"\\t\"");
    }

    #[test]
    fn json_hides_orders_to_terminals() {
        let orders =
            "\u{7f}\u{9b}31m\u{ad}\u{61c}\u{200b}\u{200f}\u{2028}\u{2029}\u{202e}\u{2066}\u{feff}\u{e0041}";
        let value = serde_json::json!({ orders: [orders, "GET /menü \" \n 茶 🫖"] });
        let text = json(&value).unwrap();
        assert!(!text.chars().any(is_unsafe), "{text:?}");
        assert!(text.contains("\\u009b31m") && text.contains("\\udb40\\udc41"), "{text}");
        assert!(text.contains("GET /menü \\\" \\n 茶 🫖"), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        assert!(!clean(orders).chars().any(is_unsafe) && !Quoted(orders).to_string().chars().any(is_unsafe));
    }

    #[test]
    fn a_long_list_is_cut_off() {
        assert_eq!(list(&["a", "b", "c"], 3), "a, b, c");
        assert_eq!(list(&["a", "b", "c"], 1), "a and 2 more");
        assert_eq!(list::<&str>(&[], 3), "");
    }
}
