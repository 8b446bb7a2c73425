//! The names of symbols in the form of the source, of bounded length.

use std::fmt::{self, Write as _};

use cpp_demangle::{DemangleOptions, Symbol};

/// Bytes of a demangled name: a few bytes of a hostile one may stand for any number.
pub(super) const LONGEST: usize = 16 << 10;

/// The name of a symbol in source form, without the hash. One that is none, or would be too long,
/// is left as it is.
pub(super) fn in_source_form(raw: &str) -> String {
    demangled(raw).unwrap_or_else(|| raw.to_owned())
}

fn demangled(raw: &str) -> Option<String> {
    if let Ok(rust) = rustc_demangle::try_demangle(raw) {
        return bounded(|out| write!(out, "{rust:#}"));
    }
    // Without this beginning it may be the name of a type: `d` is `double`.
    let symbol = raw.starts_with("_Z").then(|| Symbol::new(raw).ok())??;
    bounded(|out| symbol.structured_demangle(out, &DemangleOptions::new()))
}

/// A text that ends `write` when it becomes too long.
pub(super) struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if self.0.len() + more.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(more);
        Ok(())
    }
}

/// The text that `write` writes, unless it becomes too long.
pub(super) fn bounded(write: impl FnOnce(&mut Bounded) -> fmt::Result) -> Option<String> {
    let mut out = Bounded(String::new());
    write(&mut out).ok()?;
    Some(out.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_c_are_no_types() {
        let names = ["d", "x", "_Z3teai", "_ZN3tea4brewEv", "_RNvCs1234_3tea4brew"].map(in_source_form);
        assert_eq!(names, ["d", "x", "tea(int)", "tea::brew()", "tea::brew"]);
    }

    #[test]
    fn names_too_long_are_left() {
        // Each type but the first has a number of arguments, which are the one before.
        let nested = |count| {
            let [of_a, of_b] = ["S1_", "S3_"].map(|before: &str| before.repeat(count));
            format!("_Z1fI1aIiE1bI{of_a}E1cI{of_b}EEvv")
        };
        let short = in_source_form(&nested(2));
        assert_eq!(
            short,
            "void f<a<int>, b<a<int>, a<int> >, c<b<a<int>, a<int> >, b<a<int>, a<int> > > >()"
        );
        let long = nested(500);
        assert_eq!(in_source_form(&long), long);
        assert_eq!(bounded(|out| out.write_str(&"x".repeat(LONGEST + 1))), None);
    }
}
