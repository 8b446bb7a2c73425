//! Names of functions and types as compilers write them, in two parts: the path, and the generic
//! arguments.
//!
//! | the name is from | `poll` of tokio's `Core<F, S>` is |
//! |---|---|
//! | line tables | `tokio::runtime::task::core::poll<F, S>` |
//! | a symbol in the v0 mangling | `<tokio::runtime::task::core::Core<F, S>>::poll` |
//! | a symbol in the legacy mangling | `tokio::runtime::task::core::Core<T,S>::poll`: here `T` is the name of the parameter, not the type |

/// Types that only run another one, which is their first argument.
const WRAPPERS: [&str; 27] = [
    "alloc::boxed::Box",
    "core::panic::unwind_safe::AssertUnwindSafe",
    "core::pin::Pin",
    "dormouse::adapt::arrived::Arrived",
    "dormouse::adapt::hooks::Whole",
    "dormouse::adapt::inherit::Inherited",
    "dormouse::adapt::outside::Outside",
    "dormouse::adapt::part::Part",
    "dormouse::core::calls::InstrumentedCall",
    "dormouse::core::results::InstrumentedResult",
    "dormouse::core::task::Instrumented",
    "dormouse::features::budget::Budgeted",
    "futures_util::abortable::Abortable",
    "futures_util::future::future::Inspect",
    "futures_util::future::future::Map",
    "futures_util::future::future::Then",
    "futures_util::future::future::catch_unwind::CatchUnwind",
    "futures_util::future::future::fuse::Fuse",
    "futures_util::future::future::map::Map",
    "futures_util::future::try_future::MapErr",
    "futures_util::future::try_future::MapOk",
    BLOCKING,
    "tokio::task::coop::unconstrained::Unconstrained",
    "tokio::time::timeout::Timeout",
    "tokio_util::task::task_tracker::TrackedFuture",
    "tower::util::service_fn::ServiceFn",
    "tracing::instrument::Instrumented",
];

/// How deep they are looked into: debug information may contain any name.
const MOST_WRAPPERS: usize = 64;

/// The task that runs a closure on a thread for blocking work.
pub(super) const BLOCKING: &str = "tokio::runtime::blocking::task::BlockingTask";

/// A name in two parts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Path<'a> {
    /// Without generic arguments. A method of a trait has the path of the trait.
    pub(super) path: String,
    /// The generic arguments. In a method of a trait the type that implements it comes first.
    pub(super) args: Vec<&'a str>,
}

impl<'a> Path<'a> {
    pub(super) fn parse(name: &'a str) -> Self {
        let mut path = Path::default();
        let (of, interface, rest) = parts(name);
        if let Some(interface) = interface {
            path.args.push(of);
            path.append(interface);
        } else {
            path.append(of);
        }
        path.append(rest);
        path
    }

    /// A name in which a method of a trait has the path of the type that implements it.
    fn of_type(name: &'a str) -> Self {
        let mut path = Path::default();
        let (of, _, rest) = parts(name);
        path.append(of);
        path.append(rest);
        path
    }

    /// The type that this one only runs: one of [`WRAPPERS`], or a closure of dormouse's around one
    /// of the program's. Empty if the name does not have it.
    fn inside(&self) -> Option<&'a str> {
        let Self { path, args } = self;
        let mut parts = path.strip_prefix("dormouse::").unwrap_or_default().rsplit("::");
        let is_closure = parts.next().is_some_and(|part| part.starts_with('{'));
        let inside = match parts.next() {
            _ if WRAPPERS.contains(&&**path) => args.first(),
            Some("inherit_fn" | "inherit_fn_within") if is_closure => args.first(),
            Some("queued" | "spawn_thread") if is_closure => args.last(),
            _ => return None,
        };
        Some(inside.copied().unwrap_or_default())
    }

    fn append(&mut self, mut rest: &'a str) {
        while let Some(at) = rest.find(['<', '(', '[']) {
            self.path.push_str(rest[..at].trim_end_matches("::"));
            rest = &rest[at..];
            let end = closing(rest);
            if rest.starts_with('<') {
                self.args.extend(split(rest.get(1..end).unwrap_or_default(), ",").into_iter().map(str::trim));
            }
            rest = rest.get(end + 1..).unwrap_or_default();
        }
        self.path.push_str(rest);
    }
}

