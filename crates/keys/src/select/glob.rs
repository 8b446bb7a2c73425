//! Globs: parsed into the characters that they take, and matched without memory.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::vec::IntoIter;

/// How deep braces may be nested: the parser recurses, and globs come from outside.
const MAX_NESTING: usize = 8;

/// The most globs of a set that have wildcards: each of them is tried on each name.
const MAX_GLOBS: usize = 256;

/// The most names of a set to which the alternatives of braces are added: a few letters stand for
/// thousands of names, and many globs fit into a request.
const MAX_NAMES: usize = 1 << 14;

/// The most characters of a glob. Each choice among the alternatives of its braces counts as a glob
/// of its own.
const MAX_CHARACTERS: usize = 1 << 16;

/// Globs of which one has to match.
#[derive(Debug, Clone, Default)]
pub(super) struct GlobSet {
    /// The globs without wildcards.
    names: HashSet<String>,
    globs: Vec<Glob>,
}

/// A glob without braces.
type Glob = Vec<Token>;

#[derive(Debug, Clone, PartialEq)]
enum Token {
    /// This character.
    One(char),
    /// `?`
    Any,
    /// `*`
    Star,
    /// `[a-z]`: the ranges, and whether all other characters are meant.
    Class(Arc<[RangeInclusive<char>]>, bool),
}

impl GlobSet {
    /// Adds a glob, or returns what is wrong with it.
    pub(super) fn add(&mut self, glob: &str) -> Result<(), String> {
        let left = glob.chars().collect::<Vec<_>>().into_iter();
        let mut parser = Parser { left, room: MAX_CHARACTERS };
        let globs = parser.sequence(0)?;
        let has_braces = globs.len() > 1;
        for glob in globs {
            match glob.iter().map(Token::literal).collect::<Option<String>>() {
                Some(name) => {
                    self.names.insert(name);
                    if has_braces && self.names.len() > MAX_NAMES {
                        return Err(format!("it is one of more than {MAX_NAMES} names"));
                    }
                }
                None if self.globs.len() == MAX_GLOBS => {
                    return Err(format!("it is one of more than {MAX_GLOBS} globs with wildcards"));
                }
                None => self.globs.push(glob),
            }
        }
        Ok(())
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        self.names.contains(name) || self.globs.iter().any(|glob| matches(glob, name))
    }
}

/// A `*` takes as little as it can. Where the name does not go on as the glob does, the last `*`
/// takes one character more; those before it never have to.
fn matches(glob: &[Token], name: &str) -> bool {
    let (mut at, mut rest) = (0, name.chars());
    // Where the glob goes on behind the last `*`, and what of the name that one has not taken.
    let mut last = None;
    loop {
        let mut behind = rest.clone();
        match (glob.get(at), behind.next()) {
            (Some(Token::Star), _) => {
                at += 1;
                last = Some((at, rest.clone()));
            }
            (Some(token), Some(c)) if token.takes(c) => (at, rest) = (at + 1, behind),
            (None, None) => return true,
            _ => {
                let Some((from, left)) = &mut last else { return false };
                if *from == glob.len() {
                    // The `*` ends the glob.
                    return true;
                }
                if left.next().is_none() {
                    return false;
                }
                (at, rest) = (*from, left.clone());
            }
        }
    }
}

impl Token {
    fn takes(&self, c: char) -> bool {
        match self {
            Token::One(one) => *one == c,
            Token::Any | Token::Star => true,
            Token::Class(ranges, is_negated) => ranges.iter().any(|range| range.contains(&c)) != *is_negated,
        }
    }

    fn literal(&self) -> Option<char> {
        match self {
            Token::One(one) => Some(*one),
            _ => None,
        }
    }
}

struct Parser {
    /// The characters of the glob that are not read yet.
    left: IntoIter<char>,
    /// How many characters of [`MAX_CHARACTERS`] are left.
    room: usize,
}

impl Parser {
    /// Reads up to the end of the glob or, inside of braces, up to the end of an alternative.
    /// Returns one glob for each way to choose among the alternatives on the way.
    fn sequence(&mut self, depth: usize) -> Result<Vec<Glob>, String> {
        let mut globs = vec![Glob::new()];
        while let Some(&c) = self.left.as_slice().first() {
            if depth > 0 && (c == ',' || c == '}') {
                break;
            }
            self.left.next();
            let token = match c {
                '*' => Token::Star,
                '?' => Token::Any,
                '[' => self.class()?,
                '\\' => Token::One(self.left.next().ok_or("nothing stands behind the last `\\`")?),
                '{' if depth == MAX_NESTING => {
                    return Err(format!("braces are nested deeper than {MAX_NESTING}"));
                }
                '{' => {
                    let mut chosen = self.alternatives(depth + 1)?;
                    if let [alone] = &mut chosen[..] {
                        // Braces around no choice are those of a route, as `/users/{id}`.
                        alone.insert(0, Token::One('{'));
                        alone.push(Token::One('}'));
                    }
                    let length = |globs: &[Glob]| globs.iter().map(|glob| glob.len() + 1).sum::<usize>();
                    self.take(length(&globs) * chosen.len() + length(&chosen) * globs.len())?;
                    let with_each =
                        |glob: &Glob| chosen.iter().map(|end| [&glob[..], end].concat()).collect::<Vec<_>>();
                    globs = globs.iter().flat_map(with_each).collect();
                    continue;
                }
                '}' => return Err("a `}` closes nothing".to_owned()),
                c => Token::One(c),
            };
            self.take(globs.len())?;
            for glob in &mut globs {
                glob.push(token.clone());
            }
        }
        Ok(globs)
    }

