//! The text that names a variable, or a part of it.
//!
//! ```text
//! text   = [ "*" ] name { step } [ "+" number ]
//! step   = "." field | "->" field | "[" number "]"
//! field  = letters, digits and "_"; the number of a tuple's field
//! number = decimal, or hexadecimal behind "0x"
//! ```
//!
//! The name is a path in the syntax of its language, so it may have brackets, blanks and signs
//! inside `<>`, `()`, `{}`. It ends at the first step outside of these.

use super::error::StaticError;

/// Bytes of a text.
const LONGEST: usize = 4096;
/// Steps, each of which may be a walk over debug information.
const MOST_STEPS: usize = 64;

/// A text that was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Query<'t> {
    pub(super) name: &'t str,
    /// The name and its steps as they stand there: compilers make names with a `.` in them.
    pub(super) whole: &'t str,
    pub(super) steps: Vec<Step<'t>>,
    /// Bytes behind the place to which the steps lead.
    pub(super) offset: u64,
}

/// One step from a variable into it, or along a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step<'t> {
    Field(&'t str),
    Element(u64),
    Follow,
}

impl<'t> Query<'t> {
    pub(super) fn parse(text: &'t str) -> Result<Self, StaticError> {
        let wrong = |what| StaticError::Syntax { text: text.chars().take(64).collect(), what };
        if text.len() > LONGEST {
            return Err(wrong("it is too long"));
        }
        let trimmed = text.trim();
        let (is_followed, rest) = match trimmed.strip_prefix('*') {
            Some(rest) => (true, rest.trim_start()),
            None => (false, trimmed),
        };
        let name = &rest[..end_of_name(rest)];
        if name.is_empty() {
            return Err(wrong("it begins without a name"));
        }
        let (mut steps, mut left) = (Vec::new(), &rest[name.len()..]);
        let mut offset = 0;
        let mut whole = rest;
        while !left.is_empty() {
            if let Some(number) = left.strip_prefix('+') {
                whole = &rest[..rest.len() - left.len()];
                offset = parse_number(number.trim()).ok_or_else(|| wrong("a number follows `+`"))?;
                break;
            }
            let (step, behind) = if let Some(inner) = left.strip_prefix('[') {
                let (number, behind) = inner.split_once(']').ok_or_else(|| wrong("a `]` is missing"))?;
                let number = parse_number(number.trim()).ok_or_else(|| wrong("a number stands in `[]`"))?;
                (Step::Element(number), behind)
            } else {
                let (is_pointer, inner) = match left.strip_prefix("->") {
                    Some(inner) => (true, inner),
                    None => (false, left.strip_prefix('.').ok_or_else(|| wrong("a step is unknown"))?),
                };
                let end = inner.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(inner.len());
                if end == 0 {
                    return Err(wrong("a field follows `.` and `->`"));
                }
                if is_pointer {
                    steps.push(Step::Follow);
                }
                (Step::Field(&inner[..end]), &inner[end..])
            };
            steps.push(step);
            left = behind;
        }
        if is_followed {
            steps.push(Step::Follow);
        }
        if steps.len() > MOST_STEPS {
            return Err(wrong("it has too many steps"));
        }
        Ok(Self { name: name.trim_end(), whole: whole.trim_end(), steps, offset })
    }
}

/// Where the first step begins.
fn end_of_name(text: &str) -> usize {
    let (mut depth, mut before) = (0_usize, ' ');
    for (at, c) in text.char_indices() {
        match c {
            '<' | '(' | '{' => depth += 1,
            // `fn() -> T` in brackets ends none.
            '>' if before == '-' && depth > 0 => {}
            '>' | ')' | '}' => depth = depth.saturating_sub(1),
            '.' | '[' | '+' if depth == 0 => return at,
            '-' if depth == 0 && text[at..].starts_with("->") => return at,
            _ => {}
        }
        before = c;
    }
    text.len()
}

fn parse_number(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (digits, radix) = digits.map_or((text, 10), |digits| (digits, 16));
    is_number(digits).then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::Step::{Element, Field, Follow};
    use super::*;

    #[test]
    fn steps_follow_the_name() {
        let query = Query::parse("tea::HOUSE.rooms[0x2].0->guests[1]+0x10").unwrap();
        assert_eq!((query.name, query.offset), ("tea::HOUSE", 16));
        assert_eq!(query.whole, "tea::HOUSE.rooms[0x2].0->guests[1]");
        let steps = [Field("rooms"), Element(2), Field("0"), Follow, Field("guests"), Element(1)];
        assert_eq!(query.steps, steps);
        assert_eq!(Query::parse("* COUNT").unwrap().steps, [Follow]);
        assert_eq!(
            Query::parse("COUNT+8").unwrap(),
            Query { name: "COUNT", whole: "COUNT", steps: vec![], offset: 8 }
        );
    }

    #[test]
    fn brackets_belong_to_the_name() {
        for name in [
            "<tea::Pot<[u8; 3]> as tea::Brew>::COUNT",
            "<fn(u8) -> u8 as T>::X",
            "tea::{closure#0}::X",
            "f(int, char...)::count",
            "(anonymous namespace)::x",
            "Pot<1.5>::y",
        ] {
            assert_eq!(Query::parse(name).unwrap().name, name);
            let text = format!("{name}.field");
            assert_eq!(Query::parse(&text).unwrap().name, name);
        }
    }

    #[test]
    fn wrong_texts_are_refused() {
        for text in [
            "", " ", "*", ".x", "+1", "x.", "x..y", "x[", "x[]", "x[y]", "x->", "x+", "x+y", "x+-1", "x[0]z",
            "x.y z",
        ] {
            assert!(matches!(Query::parse(text), Err(StaticError::Syntax { .. })), "{text}");
        }
        assert!(Query::parse(&"x".repeat(5000)).is_err());
        assert!(Query::parse(&format!("x{}", "[0]".repeat(65))).is_err());
    }
}
