//! The work of a stack, by rules for the functions of runtimes and servers.
//!
//! A stack is read from its outermost function on. A function that runs one *unit* (a task, a
//! request, a job) names it by its generic arguments; the innermost one decides. A thread, a
//! runtime's scheduler and the future that a thread blocks on are *around* units: they decide where
//! there is no unit.

use std::fmt;

use super::path::{BLOCKING, Path, TypeName, paths, written};
use crate::own::OwnCode;

/// The role of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Around units: a thread, a scheduler, or the future that a thread blocks on.
    Thread,
    Runtime,
    Root,
    /// In [`Role::Root`]: the thread waits for events, or runs what has waited for them.
    Park,
    /// Units.
    Task,
    Blocking,
    Connection,
    Handler,
    Job,
}

impl Role {
    fn is_unit(self) -> bool {
        matches!(self, Role::Task | Role::Blocking | Role::Connection | Role::Handler | Role::Job)
    }
}

/// A rule: how paths of functions begin, how their last part does (without closures), the role of
/// such a function, and which of its generic arguments is the unit.
type Rule = (&'static str, &'static str, Role, usize);

const RULES: [Rule; 24] = [
    ("tokio::runtime::task::raw::", "poll", Role::Task, 0),
    ("tokio::runtime::task::harness::", "poll", Role::Task, 0),
    ("tokio::runtime::task::core::", "poll", Role::Task, 0),
    ("axum::handler::{async_block", "", Role::Handler, 0),
    ("axum::handler::future::{async_block", "", Role::Handler, 0),
    ("axum::handler::Handler::", "call", Role::Handler, 0),
    ("actix_web::handler::{async_block", "", Role::Handler, 0),
    ("actix_web::handler::", "handler_service", Role::Handler, 0),
    ("actix_http::h1::dispatcher::", "poll", Role::Connection, 0),
    ("actix_http::h2::dispatcher::", "poll", Role::Connection, 0),
    ("tonic::server::grpc::{async_fn", "", Role::Handler, 1),
    ("tonic::server::grpc::", "unary", Role::Handler, 1),
    ("tonic::server::grpc::", "server_streaming", Role::Handler, 1),
    ("tonic::server::grpc::", "client_streaming", Role::Handler, 1),
    ("tonic::server::grpc::", "streaming", Role::Handler, 1),
    (SERVICE, "call", Role::Handler, 0),
    ("rayon_core::job::", "execute", Role::Job, 0),
    ("rayon_core::registry::", "main_loop", Role::Runtime, 0),
    ("std::sys::backtrace::", "__rust_begin_short_backtrace", Role::Thread, 0),
    ("std::sys_common::backtrace::", "__rust_begin_short_backtrace", Role::Thread, 0),
    ("tokio::runtime::", "block_on", Role::Root, 0),
    ("tokio::runtime::", "park", Role::Park, 0),
    ("tokio::runtime::scheduler::", "", Role::Runtime, 0),
    ("tokio::runtime::blocking::pool::", "", Role::Runtime, 0),
];

/// The future that a service of tower's makes. It handles requests if it is the program's own.
const SERVICE: &str = "tower_service::Service::call::{";

/// Types of tasks that servers run for a connection or a stream in it, by how their paths begin.
const CONNECTIONS: [&str; 5] = [
    "axum::serve::",
    "hyper::proto::h2::server::H2Stream",
    "hyper::server::conn::",
    "hyper_util::server::conn::",
    "tonic::transport::server::",
];

/// Crates whose threads run what others hand to them.
const RUNTIMES: [&str; 8] =
    ["actix_rt", "actix_server", "async_io", "async_executor", "blocking", "dormouse", "rayon_core", "tokio"];

/// A function that has a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    /// The role by the rule, and by the name as well.
    rule: Role,
    role: Role,
    name: TypeName,
}

impl Mark {
    /// The role of a function, by its name; `None` for most.
    pub(super) fn of(function: &str, own: &OwnCode) -> Option<Mark> {
        // The longest common part of the rules.
        if !["tokio::", "axum::", "actix_", "tonic::", "tower_service::", "rayon_core::", "backtrace::"]
            .iter()
            .any(|part| function.contains(part))
        {
            return None;
        }
        let Path { path, args } = Path::parse(function);
        let last = path.rsplit("::").find(|part| !part.starts_with('{'))?;
        let is_meant = |(begin, end, ..): &&Rule| path.starts_with(begin) && last.starts_with(end);
        let (begin, _, role, at) = RULES.iter().find(is_meant)?;
        if *begin == SERVICE && !args.first().is_some_and(|service| own.is_own(service, None)) {
            return None;
        }
        let name = args.get(*at).map_or(TypeName::Missing, |unit| match *unit {
            "fn()" if *role == Role::Thread => TypeName::Known("main".to_owned()),
            // The closure of the program is one of many types in it.
            _ if *role == Role::Job => {
                let path = paths(function).find(|path| own.is_own(path, None));
                path.map_or(TypeName::Missing, |path| TypeName::Known(written(path)))
            }
            unit => TypeName::of(unit),
        });
        let rule = *role;
        let TypeName::Known(unit) = &name else { return Some(Mark { rule, role: rule, name }) };
        let begins = |all: &[&str]| all.iter().any(|begin| unit.starts_with(begin));
        let of_runtime = RUNTIMES.into_iter().find(|runtime| unit.split("::").next() == Some(runtime));
        let role = match role {
            Role::Task if begins(&["tokio::runtime::scheduler::"]) => Role::Runtime,
            Role::Task if args[*at].starts_with(BLOCKING) => Role::Blocking,
            Role::Task if begins(&CONNECTIONS) => Role::Connection,
            Role::Thread if of_runtime.is_some() => Role::Runtime,
            role => *role,
        };
        Some(Mark { rule, role, name })
    }