/// The parts of `<of as interface>rest`; in `<of>rest` and `rest` some are missing.
fn parts(name: &str) -> (&str, Option<&str>, &str) {
    if !name.starts_with('<') {
        return ("", None, name);
    }
    let end = closing(name);
    let (inside, rest) = (name.get(1..end).unwrap_or_default(), name.get(end + 1..).unwrap_or_default());
    match split(inside, " as ")[..] {
        [of, interface] => (of, Some(interface), rest),
        _ => (inside, None, rest),
    }
}

/// How well the name of a type tells tasks apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TypeName {
    /// The path of a function, a closure or a type.
    Known(String),
    /// A trait object or a pointer to a function: it may be any.
    Any,
    /// The name of a parameter stands in place of the type, or nothing.
    Missing,
}

impl TypeName {
    /// The name of the function, closure or type of this name that a runtime runs.
    pub(super) fn of(name: &str) -> TypeName {
        let mut name = name.trim();
        for _ in 0..MOST_WRAPPERS {
            if name.starts_with("fn(") {
                // In line tables a function is known by its type alone, in which its future has a
                // name.
                match split(name, " -> ")[..] {
                    [_, future] if future.contains('{') => {
                        name = future.trim();
                        continue;
                    }
                    _ => return TypeName::Any,
                }
            }
            if name.starts_with(['&', '(', '*']) || name.starts_with("dyn ") {
                return TypeName::Any;
            }
            let path = Path::of_type(name);
            match path.inside() {
                Some(inside) => name = inside.trim(),
                None if path.path.contains("::") => return TypeName::Known(plain(&path.path)),
                None => return TypeName::Missing,
            }
        }
        TypeName::Missing
    }
}

/// A path in which the two ways to write closures and async functions are one. The future of an
/// async function has the name of the function.
fn plain(path: &str) -> String {
    let is_from_lines = path.contains("{async_") || path.contains("_env#");
    let mut parts: Vec<String> = path
        .split("::")
        .filter(|part| !part.starts_with("{async_fn"))
        .map(|part| {
            part.replace("_env#", "#")
                .replace("{async_block#", "{closure#")
                .replace("{async_closure#", "{closure#")
        })
        .collect();
    // In symbols the future of an async function is its first closure.
    let first = parts.iter().position(|part| part.starts_with("{closure#"));
    if let Some(at) = first.filter(|&at| !is_from_lines && parts[at] == "{closure#0}") {
        parts.remove(at);
    }
    parts.join("::")
}

/// The path of a function without the closures in it: the function that somebody has written.
pub(super) fn written(function: &str) -> String {
    let Path { path, .. } = Path::of_type(function);
    path.split("::").take_while(|part| !part.starts_with('{')).collect::<Vec<_>>().join("::")
}

/// The paths in a name, also those of types in it.
pub(super) fn paths(name: &str) -> impl Iterator<Item = &str> {
    let is_end = |letter: char| !(letter.is_alphanumeric() || "_:{}#".contains(letter));
    name.split(is_end).filter(|path| path.contains("::"))
}

/// The index of the bracket that closes the one at the beginning, or of the end.
fn closing(text: &str) -> usize {
    let mut depth = Depth::default();
    text.char_indices().find(|&(_, letter)| depth.after(letter) == 0).map_or(text.len(), |(at, _)| at)
}

/// The parts between separators that are in no brackets.
fn split<'a>(text: &'a str, separator: &str) -> Vec<&'a str> {
    let (mut parts, mut from, mut depth) = (Vec::new(), 0, Depth::default());
    for (at, letter) in text.char_indices() {
        if at >= from && depth.now == 0 && text[at..].starts_with(separator) {
            parts.push(&text[from..at]);
            from = at + separator.len();
        }
        depth.after(letter);
    }
    if from < text.len() {
        parts.push(&text[from..]);
    }
    parts
}

/// How many brackets are open.
#[derive(Default)]
struct Depth {
    now: u32,
    before: char,
}

