//! The place of a wait by name, end to end: the tea house waits, and the command says in which
//! function and line, and through which callers.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use dormouse_testkit::eventually;
use memchr::memmem;
use rustix::process::Signal;

use crate::support::{DORMOUSE, Running, Service, run, with_guest};

/// A blend that takes four times as long as others: a list mostly finds one.
const LONG: &str = "/blend?spoons=32";

/// The line of a source that has this text, once.
fn line(source: &str, text: &str) -> usize {
    let mut lines = (1..).zip(source.lines()).filter(|(_, line)| line.contains(text));
    let (number, _) = lines.next().unwrap_or_else(|| panic!("no {text}"));
    assert_eq!(lines.next(), None, "{text} is there twice");
    number
}

/// A place of the tea house, as a list writes it.
fn own(file: &str, source: &str, text: &str) -> String {
    format!("({file}:{})", line(source, text))
}

/// The place at which the tasks of a blend await.
fn blend() -> String {
    own("blend.rs", include_str!("../crates/teaparty/src/routes/blend.rs"), ".await?;")
}

/// A tea house whose places are taken all the time: it, and the command that asks.
fn asked(program: &OsStr) -> (Service, Running) {
    let runtime = tempfile::tempdir().expect("a directory");
    let load = |command: &mut Command| {
        command.args(["--load", "300", "--for", "10m"]);
    };
    let service = Service::start_as(program, runtime, load).expect("the service starts");
    let asking = Running::start(["tasks", &service.target(), "--for", "10m"]);
    (service, asking)
}

/// The arguments of a list of the blends' tasks.
fn list(service: &Service) -> [String; 6] {
    ["tasks", &service.target(), "--for", "0s", "--group", "GET /blend"].map(str::to_owned)
}

/// Whether a list has the place of the blends.
fn is_listed(service: &Service) -> bool {
    let list = run(list(service)).stdout;
    list.lines().any(|row| row.contains("awaiting") && row.contains("blend::mix") && row.contains(&blend()))
}

#[test]
fn libraries_at_unknown_places_are_not_own() {
    // As if it had been built where cargo's home has a name that nobody knows.
    let (known, unknown) = (b"/registry/src/", b"/elsewhere/of/");
    let mut bytes = fs::read(DORMOUSE).expect("the tea house");
    let places: Vec<usize> = memmem::find_iter(&bytes, known).collect();
    assert!(!places.is_empty(), "it has libraries from a registry");
    for at in places {
        bytes[at..at + known.len()].copy_from_slice(unknown);
    }
    let folder = tempfile::tempdir().expect("a directory");
    let moved = folder.path().join("dormouse");
    let written = folder.path().join("written");
    fs::write(&written, bytes).expect("a file");
    fs::set_permissions(&written, Permissions::from_mode(0o755)).expect("its owner");
    // By another process: one that this one starts meanwhile has no descriptor of it.
    let copied = Command::new("cp").arg(&written).arg(&moved).status().expect("cp");
    assert!(copied.success(), "a copy");
    let (service, asking) = asked(moved.as_os_str());
    with_guest(&service, LONG, || eventually(|| is_listed(&service)));
    // At any one moment there may be no blend.
    let json = || run(list(&service).iter().map(String::as_str).chain(["--json"])).json();
    eventually(|| !json()["places"].as_array().expect("places").is_empty());
    let wall = run(["profile", &service.target(), "--kind", "wall", "--for", "2s"]).stdout;
    let group =
        wall.split("\n\n").find(|part| part.contains("GET /blend")).unwrap_or_else(|| panic!("{wall}"));
    let share = |row: &str| row.split_whitespace().next().and_then(|share| share.parse::<f64>().ok());
    let mix = group.lines().find(|row| row.contains("blend::mix")).and_then(share);
    assert!(mix.is_some_and(|share| share > 0.0), "the wait is its own: {wall}");
    asking.end_by(Signal::INT);
}

#[test]
fn a_tree_names_the_lines_that_await() {
    let (service, asking) = asked(DORMOUSE.as_ref());
    let around = own(
        "instrument.rs",
        include_str!("../crates/teaparty/src/instrument.rs"),
        "return Pin::new(served).poll(cx)",
    );
    let args = list(&service);
    let is_named = || {
        let seen = run(args.iter().map(String::as_str).chain(["--tree"])).stdout;
        let at = |function: &str, place: &str| {
            seen.lines().position(|row| row.contains(function) && row.contains(place))
        };
        // From the outside to the leaf.
        let way = [
            at("GET /blend", ""),
            at("instrument::poll", &around),
            at("blend::mix", &blend()),
            at("JoinHandle", ""),
        ];
        way.iter().all(Option::is_some) && way.is_sorted()
    };
    with_guest(&service, LONG, || {
        eventually(is_named);
        eventually(|| is_listed(&service));
    });
    asking.end_by(Signal::INT);
}
