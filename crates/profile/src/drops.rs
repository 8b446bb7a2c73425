//! The cause of a future's drop, by the names in the stack of the drop.
//!
//! A future is dropped by the code that owned it, or that owned what it was in. So a stack begins
//! with the destructors, from that of the future to that of the outermost thing that went, and then
//! comes the function that let it go. That function decides first, then the things that went, from
//! the outside in:
//!
//! | the function is, or the outermost thing that is known | the future was dropped by |
//! |---|---|
//! | a thread that unwinds | a panic beside it |
//! | of tokio's tasks, which it shuts down | the end of the runtime |
//! | of tokio's tasks, which it cancels | an abort |
//! | a server, or a connection of one | its connection: it ended, or the stream was reset |
//! | a timeout | that timeout |
//! | a tuple, or a combinator that takes the first of several | a `select!` that it lost |
//! | neither | the function itself |
//!
//! The way in ends at the body of an async function: it was dropped with all that it owned, so a
//! timeout in it has not struck.

use crate::sets::Called;

/// The cause of a future's drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropCause {
    /// A timeout struck.
    Timeout,
    /// The server's connection ended, or its stream was reset: by the client as a rule. The stack
    /// does not show who did it.
    Connection,
    /// The task was aborted.
    Abort,
    /// The runtime, or a part of it, ended.
    Shutdown,
    /// Another branch of a `select!` was first.
    Select,
    /// A panic unwound the code that owned it.
    Panic,
    /// A function dropped it.
    Function,
}

impl DropCause {
    /// The word for it in documents.
    pub fn word(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Connection => "connection",
            Self::Abort => "abort",
            Self::Shutdown => "shutdown",
            Self::Select => "select",
            Self::Panic => "panic",
            Self::Function => "function",
        }
    }

    /// Whether the function that let the future go is the one that people look for: the others are
    /// a server's or a runtime's.
    pub fn is_at_function(self) -> bool {
        matches!(self, Self::Timeout | Self::Select | Self::Panic | Self::Function)
    }
}