impl Depth {
    fn after(&mut self, letter: char) -> u32 {
        match letter {
            '<' | '(' | '[' => self.now += 1,
            // The end of an arrow is no bracket.
            '>' if self.before == '-' => {}
            '>' | ')' | ']' => self.now = self.now.saturating_sub(1),
            _ => {}
        }
        self.before = letter;
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_spelling_has_the_same_arguments() {
        for (name, path) in [
            ("a::core::poll<b::C<u8>, fn(&d::E) -> f::G<(u8, u8)>>", "a::core::poll"),
            ("a::core::poll::<b::C<u8>, fn(&d::E) -> f::G<(u8, u8)>>", "a::core::poll"),
            ("<a::core::Core<b::C<u8>, fn(&d::E) -> f::G<(u8, u8)>>>::poll", "a::core::Core::poll"),
            (
                "<b::C<u8> as a::Poll<fn(&d::E) -> f::G<(u8, u8)>>>::poll::{closure#0}",
                "a::Poll::poll::{closure#0}",
            ),
        ] {
            let parsed = Path::parse(name);
            assert_eq!(parsed.path, path);
            assert_eq!(parsed.args, ["b::C<u8>", "fn(&d::E) -> f::G<(u8, u8)>"], "{name}");
        }
        for odd in ["", "<", "<<", ">", "a<b", "<a as b>c>", "a::(", "é<é>é", "[u8]::to_vec"] {
            let _ = Path::parse(odd);
        }
    }

    #[test]
    fn futures_are_named_by_their_functions() {
        let known = |name: &str| TypeName::Known(name.to_owned());
        for (of, right) in [
            ("shop::brew::{async_fn_env#0}", known("shop::brew")),
            ("shop::brew::{closure#0}", known("shop::brew")),
            ("fn(shop::Tea, u8) -> shop::brew::{async_fn_env#0}", known("shop::brew")),
            ("shop::main::{async_fn#0}::{async_block_env#2}", known("shop::main::{closure#2}")),
            ("shop::main::{closure#0}::{closure#2}", known("shop::main::{closure#2}")),
            ("shop::main::{closure_env#1}", known("shop::main::{closure#1}")),
            ("shop::Import<shop::Db>", known("shop::Import")),
            ("dormouse::adapt::hooks::Whole<shop::brew::{async_fn_env#0}>", known("shop::brew")),
            (
                "dormouse::adapt::outside::Outside<dormouse::features::budget::Budgeted<shop::brew::{closure#0}>>",
                known("shop::brew"),
            ),
            (
                "tokio::runtime::blocking::task::BlockingTask<dormouse::adapt::inherit::inherit_fn::{closure_env#0}<dormouse::adapt::pool_queue::queued::{closure_env#0}<u64, shop::f::{closure_env#0}>, u64>>",
                known("shop::f::{closure#0}"),
            ),
            (
                "dormouse::adapt::inherit::inherit_fn::<dormouse::adapt::pool_queue::queued::<u64, shop::f>::{closure#0}, u64>::{closure#0}",
                known("shop::f"),
            ),
            ("dormouse::adapt::inherit::inherit_fn::{{closure}}", TypeName::Missing),
            ("dormouse::agent::serve::{closure_env#0}", known("dormouse::agent::serve::{closure#0}")),
            ("futures_util::future::future::Map<shop::brew::{async_fn_env#0}, F>", known("shop::brew")),
            ("core::pin::Pin<alloc::boxed::Box<shop::brew::{closure#0}>>", known("shop::brew")),
            ("tracing::instrument::Instrumented<shop::brew::{async_fn_env#0}>", known("shop::brew")),
            (
                "core::pin::Pin<alloc::boxed::Box<(dyn core::future::Future<Output=()> + core::marker::Send), alloc::alloc::Global>>",
                TypeName::Any,
            ),
            ("fn(u8) -> core::result::Result<u8, u8>", TypeName::Any),
            (
                format!("{}shop::Tea{}", "core::pin::Pin<".repeat(70), ">".repeat(70)).as_str(),
                TypeName::Missing,
            ),
            ("T", TypeName::Missing),
            ("", TypeName::Missing),
        ] {
            assert_eq!(TypeName::of(of), right, "{of}");
        }
    }

    #[test]
    fn functions_are_without_closures() {
        for (name, right) in [
            ("shop::brew::{{closure}}::{{closure}}", "shop::brew"),
            ("shop::brew::<u8>::{closure#1}", "shop::brew"),
            ("<shop::Tea<T> as core::future::Future>::poll", "shop::Tea::poll"),
            ("<shop::Tea<T>>::pour", "shop::Tea::pour"),
        ] {
            assert_eq!(written(name), right);
        }
    }
}
