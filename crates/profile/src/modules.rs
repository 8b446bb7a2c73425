//! Module paths for functions that have none.
//!
//! With `debug = "line-tables-only"` the debug information of an inlined function contains only its
//! bare name, such as `next` or `{closure#0}`, of which a program has hundreds, and the file. In
//! Rust a file lies where its module is, so its path gives the module:
//! `…/mio-1.2.4/src/net/tcp/stream.rs` turns the name into `mio::net::tcp::stream::{closure#0}`.
//! Types and traits between the module and the function stay unknown.
//!
//! The directory of a crate may have another name than the crate. Debug information lists the
//! crates with their root files; where it does not, functions with whole names, as most functions
//! that are not inlined have, show the crate of their directory.
//!
//! The body of an async function has no name at all, `{async_fn#0}`, but the function that polls it
//! has the body's type among its generic arguments: `poll<tea::pour::{async_fn_env#0}>`.

use std::collections::HashMap;

use crate::SourceFrame;

/// Crates by the places of their sources.
#[derive(Debug, Default)]
pub(crate) struct Crates {
    /// By their root files, without the ending.
    roots: HashMap<String, String>,
    /// By the folders of these; `None`: several have one.
    folders: HashMap<String, Option<String>>,
    /// The crates by their directories, from functions with whole names.
    directories: HashMap<String, String>,
}

impl Crates {
    /// Learns of a crate, by its name and the path of its root file.
    pub(crate) fn learn_crate(&mut self, name: &str, root: &str) {
        let Some((file, (folder, _))) =
            root.strip_suffix(".rs").and_then(|it| Some((it, it.rsplit_once('/')?)))
        else {
            return;
        };
        self.roots.insert(file.to_owned(), name.to_owned());
        let known = self.folders.entry(folder.to_owned()).or_insert_with(|| Some(name.to_owned()));
        if known.as_deref() != Some(name) {
            *known = None;
        }
    }

    /// The frames at an address, the innermost first, with whole names.
    pub(crate) fn all_qualified(&self, frames: &[SourceFrame]) -> Vec<SourceFrame> {
        let name = |(at, frame): (usize, &SourceFrame)| {
            let mut named = self.qualified(frame);
            if let Some(path) = body_path(frames, at) {
                let module = named.function.split('{').next().unwrap_or_default();
                if path.starts_with(module) {
                    named.function = path;
                }
            }
            named
        };
        frames.iter().enumerate().map(name).collect()
    }

