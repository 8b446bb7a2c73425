//! Choosing keys by name: a list of globs, some of them negated.

use std::time::Duration;

use globset::{Glob, GlobSet, GlobSetBuilder};

use crate::registry::{KeyUse, list, select};
use crate::{Batch, BatchReport, Error, Holder, Lease};

/// How deep braces may be nested: globs are parsed and compiled recursively, and come from outside.
const MAX_NESTING: usize = 8;

/// A list of globs: `"db.*,!db.noisy"`.
///
/// A name is selected if one of the plain globs matches it and none of the negated ones (`!`) does; a list of
/// negated globs alone selects everything else. The order does not matter. `*` matches any characters, dots
/// included, `?` one character, `[a-z]` one of a class, `{a,b}` one of some; `\` takes the next character
/// literally.
#[derive(Debug, Clone)]
pub struct Selector {
    plain: GlobSet,
    negated: GlobSet,
    text: String,
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
    /// Braces inside braces inside braces.
    #[error("braces are nested deeper than {MAX_NESTING} in `{glob}`")]
    Nested {
        /// The glob.
        glob: String,
    },
    /// A glob that does not parse.
    #[error("malformed glob `{glob}`: {reason}")]
    Malformed {
        /// The glob.
        glob: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl Selector {
    /// Parses a list of globs.
    pub fn parse(list: &str) -> Result<Self, SelectorError> {
        let mut plain = GlobSetBuilder::new();
        let mut negated = GlobSetBuilder::new();
        let mut only_negated = true;
        for item in split(list) {
            let item = item.trim();
            let negation = item.strip_prefix('!');
            only_negated &= negation.is_some();
            let glob = negation.map_or(item, str::trim);
            if nesting(glob) > MAX_NESTING {
                return Err(SelectorError::Nested { glob: glob.chars().take(64).collect() });
            }
            if glob.is_empty() {
                return Err(SelectorError::Empty { list: list.to_owned() });
            }
            let set = if negation.is_some() { &mut negated } else { &mut plain };
            set.add(Glob::new(glob).map_err(|e| malformed(glob, &e))?);
        }
        if only_negated {
            plain.add(Glob::new("*").map_err(|e| malformed("*", &e))?);
        }
        let build = |set: GlobSetBuilder| set.build().map_err(|e| malformed(list, &e));
        Ok(Self { plain: build(plain)?, negated: build(negated)?, text: list.to_owned() })
    }

    /// Whether a name is selected.
    pub fn matches(&self, name: &str) -> bool {
        self.plain.is_match(name) && !self.negated.is_match(name)
    }

    /// The keys that are selected, by name. The objects that they live in stay loaded from now on.
    pub fn keys(&self) -> Vec<KeyUse> {
        // Globs are matched outside of the patch lock.
        let mut names = list(|used| used.key.name().to_owned());
        names.retain(|name| self.matches(name));
        select(|key| names.binary_search_by(|name| name.as_str().cmp(key.name())).is_ok())
    }

    /// Takes a lease on the keys that are selected now.
    ///
    /// # Cost
    ///
    /// See [`Batch`].
    pub fn acquire(&self) -> Result<Lease, Error> {
        Lease::of(self.keys().iter().map(|k| k.key))
    }

    /// Keeps the keys that are selected now on for a time: see [`Batch::enable_for`].
    ///
    /// # Cost
    ///
    /// See [`Batch`].
    pub fn enable_for(&self, length: Duration) -> Result<BatchReport, Error> {
        let keys = self.keys();
        Batch::new().hold_all(keys.iter().map(|k| k.key), Holder::Program, length).apply()
    }

    /// The list as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

fn malformed(glob: &str, error: &globset::Error) -> SelectorError {
    SelectorError::Malformed { glob: glob.to_owned(), reason: error.kind().to_string() }
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

/// How deep the braces of a glob go, at most.
fn nesting(glob: &str) -> usize {
    let mut depth = 0usize;
    let mut deepest = 0;
    for c in glob.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// Names of keys near to what a list of globs that matched nothing may have meant, the nearest first.
pub fn near(globs: &str, at_most: usize) -> Vec<String> {
    let wanted: Vec<String> = split(globs)
        .into_iter()
        .map(|glob| glob.trim().trim_start_matches('!').replace(['*', '?'], ""))
        .filter(|glob| !glob.is_empty())
        .collect();
    let mut names = list(|used| used.key.name().to_owned());
    names.dedup();
    let mut scored: Vec<(f64, String)> = names
        .into_iter()
        .filter_map(|name| {
            let score = wanted.iter().map(|w| strsim::jaro_winkler(w, &name)).fold(0.0, f64::max);
            (score > 0.6).then_some((score, name))
        })
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    scored.into_iter().map(|(_, name)| name).take(at_most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matching(list: &str) -> Vec<&'static str> {
        let selector = Selector::parse(list).unwrap();
        ["db.query", "db.noisy", "http.get", "http.post"]
            .into_iter()
            .filter(|n| selector.matches(n))
            .collect()
    }

    #[test]
    fn lists_select_by_plain_globs_less_the_negated_ones() {
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
        assert!(matches!(parsed, Err(SelectorError::Nested { .. })));
    }
}
