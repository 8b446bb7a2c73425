//! Names in the form of linkers, and in the form of the source.
//!
//! A symbol of Rust or C++ is demangled, without the hash. Compilers append words after a `.` when
//! they make several variables of one (`count.0`, `COUNT.llvm.17`): the name in the source is the
//! one before. For a variable inside of a function of C, some put the function before it
//! (`brew.count`). A function of C++ has its name with its parameters and without.
//!
//! Demangling takes a microsecond, and files have a hundred thousand symbols, so a symbol is
//! demangled only if it contains the last word of the wanted name, which no mangling changes.

use std::fmt::Write as _;

use cpp_demangle::{DemangleOptions, Symbol};
use memchr::memmem::Finder;

use crate::symbols::demangle::bounded;

/// Names that are like a wanted one.
const MOST_NEAR: usize = 3;
/// How like they are at least, from 0 to 1.
const LEAST_LIKE: f64 = 0.85;

/// Words that compilers put behind names, besides numbers.
const WORDS: [&str; 5] = ["llvm", "lto_priv", "body", "b", ""];

/// A name that somebody looks for.
pub(super) struct Wanted<'t> {
    name: &'t str,
    last_word: Option<Finder<'t>>,
}

/// How a symbol's name fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    /// The wanted name is the end of the full name: `HOUSE` or `tea::HOUSE` for
    /// `green::tea::HOUSE`.
    End,
    Whole,
}

impl<'t> Wanted<'t> {
    pub(super) fn new(name: &'t str) -> Self {
        Self { name, last_word: last_word(name).map(Finder::new) }
    }

    /// How the symbol `raw` fits, and its name.
    pub(super) fn fit(&self, raw: &[u8]) -> Option<(Fit, String)> {
        let full = self.demangled(raw)?;
        let own = without_suffix(&full);
        let forms = [&full, own, without_parameters(own)];
        let is_end = |form: &str| {
            form.strip_suffix(self.name).is_some_and(|path| path.ends_with("::") || path.ends_with('.'))
        };
        let fit = if forms.contains(&self.name) {
            Fit::Whole
        } else if forms[1..].iter().any(|form| is_end(form)) {
            Fit::End
        } else {
            return None;
        };
        Some((fit, full))
    }

    /// The name of the symbol `raw`, if the wanted one is anywhere in its path: what a thread-local
    /// of Rust is made of has names inside of it.
    pub(super) fn fit_inside(&self, raw: &[u8]) -> Option<String> {
        let full = self.demangled(raw)?;
        let is_inside = format!("::{}::", without_suffix(&full)).contains(&format!("::{}::", self.name));
        is_inside.then_some(full)
    }

    fn demangled(&self, raw: &[u8]) -> Option<String> {
        if self.last_word.as_ref().is_some_and(|word| word.find(raw).is_none()) {
            return None;
        }
        demangled(raw)
    }
}

/// The names that are most like a wanted one.
pub(super) struct Near<'t> {
    wanted: &'t str,
    found: Vec<(f64, String)>,
}

impl<'t> Near<'t> {
    pub(super) fn new(wanted: &'t str) -> Self {
        Self { wanted: last_part(without_parameters(wanted)), found: Vec::new() }
    }

    pub(super) fn offer(&mut self, raw: &[u8]) {
        let Some(name) = demangled(raw) else { return };
        let name = without_suffix(&name);
        let part = last_part(without_parameters(name));
        let (ours, theirs) = (self.wanted.to_lowercase(), part.to_lowercase());
        let like = strsim::jaro_winkler(&ours, &theirs);
        if like >= LEAST_LIKE && !self.found.iter().any(|(_, known)| known == name) {
            self.found.push((like, name.to_owned()));
            self.found.sort_by(|one, other| other.0.total_cmp(&one.0));
            self.found.truncate(MOST_NEAR);
        }
    }

    pub(super) fn names(self) -> Vec<String> {
        self.found.into_iter().map(|(_, name)| name).collect()
    }
}

/// The last word of a name, if each symbol of that name has it in it: outside of brackets, whose
/// content is mangled by kinds, and of plain letters, which have no other spelling.
fn last_word(name: &str) -> Option<&[u8]> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let word = &name[name.rfind(|c| !is_plain(c)).map_or(0, |at| at + 1)..];
    let before = name[..name.len() - word.len()].chars().next_back();
    (!word.is_empty() && before.is_none_or(|c| c.is_ascii())).then_some(word.as_bytes())
}

/// The name of a symbol in source form. `None` for symbols that compilers add: virtual tables,
/// guards.
fn demangled(raw: &[u8]) -> Option<String> {
    let raw = std::str::from_utf8(raw).ok()?;
    if raw.starts_with("_ZT") || raw.starts_with("_ZG") || raw.is_empty() {
        return None;
    }
    if let Ok(rust) = rustc_demangle::try_demangle(raw) {
        let name = bounded(|out| write!(out, "{rust:#}"))?;
        // Names of C++ may look as the older ones of Rust, but for the hash.
        if raw.starts_with("_R") || bounded(|out| write!(out, "{rust}")).is_some_and(|full| full != name) {
            return Some(name);
        }
    }
    let (own, suffix) = raw.split_at(raw.find('.').filter(|&at| at > 0).unwrap_or(raw.len()));
    if own.starts_with("_Z")
        && let Ok(symbol) = Symbol::new(own.as_bytes())
        && let Some(name) = bounded(|out| symbol.structured_demangle(out, &DemangleOptions::new()))
    {
        return Some(name + suffix);
    }
    Some(raw.to_owned())
}