    /// Learns from a function with a whole name.
    pub(crate) fn learn(&mut self, frame: &SourceFrame) {
        // A name that begins with a type may be of another crate than the type.
        if let (Some((name, _)), Some((directory, _))) =
            (without_generics(&frame.function).split_once("::"), split(&frame.file))
            && !self.directories.contains_key(directory)
        {
            self.directories.insert(directory.to_owned(), name.to_owned());
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
        let file = frame.file.strip_suffix(".rs")?;
        if let Some(krate) = self.roots.get(file) {
            return Some(krate.clone());
        }
        let mut around = file.match_indices('/').rev().map(|(at, _)| file.split_at(at));
        let listed = around.find_map(|(folder, inside)| {
            let krate = self.folders.get(folder)?.clone()?;
            Some((krate, &inside[1..]))
        });
        let (mut module, inside) = listed.or_else(|| {
            let (directory, inside) = split(&frame.file)?;
            let krate = self.directories.get(directory).cloned().unwrap_or_else(|| {
                without_version(directory.rsplit('/').next().unwrap_or(directory)).replace('-', "_")
            });
            Some((krate, inside))
        })?;
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

/// The whole name of the body of an async function or block, or of a closure, that is inlined at
/// `at`: the one with its number and kind among the generic arguments of the function that runs it.
/// That is the next one outside, but for others that only hand on. `None` if there is none, or
/// several could be meant.
fn body_path(frames: &[SourceFrame], at: usize) -> Option<String> {
    let body = frames[at].function.strip_prefix('{')?;
    let (kind, number) = body.split('}').next()?.split_once('#')?;
    let env = format!("::{{{kind}_env#{number}}}");
    for frame in &frames[at + 1..] {
        if frame.function.starts_with('{') {
            // It runs this body itself, under its own type.
            return None;
        }
        let mut paths: Vec<&str> = frame
            .function
            .match_indices(&env)
            .filter_map(|(end, _)| {
                let path = &frame.function[..end];
                let begin = path.rfind([' ', ',', '(', '&', '*', '[']).map_or(0, |at| at + 1);
                let path = &path[begin..];
                // A path begins behind the last bracket that is open; closed ones are parts of it.
                let mut depth = 0;
                let open = path.char_indices().rev().find(|&(_, c)| {
                    depth += match c {
                        '>' => 1,
                        '<' => -1,
                        _ => 0,
                    };
                    depth < 0
                });
                let path = open.map_or(path, |(at, _)| &path[at + 1..]);
                (!path.is_empty() && !path.contains(['<', '>'])).then_some(path)
            })
            .collect();
        paths.sort_unstable();
        paths.dedup();
        match paths[..] {
            [] => {}
            // As symbols call the body that is not inlined; blocks and closures keep their numbers.
            [path] if kind == "async_fn" => return Some(format!("{path}::{{{{closure}}}}")),
            [path] => return Some(format!("{path}::{{{kind}#{number}}}")),
            _ => return None,
        }
        if !frame.inlined {
            return None;
        }
    }
    None
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
    #[test]
    fn listed_crates_have_the_names_of_their_files() {
        let mut crates = Crates::default();
        crates.learn_crate("c6", "/repro/async/c6.rs");
        crates.learn_crate("dormouse_waits", "/d/crates/waits/src/lib.rs");
        crates.learn_crate("tea_house", "/d/tea/src/main.rs");
        crates.learn_crate("tea", "/d/tea/src/lib.rs");
        for (name, file, right) in [
            ("{async_fn#0}", "/repro/async/c6.rs", "c6::{async_fn#0}"),
            ("stir", "/repro/async/pot/mod.rs", "c6::pot::stir"),
            ("poll_inside<u8>", "/d/crates/waits/src/task.rs", "dormouse_waits::task::poll_inside<u8>"),
            ("main", "/d/tea/src/main.rs", "tea_house::main"),
            ("stir", "/d/tea/src/pot.rs", "tea::pot::stir"),
        ] {
            assert_eq!(crates.qualified(&frame(name, file, true)).function, right);
        }
    }

    #[test]
    fn a_body_is_named_by_its_poller() {
        let mut crates = Crates::default();
        crates.learn_crate("c6", "/a/c6.rs");
        let body = |name: &str| frame(name, "/a/c6.rs", true);
        let names = |frames: &[SourceFrame]| -> Vec<String> {
            crates.all_qualified(frames).into_iter().map(|frame| frame.function).collect()
        };
        let poll = |name: &str| frame(name, "/t/src/poll.rs", false);
        let one = "poll<t::Timeout<c6::actor::{async_fn_env#0}>, alloc::Global>";
        assert_eq!(names(&[body("{async_fn#0}"), poll(one)])[0], "c6::actor::{{closure}}");
        let inner = names(&[body("{async_fn#0}"), body("{async_fn#0}"), poll(one)]);
        assert_eq!(inner[..2], ["c6::{async_fn#0}", "c6::actor::{{closure}}"], "the inner one is another");
        for other in [
            "poll<t::Both<c6::a::{async_fn_env#0}, c6::b::{async_fn_env#0}>>",
            "poll<c6::actor::{async_fn_env#1}>",
            "poll<c6::actor::{async_block_env#0}>",
            "poll<d::actor::{async_fn_env#0}>",
            "poll",
        ] {
            assert_eq!(names(&[body("{async_fn#0}"), poll(other)])[0], "c6::{async_fn#0}", "{other}");
        }
        let closure = "call<c6::pot::{impl#2}::stir::{closure_env#3}>";
        assert_eq!(names(&[body("{closure#3}"), poll(closure)])[0], "c6::pot::{impl#2}::stir::{closure#3}");
    }
}
