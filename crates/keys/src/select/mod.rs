//! Choosing keys by name: a list of globs, some of them negated.

mod glob;

use glob::GlobSet;

use dormouse_sys::likeness;

use crate::Error;
use crate::key::Key;
use crate::list::try_list;
use crate::registry::{self, KeyUse};

/// How the names of the library's own keys begin.
const OWN: &str = "dormouse.";

/// A list of globs: `"db.*,!db.noisy"`.
///
/// A name is selected if one of the plain globs matches it and none of the negated ones (`!`) does;
/// a list of negated globs alone selects everything else. The order does not matter. `*` matches
/// any characters including dots, `?` one character, `[a-z]` one character of a class, `{a,b}` one
/// of the alternatives; braces without a comma are themselves, as in the route `/users/{id}`; `\`
/// takes the next character literally.
///
/// `src/main.rs:77`, a file and a line without wildcards, also selects the keys that were defined
/// there. The file may be shortened to its last components.
///
/// Keys whose names begin with `dormouse.` are this library's own. Only globs that begin with
/// `dormouse.` select them.
#[derive(Debug, Clone)]
pub struct Selector {
    plain: GlobSet,
    own: GlobSet,
    negated: GlobSet,
    /// Places that are named, and whether to take them.
    places: Vec<(Place, bool)>,
    text: String,
}

/// A line of a file.
#[derive(Debug, Clone)]
struct Place {
    file: String,
    line: u32,
}

/// Why a list of globs does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectorError {
    /// Nothing between two commas, or nothing at all.
    #[error(
        "empty glob in `{list}`: write one or more globs with single commas in between, as `db.*,!db.noisy`"
    )]
    Empty {
        /// The whole list.
        list: String,
    },
    /// A glob that does not parse.
    #[error("malformed glob `{glob}`: {reason}")]
    Malformed {
        /// The glob.
        glob: String,
        /// The fault in it.
        reason: String,
    },
}

impl Selector {
    /// Parses a list of globs.
    pub fn parse(list: &str) -> Result<Self, SelectorError> {
        let [mut plain, mut own, mut negated] = std::array::from_fn(|_| GlobSet::default());
        let (mut places, mut only_negated) = (Vec::new(), true);
        for item in split(list) {
            let item = item.trim();
            let (glob, is_plain) = item.strip_prefix('!').map_or((item, true), |glob| (glob.trim(), false));
            only_negated &= !is_plain;
            if glob.is_empty() {
                return Err(SelectorError::Empty { list: list.to_owned() });
            }
            let set = match is_plain {
                false => &mut negated,
                true if glob.starts_with(OWN) => &mut own,
                true => &mut plain,
            };
            set.add(glob).map_err(|why| malformed(glob, why))?;
            places.extend(Place::parse(glob).map(|place| (place, is_plain)));
        }
        if only_negated {
            plain.add("*").map_err(|why| malformed("*", why))?;
        }
        Ok(Self { plain, own, negated, places, text: list.to_owned() })
    }

    /// Whether a key of this name, which was defined at this line of this file, is selected.
    pub fn matches_at(&self, name: &str, file: &str, line: u32) -> bool {
        self.takes(name, self.told_of(file, line))
    }

    /// Whether one of the plain globs, without wildcards, is the key's name or the place where it
    /// was defined.
    pub fn names(&self, key: &Key) -> bool {
        let is_name = |glob: &str| glob.trim() == key.name();
        split(&self.text).into_iter().any(is_name) || self.told_of(key.file(), key.line()) == Some(true)
    }

    /// The word of the places on keys that were defined there: to take them, to leave them, or
    /// none.
    fn told_of(&self, file: &str, line: u32) -> Option<bool> {
        // One that leaves them comes first.
        self.places.iter().filter(|(place, _)| place.is_at(file, line)).map(|(_, takes)| *takes).min()
    }

    /// Whether a name is selected, with the word of the places on its key.
    fn takes(&self, name: &str, told: Option<bool>) -> bool {
        let by_glob = if name.starts_with(OWN) {
            self.own.matches(name)
        } else {
            told == Some(true) || self.plain.matches(name)
        };
        by_glob && told != Some(false) && !self.negated.matches(name)
    }

    /// The selected keys. Calls [`Selector::try_keys`]; empty where that fails.
    pub fn keys(&self) -> Vec<KeyUse> {
        self.try_keys().unwrap_or_default()
    }

    /// The selected keys, sorted by name. The objects that contain them stay loaded from now on.
    ///
    /// # Errors
    ///
    /// See [`try_list`].
    pub fn try_keys(&self) -> Result<Vec<KeyUse>, Error> {
        // Globs are matched outside of the patch lock; a place is compared with few bytes.
        let look = |key: &Key| (key.name().to_owned(), self.told_of(key.file(), key.line()));
        registry::select(look, |(name, told)| self.takes(name, *told))
    }

    /// The list of globs as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl Place {
    /// The place that a glob without wildcards may name.
    fn parse(glob: &str) -> Option<Self> {
        let (file, line) = glob.rsplit_once(':')?;
        let is_plain = !file.is_empty() && !file.contains(['*', '?', '[', ']', '{', '}', '\\']);
        Some(Self { file: file.to_owned(), line: line.parse().ok().filter(|_| is_plain)? })
    }

