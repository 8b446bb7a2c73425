//! Module paths for functions that have none.
//!
//! With `debug = "line-tables-only"` the compiler says of an inlined function its bare name, as
//! `next` or `{closure#0}`, of which a program has hundreds, and the file. A file of Rust's lies
//! where its module is, so its path gives the module: `…/mio-1.2.4/src/net/tcp/stream.rs` makes
//! `mio::net::tcp::stream::{closure#0}` of the name. Types and traits between the module and the
//! function stay unknown.
//!
//! The directory of a crate may be called otherwise than the crate. Functions with whole names,
//! as most have that are not inlined, tell the crate of their directory.

use std::collections::HashMap;

use crate::SourceFrame;

/// Crates by their directories, as whole names have told.
#[derive(Debug, Default)]
pub(crate) struct Crates {
    by_directory: HashMap<String, String>,
}

impl Crates {
    /// Learns from a function with a whole name.
    pub(crate) fn learn(&mut self, frame: &SourceFrame) {
        // A name that begins with a type may be of another crate than the type.
        if let (Some((name, _)), Some((directory, _))) =
            (without_generics(&frame.function).split_once("::"), split(&frame.file))
            && !self.by_directory.contains_key(directory)
        {
            self.by_directory.insert(directory.to_owned(), name.to_owned());
        }
    }

    /// The frame, with a module in its name.
    pub(crate) fn qualified(&self, frame: &SourceFrame) -> SourceFrame {
        let mut frame = frame.clone();
        if let Some(module) = self.module(&frame) {
            frame.function = format!("{module}::{}", frame.function);
        }
        frame
    }

    /// The module of a function whose name has none.
    fn module(&self, frame: &SourceFrame) -> Option<String> {
        let name = without_generics(&frame.function);
        // A name without a path may be the whole of one that is exported to C.
        let is_bare = frame.inlined || name.len() < frame.function.len() || name.starts_with('{');
        if !is_bare || name.is_empty() || name.contains("::") {
            return None;
        }
        let (directory, inside) = split(&frame.file)?;
        let mut module = self.by_directory.get(directory).cloned().unwrap_or_else(|| {
            without_version(directory.rsplit('/').next().unwrap_or(directory)).replace('-', "_")
        });
        let parts: Vec<&str> = inside.split('/').collect();
        for (index, part) in parts.iter().enumerate() {
            let is_root = matches!((index, *part), (0, "lib" | "main"));
            let is_parent = *part == "mod" && index + 1 == parts.len();
            if !is_root && !is_parent {
                module.push_str("::");
                module.push_str(part);
            }
        }
        Some(module)
    }
}

/// The name in front of generic arguments; nothing of one that begins with a type.
fn without_generics(name: &str) -> &str {
    name.split('<').next().unwrap_or_default()
}

/// The directory of the crate, and the file inside its sources without its ending.
fn split(file: &str) -> Option<(&str, &str)> {
    file.strip_suffix(".rs")?.rsplit_once("/src/")
}

/// The name of a crate, from that of the directory that it was unpacked to: `mio-1.2.4`.
fn without_version(directory: &str) -> &str {
    let mut dashes = directory.match_indices('-').map(|(at, _)| at);
    let is_version = |at: &usize| directory.as_bytes().get(at + 1).is_some_and(u8::is_ascii_digit);
    dashes.find(is_version).map_or(directory, |at| &directory[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, file: &str, inlined: bool) -> SourceFrame {
        SourceFrame { function: function.into(), file: file.into(), line: 1, inlined }
    }

    #[test]
    fn a_bare_name_gets_its_module() {
        let mut crates = Crates::default();
        let blend = "/home/a/tea/crates/house/src/routes/blend.rs";
        crates.learn(&frame("{closure#0}<std::cmp::Ordering>", blend, false));
        crates.learn(&frame("tea_house::routes::blend::search", blend, false));
        crates.learn(&frame("another::routes::blend::search", blend, false));
        crates.learn(&frame("<alloc::string::String as core::fmt::Write>::write_str", "/x/src/a.rs", false));
        let registry = "/root/.cargo/registry/src/index-1949cf8c";
        for (name, file, right) in [
            ("{closure#0}", blend, "tea_house::routes::blend::{closure#0}"),
            ("main", "/home/a/tea/crates/house/src/main.rs", "tea_house::main"),
            (
                "poll<a::B>",
                &*format!("{registry}/http-body-0.1.0-rc.2/src/util/mod.rs"),
                "http_body::util::poll<a::B>",
            ),
            ("next", "/rustc/59/library/core/src/iter/range.rs", "core::iter::range::next"),
            ("write_str", "/x/src/a.rs", "x::a::write_str"),
            ("a::next", blend, "a::next"),
            ("<a::B>::next", blend, "<a::B>::next"),
            ("sqlite3_step", "/y/src/sqlite3.c", "sqlite3_step"),
            ("stir", "stir.rs", "stir"),
            ("", blend, ""),
        ] {
            assert_eq!(crates.qualified(&frame(name, file, true)).function, right);
        }
        for (name, right) in
            [("{closure#0}<a::B>", "tea_house::routes::blend::{closure#0}<a::B>"), ("tea_steep", "tea_steep")]
        {
            assert_eq!(crates.qualified(&frame(name, blend, false)).function, right, "not inlined");
        }
    }
}
