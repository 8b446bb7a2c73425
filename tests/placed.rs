//! The place of a wait by name, end to end: the tea house waits, and the command says in which
//! function and line, and through which callers.
//!
//! Only a service with frame pointers shows them, and so do the libraries below it alone if they
//! are built so, too. `.ci/run` builds such a tea house, and names it in `DORMOUSE_TEST_PLACED`.

mod support;

use std::process::Command;

use dormouse_testkit::eventually;
use rustix::process::Signal;

use support::{Running, Service, run, skip};

/// The line of a source that has this text, once.
fn line(source: &str, text: &str) -> usize {
    let mut lines = (1..).zip(source.lines()).filter(|(_, line)| line.contains(text));
    let (number, _) = lines.next().unwrap_or_else(|| panic!("no {text}"));
    assert_eq!(lines.next(), None, "{text} is there twice");
    number
}

#[test]
fn a_tree_names_the_lines_that_await() {
    let Some(program) = std::env::var_os("DORMOUSE_TEST_PLACED") else {
        return skip("DORMOUSE_TEST_PLACED names no tea house with frame pointers");
    };
    let runtime = tempfile::tempdir().expect("a directory");
    let load = |command: &mut Command| {
        command.args(["--load", "300", "--for", "10m"]);
    };
    let service = Service::start_as(&program, runtime, load).expect("the service starts");
    // Has places taken all the time.
    let asking = Running::start(["tasks", &service.target(), "--for", "10m"]);
    let own = |file: &str, source: &str, text: &str| format!("({file}:{})", line(source, text));
    let blend =
        own("blend.rs", include_str!("../crates/teaparty/src/routes/blend.rs"), "wish.spoons)).await");
    let around = own("instrument.rs", include_str!("../crates/teaparty/src/instrument.rs"), "served).await");
    let args = ["tasks", &service.target(), "--for", "0s", "--group", "GET /blend"];
    let is_named = || {
        let seen = run(args.iter().chain(&["--tree"])).stdout;
        let at = |function: &str, place: &str| {
            seen.lines().position(|row| row.contains(function) && row.contains(place))
        };
        // From the outside to the leaf.
        let way = [
            at("GET /blend", ""),
            at("instrumented::watch", &around),
            at("blend::mix", &blend),
            at("JoinHandle", ""),
        ];
        way.iter().all(Option::is_some) && way.is_sorted()
    };
    eventually(is_named);
    let is_listed = || {
        let list = run(args).stdout;
        list.lines().any(|row| row.contains("awaiting") && row.contains("blend::mix") && row.contains(&blend))
    };
    eventually(is_listed);
    asking.end_by(Signal::INT);
}