/// A demangled name without the words that a compiler put behind it.
fn without_suffix(name: &str) -> &str {
    let start = name.len() - last_part(name).len();
    let mut end = name.len();
    while let Some(at) = name[start..end].rfind('.').filter(|&at| at > 0) {
        let word = &name[start + at + 1..end];
        if !WORDS.contains(&word) && !word.bytes().all(|byte| byte.is_ascii_digit()) {
            break;
        }
        end = start + at;
    }
    &name[..end]
}

/// The name of a function of C++ without its parameters and what follows them: `tea::Pot::pour` for
/// `tea::Pot::pour(int) const`. Any other name is left as it is.
fn without_parameters(name: &str) -> &str {
    // Names of variables inside of functions, and types of Rust, go on behind the last `)`.
    let is_end = |rest: &str| !rest.contains([':', '.', '>']);
    let Some((before, _)) = name.rsplit_once(')').filter(|(_, rest)| is_end(rest)) else { return name };
    let mut depth = 1;
    let start = before.rfind(|c| {
        depth += i32::from(c == ')') - i32::from(c == '(');
        depth == 0
    });
    start.map_or(name, |at| &name[..at])
}

/// The part behind the last `::`.
fn last_part(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(name: &str, raw: &str) -> Option<(Fit, String)> {
        Wanted::new(name).fit(raw.as_bytes())
    }

    #[test]
    fn symbols_have_the_names_of_their_language() {
        for (raw, name) in [
            ("count", "count"),
            ("_ZN3tea5HOUSE17h0123456789abcdefE", "tea::HOUSE"),
            ("_RNvC3tea5HOUSE", "tea::HOUSE"),
            ("_ZN3tea5houseE", "tea::house"),
            ("_ZN12_GLOBAL__N_15countE", "(anonymous namespace)::count"),
            ("_ZZ4mainE5count", "main::count"),
            ("_ZN3PotIiE5countE", "Pot<int>::count"),
            ("_ZL5count", "count"),
        ] {
            assert_eq!(fit(name, raw), Some((Fit::Whole, name.to_owned())), "{raw}");
        }
    }

    #[test]
    fn end_of_a_path_fits_at_its_joints() {
        let raw = "_ZN5green3tea5HOUSE17h0123456789abcdefE";
        for (name, is_fit) in
            [("HOUSE", true), ("tea::HOUSE", true), ("USE", false), ("ea::HOUSE", false), ("tea", false)]
        {
            assert_eq!(fit(name, raw).is_some_and(|(fit, _)| fit == Fit::End), is_fit, "{name}");
        }
        assert!(Wanted::new("tea").fit_inside(raw.as_bytes()).is_some());
    }

    #[test]
    fn functions_of_cxx_need_no_parameters() {
        for (raw, whole, end) in [
            ("_ZN3tea4brewEiPKc", "tea::brew", "brew"),
            ("_ZN3tea4brewEiPKc", "tea::brew(int, char const*)", "brew(int, char const*)"),
            ("_ZN3tea4brewEPFviE.llvm.17", "tea::brew", "brew"),
            ("_ZNK3tea3Pot4pourERKS0_", "tea::Pot::pour", "Pot::pour"),
            ("_ZN3tea3PotclEi", "tea::Pot::operator()", "operator()"),
            ("_ZN12_GLOBAL__N_14brewEv", "(anonymous namespace)::brew", "brew"),
        ] {
            assert_eq!(fit(whole, raw).map(|(fit, _)| fit), Some(Fit::Whole), "{whole}");
            assert_eq!(fit(end, raw).map(|(fit, _)| fit), Some(Fit::End), "{end}");
        }
        // A part of a function that a compiler moved away, a variable inside of one, types of Rust.
        for (name, raw) in [
            ("tea::brew", "_ZN3tea4brewEi.cold"),
            ("tea::brew", "_ZZN3tea4brewEiE5count"),
            ("main::brew", "_RINvC4main4brewTmmEE"),
        ] {
            assert_eq!(fit(name, raw), None, "{raw}");
        }
    }

    #[test]
    fn compilers_suffix_is_no_part_of_the_name() {
        for raw in ["count.0", "count.llvm.17", "_ZL5count.3", "_ZN3tea5count17h0123456789abcdefE.llvm.9"] {
            assert!(fit("count", raw).is_some(), "{raw}");
        }
        assert_eq!(fit("count", "brew.count.0").unwrap().0, Fit::End);
        assert_eq!(fit("brew", "brew.count"), None);
        assert_eq!(fit("count.0", "count.0"), Some((Fit::Whole, "count.0".to_owned())));
    }

    #[test]
    fn compilers_own_symbols_fit_nothing() {
        for raw in ["_ZTV5Count", "_ZGVZ4mainE5Count", "_ZTI5Count"] {
            assert_eq!(fit("Count", raw), None, "{raw}");
        }
    }

    #[test]
    fn endless_names_are_none() {
        // Each part stands for two of the part before.
        let mut raw = String::from("_Z1fI1aE");
        for at in 0..60 {
            let _ = write!(raw, "1bIS{at}_S{at}_E");
        }
        let _ = demangled(raw.as_bytes());
    }

    #[test]
    fn nearest_names_come_first() {
        let mut near = Near::new("tea::HUOSE");
        for raw in ["kettle", "_ZN3tea5HOUSE17h0123456789abcdefE", "HOUSES", "_Z5HOUSERKN3tea3PotE"] {
            near.offer(raw.as_bytes());
        }
        assert_eq!(near.names(), ["tea::HOUSE", "HOUSE(tea::Pot const&)", "HOUSES"]);
    }
}