    fn is_at(&self, file: &str, line: u32) -> bool {
        let above = file.strip_suffix(self.file.as_str()).filter(|_| line == self.line);
        above.is_some_and(|above| above.is_empty() || above.ends_with('/') || self.file.starts_with('/'))
    }
}

fn malformed(glob: &str, reason: String) -> SelectorError {
    SelectorError::Malformed { glob: glob.chars().take(64).collect(), reason }
}

/// Splits at commas outside of braces, brackets and escapes.
fn split(list: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut from, mut depth, mut escaped) = (0, 0usize, false);
    for (at, c) in list.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[from..]);
    parts
}

/// Names of keys that resemble a list of globs that matched nothing, the nearest first.
pub fn near(globs: &str, at_most: usize) -> Vec<String> {
    // A list that is refused is no help.
    let mut names = try_list(|used| used.key.name().to_owned()).unwrap_or_default();
    names.dedup();
    near_among(globs, names, at_most)
}

/// The names that resemble a list of globs which matched none of them, the nearest first.
pub fn near_among<N: AsRef<str> + Ord>(
    globs: &str,
    names: impl IntoIterator<Item = N>,
    at_most: usize,
) -> Vec<N> {
    let wanted: Vec<String> = split(globs)
        .into_iter()
        .map(|glob| glob.trim().trim_start_matches('!').replace(['*', '?'], ""))
        .filter(|glob| !glob.is_empty())
        .collect();
    let mut scored: Vec<(f64, N)> = names
        .into_iter()
        .filter_map(|name| {
            let score = wanted.iter().map(|w| likeness(w, name.as_ref())).fold(0.0, f64::max);
            (score > 0.5).then_some((score, name))
        })
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    scored.into_iter().map(|(_, name)| name).take(at_most).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn matching(list: &str) -> Vec<&'static str> {
        let selector = Selector::parse(list).unwrap();
        ["db.query", "db.noisy", "http.get", "http.post"]
            .into_iter()
            .filter(|n| selector.takes(n, None))
            .collect()
    }

    #[test]
    fn negated_globs_are_subtracted() {
        for (list, expected) in [
            ("*", &["db.query", "db.noisy", "http.get", "http.post"][..]),
            ("db.*", &["db.query", "db.noisy"]),
            ("db.*,!db.noisy", &["db.query"]),
            ("!db.noisy , db.*", &["db.query"]),
            ("!db.*", &["http.get", "http.post"]),
            ("http.{get,post}", &["http.get", "http.post"]),
            ("*.?e*", &["http.get"]),
            ("db.query,http.get", &["db.query", "http.get"]),
            ("nothing", &[]),
        ] {
            assert_eq!(matching(list), expected, "{list}");
        }
    }

    #[test]
    fn a_file_and_line_select_a_key() {
        for (list, name, file, line, expected) in [
            ("src/main.rs:77", "shopd:77", "src/main.rs", 77, true),
            ("src/main.rs:77", "shopd:77", "crates/shopd/src/main.rs", 77, true),
            ("main.rs:77", "shopd:77", "src/main.rs", 77, true),
            ("src/main.rs:77", "shopd:7", "src/main.rs", 7, false),
            ("ain.rs:77", "shopd:77", "src/main.rs", 77, false),
            ("*.rs:77", "shopd:77", "src/main.rs", 77, false),
            ("shopd:77", "shopd:77", "src/main.rs", 77, true),
            ("shopd*,!src/main.rs:77", "shopd:77", "src/main.rs", 77, false),
            ("src/main.rs:77,!shopd*", "shopd:77", "src/main.rs", 77, false),
            ("src/alloc.rs:9", "dormouse.alloc", "src/alloc.rs", 9, false),
        ] {
            let selector = Selector::parse(list).unwrap();
            assert_eq!(selector.matches_at(name, file, line), expected, "{list}: {name} at {file}:{line}");
        }
    }

    #[test]
    fn a_key_is_named_by_name_or_place() {
        crate::static_key!(static NAMED: "select.named" = false;);
        let place = format!("{}:{}", NAMED.file(), NAMED.line());
        for (list, expected) in [
            ("select.named", true),
            ("other, select.named", true),
            (place.as_str(), true),
            ("select.*", false),
            ("!select.named", false),
        ] {
            assert_eq!(Selector::parse(list).unwrap().names(&NAMED), expected, "{list}");
        }
    }

    #[test]
    fn malformed_lists_are_refused_by_name() {
        assert!(matches!(Selector::parse(""), Err(SelectorError::Empty { .. })));
        assert!(matches!(Selector::parse("a,,b"), Err(SelectorError::Empty { .. })));
        assert!(matches!(Selector::parse("a,!"), Err(SelectorError::Empty { .. })));
        let error = Selector::parse("ok,db.[a").unwrap_err();
        assert!(error.to_string().contains("`db.[a`"), "{error}");
        assert!(Selector::parse("{a").is_err());
        let deep = format!("{}a{}", "{".repeat(8000), "}".repeat(8000));
        let small_stack = std::thread::Builder::new().stack_size(128 * 1024);
        let parsed = small_stack.spawn(move || Selector::parse(&deep).map(|_| ())).unwrap().join().unwrap();
        assert!(matches!(parsed, Err(SelectorError::Malformed { .. })));
    }
}