    /// Whether this decides, where `before` has decided so far.
    fn replaces(&self, before: &Mark) -> bool {
        let is_known = self.name != TypeName::Missing;
        match (self.role, before.role) {
            (Role::Park, other) => other == Role::Root,
            // An inner function of the same unit, whose name says more or less.
            _ if self.rule == before.rule && is_known != (before.name != TypeName::Missing) => is_known,
            (role, _) if role.is_unit() => true,
            (_, other) if other.is_unit() => false,
            (Role::Runtime, other) => other != Role::Root,
            _ => is_known || before.name == TypeName::Missing,
        }
    }
}

/// A function of a stack.
#[derive(Debug, Clone)]
pub(super) struct Step<'a> {
    pub(super) name: &'a str,
    pub(super) mark: Option<Mark>,
    /// Whether it is the program's own.
    pub(super) is_own: bool,
}

/// The work of a stack, as far as it was read.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading<'a> {
    mark: Option<Mark>,
    /// The outermost function of the program's own that the unit has called.
    own: Option<&'a str>,
}

impl<'a> Reading<'a> {
    /// Goes on to the next inner function.
    pub(super) fn enter(&mut self, step: &Step<'a>) {
        match (&step.mark, &self.mark) {
            (Some(next), Some(before)) if !next.replaces(before) => {}
            (Some(next), before) => {
                // A job may have no name.
                if before.as_ref() != Some(next) || next.role == Role::Job {
                    self.own = None;
                }
                self.mark = Some(next.clone());
            }
            (None, _) => {}
        }
        if step.is_own && self.own.is_none() {
            self.own = Some(step.name);
        }
    }

    /// The work of the stack.
    pub(super) fn work(&self) -> Result<Work, Unnamed> {
        let Some(Mark { role, name, .. }) = &self.mark else { return Err(Unnamed::NoTask) };
        let own = self.own.map(written);
        let kind = match role {
            Role::Thread => "thread",
            Role::Task | Role::Root => "task",
            Role::Blocking => "spawn_blocking",
            Role::Handler => "handler",
            Role::Job => "rayon",
            Role::Connection => return Ok(Work("connection".to_owned())),
            Role::Runtime | Role::Park => return Ok(Work("runtime".to_owned())),
        };
        match (name, own) {
            (TypeName::Known(name), _) => Ok(Work(format!("{kind} {name}"))),
            // A job or a thread has no other function.
            (TypeName::Missing, Some(own)) if matches!(role, Role::Job | Role::Thread) => {
                Ok(Work(format!("{kind} {own}")))
            }
            (TypeName::Missing, None) if *role == Role::Job => Ok(Work("runtime".to_owned())),
            (TypeName::Any, Some(own)) => Ok(Work(format!("{kind} {own}"))),
            (TypeName::Any, None) => Err(Unnamed::Boxed),
            (TypeName::Missing, own) => Err(Unnamed::NoTypes(own)),
        }
    }
}

/// A task in the wide sense, by its name: `handler shop::menu`, `task shop::import`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Work(pub(super) String);

/// Why the task of a stack is not known.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Unnamed {
    /// The names of its functions have no types. The task's outermost function of the program's
    /// own, if there is one.
    NoTypes(Option<String>),
    /// Its future is boxed, and calls no function of the program's own.
    Boxed,
    /// Its functions have no names.
    NoNames,
    /// Its outer functions are missing.
    Cut,
    /// There is no stack.
    NoStack,
    /// It has neither a task nor a thread of Rust.
    NoTask,
}

impl Unnamed {
    /// The reason alone.
    pub(super) fn kind(&self) -> Self {
        match self {
            Self::NoTypes(_) => Self::NoTypes(None),
            other => other.clone(),
        }
    }
}

impl fmt::Display for Unnamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTypes(_) => {
                "its functions have names without types: build with -C symbol-mangling-version=v0 (the default \
                 since Rust 1.97) or debug = \"line-tables-only\""
            }
            Self::Boxed => "its future is boxed, and calls no function of the program's own",
            Self::NoNames => "its functions have no names: do not strip the program's symbols",
            Self::Cut => "the outer functions of its stacks are missing",
            Self::NoStack => "it was not sampled",
            Self::NoTask => "its stacks have neither a task of a known runtime nor a thread of Rust",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_groups_are_the_programs() {
        let own = OwnCode::default();
        for (closure, role) in [
            (
                "dormouse::core::task::{impl#0}::spawn_thread::{closure_env#0}<(), shop::brew::{closure_env#0}>",
                Role::Thread,
            ),
            (
                "<dormouse::core::group::Group>::spawn_thread::<(), shop::brew::{closure#0}>::{closure#0}",
                Role::Thread,
            ),
            (
                "dormouse::adapt::inherit::inherit_fn::{closure_env#0}<shop::brew::{closure_env#0}, ()>",
                Role::Thread,
            ),
            ("dormouse::lookout::begin::{closure_env#0}", Role::Runtime),
        ] {
            let function = format!("std::sys::backtrace::__rust_begin_short_backtrace<{closure}, ()>");
            let mark = Mark::of(&function, &own).unwrap();
            assert_eq!(mark.role, role, "{closure}");
            if role == Role::Thread {
                assert_eq!(written_of(&mark), "shop::brew", "{closure}");
            }
        }
    }

    fn written_of(mark: &Mark) -> String {
        match &mark.name {
            TypeName::Known(name) => written(name),
            other => format!("{other:?}"),
        }
    }
}