    /// Reads alternatives and the brace that closes them.
    fn alternatives(&mut self, depth: usize) -> Result<Vec<Glob>, String> {
        let mut all = Vec::new();
        loop {
            all.append(&mut self.sequence(depth)?);
            match self.left.next() {
                Some('}') => return Ok(all),
                Some(_) => {}
                None => return Err("a `{` is not closed".to_owned()),
            }
        }
    }

    /// Makes room for more characters of globs.
    fn take(&mut self, characters: usize) -> Result<(), String> {
        let left = self.room.checked_sub(characters);
        self.room =
            left.ok_or_else(|| format!("its alternatives have more than {MAX_CHARACTERS} characters"))?;
        Ok(())
    }

    /// Reads a class and its `]`, which is a character of the class if it comes first.
    fn class(&mut self) -> Result<Token, String> {
        let is_negated = matches!(self.left.as_slice().first(), Some('!' | '^'));
        if is_negated {
            self.left.next();
        }
        let mut ranges = Vec::new();
        loop {
            let from = match self.left.next().ok_or("a `[` is not closed")? {
                ']' if !ranges.is_empty() => return Ok(Token::Class(ranges.into(), is_negated)),
                c => c,
            };
            let to = match self.left.as_slice() {
                ['-', to, ..] if *to != ']' => *to,
                _ => from,
            };
            if to < from {
                return Err(format!("the range `{from}-{to}` is empty"));
            }
            if to != from || self.left.as_slice().starts_with(&['-', to]) {
                self.left.by_ref().take(2).for_each(drop);
            }
            ranges.push(from..=to);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_match(glob: &str, name: &str) -> bool {
        let mut set = GlobSet::default();
        set.add(glob).unwrap_or_else(|why| panic!("{glob}: {why}"));
        set.matches(name)
    }

    #[test]
    fn wildcards_classes_and_braces_take_characters() {
        for (glob, name, expected) in [
            ("", "", true),
            ("*", "", true),
            ("*", "a.b/c", true),
            ("a*", "b", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("*ab", "aab", true),
            ("*.?e*", "http.get", true),
            ("?", "ü", true),
            ("?", "", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]]", "]", true),
            ("[a-]", "-", true),
            ("[-a]", "-", true),
            ("[a-a]-", "a-", true),
            ("[{,]", "{", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("{a,b{c,d*}}e", "bdxe", true),
            ("{a,b{c,d*}}e", "be", false),
            ("a{,.txt}", "a", true),
            ("a,b", "a,b", true),
            ("/{id}/{*rest}", "/{id}/{*rest}", true),
            ("/{id}", "/id", false),
            ("{/{a}*,b}", "/{a}/c", true),
        ] {
            assert_eq!(is_match(glob, name), expected, "{glob} on {name}");
        }
    }

    #[test]
    fn malformed_globs_are_refused_with_reasons() {
        let wide = format!("{{{}}}{{{}}}", "a,".repeat(300), "a,".repeat(300));
        let too_long = "its alternatives have more than 65536 characters";
        let deep = "{".repeat(8000);
        for (glob, expected) in [
            ("[a", "a `[` is not closed"),
            ("[]", "a `[` is not closed"),
            ("[z-a]", "the range `z-a` is empty"),
            ("{a", "a `{` is not closed"),
            ("a}", "a `}` closes nothing"),
            ("a\\", "nothing stands behind the last `\\`"),
            (&wide, too_long),
            (&"{a,b}".repeat(20), too_long),
            (&deep, "braces are nested deeper than 8"),
        ] {
            assert_eq!(GlobSet::default().add(glob), Err(expected.to_owned()), "{glob}");
        }
    }

    #[test]
    fn sets_take_many_names_and_few_globs() {
        let mut set = GlobSet::default();
        (0..10_000).for_each(|i| set.add(&format!("name.{i}")).unwrap());
        assert!(set.matches("name.9999") && !set.matches("name.10000"));
        (0..MAX_GLOBS).for_each(|i| set.add(&format!("glob.{i}.*")).unwrap());
        assert!(set.add("one.more.*").is_err());
        // Many short globs that stand for thousands of names each.
        let doubled = |i: usize| format!("{}{i}", "{a,b}".repeat(11));
        let all = (0..100).try_for_each(|i| set.add(&doubled(i)));
        assert!(all.is_err_and(|why| why.contains("more than 16384 names")));
    }

    /// The definition, which tries every length of each `*`.
    fn by_definition(glob: &[char], name: &[char]) -> bool {
        match (glob, name) {
            ([], name) => name.is_empty(),
            (['*', glob @ ..], name) => (0..=name.len()).any(|taken| by_definition(glob, &name[taken..])),
            (['?', glob @ ..], [_, name @ ..]) => by_definition(glob, name),
            ([one, glob @ ..], [c, name @ ..]) => one == c && by_definition(glob, name),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn stars_match_as_defined(glob in "[ab?*]{0,8}", name in "[ab]{0,10}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(is_match(&glob, &name), by_definition(&chars(&glob), &chars(&name)));
        }
    }
}
