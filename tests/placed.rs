//! The place of a wait by name, end to end: the tea house waits, and the command says in which
//! function and line, and through which callers.
//!
//! The service and the command are one program, built as this test is: with frame pointers where
//! `RUSTFLAGS` asks for them, and else there is nothing to see.

mod support;

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

#[inline(never)]
fn keeps_frame_pointers() -> bool {
    let bytes = std::hint::black_box([0_u8; 64]);
    let (frame, stack) = dormouse_sys::stack::here();
    (bytes.as_ptr_range().end.addr()..stack + 4096).contains(&frame)
}

#[test]
fn a_tree_names_the_lines_that_await() {
    if !keeps_frame_pointers() {
        return skip("this program has no frame pointers");
    }
    let service = Service::busy();
    // Has places taken all the time.
    let asking = Running::start(["tasks", &service.target(), "--for", "10m"]);
    let own = |file: &str, source: &str, text: &str| format!("({file}:{})", line(source, text));
    let routes = [
        // Behind many functions of the runtime's timer: the way ends before the callers of the
        // route.
        (
            "GET /steep",
            "steep::wait",
            own("steep.rs", include_str!("../crates/teaparty/src/routes/steep.rs"), "from_millis(ms)).await"),
            "Sleep",
            None,
        ),
        (
            "GET /blend",
            "blend::mix",
            own("blend.rs", include_str!("../crates/teaparty/src/routes/blend.rs"), "wish.spoons)).await"),
            "JoinHandle",
            Some(own("instrument.rs", include_str!("../crates/teaparty/src/instrument.rs"), "served).await")),
        ),
    ];
    for (group, route, awaits, leaf, around) in routes {
        let args = ["tasks", &service.target(), "--for", "0s", "--group", group];
        // From the outside to the leaf.
        let is_named = || {
            let seen = run(args.iter().chain(&["--tree"])).stdout;
            let at = |function: &str, place: &str| {
                seen.lines().position(|row| row.contains(function) && row.contains(place))
            };
            let mut way = vec![at(group, "")];
            way.extend(around.iter().map(|place| at("instrumented::watch", place)));
            way.extend([at(route, &awaits), at(leaf, "")]);
            way.iter().all(Option::is_some) && way.is_sorted()
        };
        eventually(is_named);
        let is_listed = || {
            let list = run(args).stdout;
            list.lines().any(|row| row.contains("awaiting") && row.contains(route) && row.contains(&awaits))
        };
        eventually(is_listed);
    }
    asking.end_by(Signal::INT);
}