/// The cause of a drop, from its stack, the innermost function first; and the index of the function
/// that let the future go, if the stack leads to one.
pub fn drop_cause(stack: &[Called<'_>], is_panicking: bool) -> (DropCause, Option<usize>) {
    let end = stack.iter().position(|frame| !is_destructor(frame)).unwrap_or(stack.len());
    let at = (end < stack.len()).then_some(end);
    let cause = if is_panicking {
        DropCause::Panic
    } else {
        by_runtime(&stack[end..])
            .or_else(|| by_thing(&stack[..end]))
            .or_else(|| at.filter(|at| is_servers(stack[*at].0)).map(|_| DropCause::Connection))
            .unwrap_or(DropCause::Function)
    };
    (cause, at)
}

/// A path of a source contains it: the crate's folder has its version behind the name.
fn is_in(file: &str, krate: &str, path: &str) -> bool {
    file.split_once(krate).is_some_and(|(_, rest)| rest.contains(path))
}

/// Whether a function only passes on that something goes: a destructor, dormouse, or the language.
fn is_destructor((function, file, _): &Called<'_>) -> bool {
    let path = function.trim_start_matches(['<', '&']);
    let is_language =
        ["core::", "std::", "alloc::", "__rust_try"].iter().any(|krate| path.starts_with(krate))
            || ["/rustc/", "/library/core/", "/library/alloc/", "/library/std/"]
                .iter()
                .any(|at| file.contains(at));
    let is_ours = path.starts_with("dormouse::") || path.starts_with("dormouse_") || is_dormouses(file);
    is_language || is_ours || dropped_type(function).is_some() || is_drop_method(function)
}

/// Whether the source is in dormouse's package, or in a checkout of it.
fn is_dormouses(file: &str) -> bool {
    file.split('/').any(|part| part.starts_with("dormouse-"))
        || file.contains("/dormouse/src/")
        || file.ends_with("/waits/src/task.rs")
}

/// `drop` of some type, or its body that pins.
fn is_drop_method(function: &str) -> bool {
    let stem = function.split_once('<').map_or(function, |(stem, _)| stem);
    function.ends_with("::drop")
        || stem.ends_with("::drop")
        || ["drop", "__drop_inner"].contains(&stem)
        || function.contains("__drop_inner")
}

/// The type that a destructor drops.
fn dropped_type(function: &str) -> Option<&str> {
    ["drop_in_place<", "drop_glue<"].iter().find_map(|glue| Some(function.split_once(glue)?.1))
}

/// The path of the type around which only boxes and the like are.
fn head(of: &str) -> &str {
    const AROUND: [&str; 10] = [
        "alloc::boxed::Box<",
        "core::pin::Pin<",
        "core::option::Option<",
        "core::mem::manually_drop::ManuallyDrop<",
        "core::mem::maybe_uninit::MaybeUninit<",
        "core::cell::UnsafeCell<",
        "core::task::poll::Poll<",
        "core::result::Result<",
        "&mut ",
        "dyn ",
    ];
    let mut head = of.trim_start();
    while let Some(inner) = AROUND.iter().find_map(|around| head.strip_prefix(around)) {
        head = inner.trim_start();
    }
    if head.starts_with('(') { "(" } else { head.split(['<', '>', ',', ' ']).next().unwrap_or_default() }
}

/// A runtime has let the task go.
fn by_runtime(outside: &[Called<'_>]) -> Option<DropCause> {
    let is_task = |(function, file, _): &Called<'_>| {
        function.contains("tokio::runtime::task::") || is_in(file, "/tokio-", "/src/runtime/task/")
    };
    // With what of the language lies in between, as the guard of its panics.
    let is_between = |frame: &Called<'_>| is_task(frame) || is_destructor(frame);
    let mut tasks = outside.iter().take_while(|frame| is_between(frame)).filter(|frame| is_task(frame));
    outside.first().filter(|frame| is_task(frame))?;
    let cancels = tasks.clone().any(|frame| frame.0.contains("cancel_task"));
    if tasks.any(|frame| frame.0.contains("shutdown")) {
        return Some(DropCause::Shutdown);
    }
    cancels.then_some(DropCause::Abort)
}

/// Whether a server keeps it for one request, and drops it while its connection goes on. A timeout
/// may be in it.
fn is_of_request(path: &str) -> bool {
    ["H2StreamState", "tonic::transport::server::SvcFuture"].iter().any(|of| path.ends_with(of))
}

fn is_servers(path: &str) -> bool {
    let path = path.trim_start_matches(['<', '&']);
    [
        "hyper::server::",
        "hyper::proto::",
        "hyper_util::server::",
        "h2::",
        "actix_http::",
        "tonic::transport::",
    ]
    .iter()
    .any(|server| path.starts_with(server))
}

fn is_choice(path: &str) -> bool {
    const CHOICES: [&str; 6] =
        ["::future::select::", "::either::", "::select_all::", "::select_ok::", "::fuse::", "::race"];
    // tower's `Either` is a layer that is there or not: nothing was lost.
    let is_layer = path.starts_with("tower::util::either::");
    let is_choice = path == "(" || CHOICES.iter().any(|choice| path.contains(choice));
    !is_layer && (is_choice || path.ends_with("::future::Or"))
}

/// The body of an async function or block.
fn is_body(path: &str) -> bool {
    ["{{closure}}", "{closure", "{async_", "{coroutine"].iter().any(|body| path.contains(body))
}

/// The outermost thing that is known, of those that these destructors drop.
fn by_thing(destructors: &[Called<'_>]) -> Option<DropCause> {
    let heads = destructors.iter().rev().filter_map(|frame| dropped_type(frame.0)).map(head);
    for path in heads {
        let cause = match path {
            _ if path.to_ascii_lowercase().contains("timeout") => DropCause::Timeout,
            _ if is_servers(path) && !is_of_request(path) => DropCause::Connection,
            _ if is_choice(path) => DropCause::Select,
            _ if is_body(path) => return None,
            _ => continue,
        };
        return Some(cause);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: [&str; 3] = [
        "dormouse::core::task::Task::drop_future",
        "<dormouse::core::task::Instrumented<F> as core::ops::drop::Drop>::drop",
        "core::ptr::drop_in_place<dormouse::core::task::Instrumented<shop::brew::{{closure}}>>",
    ];

    fn cause(stack: &[&str]) -> (DropCause, Option<String>) {
        let all: Vec<Called<'_>> = OURS.iter().chain(stack).map(|function| (*function, "", 0)).collect();
        let (cause, at) = drop_cause(&all, false);
        (cause, at.map(|at| all[at].0.to_owned()))
    }

    #[test]
    fn the_outermost_thing_that_went_decides() {
        let timeout = "core::ptr::drop_in_place<tokio::time::timeout::Timeout<dormouse::Instrumented<X>>>";
        let body = "core::ptr::drop_in_place<shop::order::{{closure}}>";
        let tuple = "core::ptr::drop_in_place<(shop::order::{{closure}}, tokio::time::sleep::Sleep)>";
        let boxed = "core::ptr::drop_in_place<core::pin::Pin<alloc::boxed::Box<dyn core::future::Future>>>";
        let layer = "drop_in_place<tower_http::timeout::service::ResponseFuture<axum::Route>>";
        let connection = "core::ptr::drop_in_place<hyper::proto::h1::dispatch::Dispatcher<X, Y>>";
        let shop = "shop::serve::{{closure}}";
        let at = |cause, function: &str| (cause, Some(function.to_owned()));
        assert_eq!(cause(&[timeout, shop]), at(DropCause::Timeout, shop));
        let bare = "pin_project_lite::drop<shop::brew::{async_block_env#0}>";
        assert_eq!(cause(&[bare, timeout, shop]), at(DropCause::Timeout, shop), "lines alone are known");
        assert_eq!(cause(&[timeout, body, tuple, shop]), at(DropCause::Select, shop), "it is in the loser");
        assert_eq!(cause(&[timeout, body, shop]), at(DropCause::Function, shop), "it has not struck");
        assert_eq!(cause(&[timeout, body, timeout, shop]), at(DropCause::Timeout, shop), "the outer one has");
        assert_eq!(cause(&[layer, boxed, "tower::util::oneshot::poll"]).0, DropCause::Timeout);
        assert_eq!(cause(&[layer, boxed, connection, shop]), at(DropCause::Connection, shop));
        let answered = "core::ptr::drop_in_place<hyper::proto::h2::server::H2StreamState<X, Y>>";
        let call = "core::ptr::drop_in_place<tonic::transport::server::SvcFuture<X>>";
        let stream = "core::ptr::drop_in_place<hyper::proto::h2::server::H2Stream<X, Y>>";
        let poll = "<hyper::proto::h2::server::H2Stream<F, B>>::poll2";
        assert_eq!(cause(&[layer, call, boxed, answered, poll]).0, DropCause::Timeout, "it was answered");
        assert_eq!(cause(&[layer, call, boxed, answered, stream, shop]).0, DropCause::Connection);
        let late = "drop_in_place<tonic::transport::service::grpc_timeout::ResponseFuture<X>>";
        let optional = "drop_in_place<tower::util::either::EitherResponseFuture<Y, X>>";
        let once = "drop_in_place<hyper_util::service::oneshot::Oneshot<X, Y>>";
        let poll = "hyper_util::service::oneshot::poll";
        assert_eq!(cause(&[late, optional, call, boxed, once, poll]).0, DropCause::Timeout);
        assert_eq!(
            cause(&["<hyper::proto::h1::dispatch::Server<S, B>>::poll_msg", shop]).0,
            DropCause::Connection
        );
        assert_eq!(cause(&[shop]), at(DropCause::Function, shop));
        assert_eq!(cause(&[]), (DropCause::Function, None));
    }

    #[test]
    fn tasks_are_aborted_or_shut_down() {
        let stage = "core::ptr::drop_in_place<tokio::runtime::task::core::Stage<shop::order::{{closure}}>>";
        let cancel = [
            stage,
            "tokio::runtime::task::core::Core<T,S>::set_stage::{{closure}}",
            "tokio::runtime::task::core::Core<T,S>::drop_future_or_output",
            "core::ops::function::FnOnce::call_once",
            "tokio::runtime::task::harness::cancel_task::{{closure}}",
            "__rust_try",
            "std::panicking::catch_unwind",
            "tokio::runtime::task::harness::cancel_task",
        ];
        let then = |more: &[&str]| cause(&[&cancel[..], more].concat()).0;
        let worker = "tokio::runtime::scheduler::multi_thread::worker::Context::run_task";
        assert_eq!(then(&["tokio::runtime::task::harness::Harness<T,S>::poll", worker]), DropCause::Abort);
        let shutdown = "tokio::runtime::task::harness::Harness<T,S>::shutdown";
        assert_eq!(
            then(&[shutdown, "tokio::runtime::task::list::OwnedTasks<S>::close"]),
            DropCause::Shutdown
        );
        let over = "tokio::runtime::task::core::Core<T,S>::poll";
        let stream = "core::ptr::drop_in_place<hyper::proto::h2::server::H2Stream<F, B>>";
        assert_eq!(cause(&[stream, stage, over]).0, DropCause::Connection, "a task that ran to its end");
    }

    #[test]
    fn bare_names_are_known_by_their_files() {
        let of = |name: &'static str, file: &'static str| (name, file, 1);
        let task = "/root/.cargo/registry/src/i/tokio-1.54.1/src/runtime/task/harness.rs";
        let stack = [
            of("drop_future<F>", "/home/a/.cargo/registry/src/i/dormouse-0.9.0/src/core/task.rs"),
            of("drop_in_place<dormouse::Instrumented<X>>", "/rustc/1/library/core/src/ptr/mod.rs"),
            of("set_stage<T, S>", "/root/.cargo/registry/src/i/tokio-1.54.1/src/runtime/task/core.rs"),
            of("cancel_task<T, S>", task),
            of("shutdown<T, S>", task),
        ];
        assert_eq!(drop_cause(&stack, false), (DropCause::Shutdown, Some(2)));
        assert_eq!(drop_cause(&stack[..4], false), (DropCause::Abort, Some(2)));
        assert_eq!(drop_cause(&stack, true).0, DropCause::Panic);
    }
}
