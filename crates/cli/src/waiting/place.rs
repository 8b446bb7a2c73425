//! Where tasks wait, by name.
//!
//! A place is a stack, from the leaf that took the waker to the poll of the task. Its most
//! informative function is the innermost that belongs neither to a runtime nor to a library; these
//! are below and above the service's own.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use dormouse_profile::is_yield;
use dormouse_profile::own::place;
use dormouse_profile::sets::{Called, around_set, parts_of};
use dormouse_protocol::{TaskRow, WireTaskState};

use super::list::{TaskList, places};
use super::stacks::{CUT, LOST, named};
use crate::client::Client;
use crate::exit::Outcome;
use crate::output::{Context, DIM, FAIR};
use crate::render::frame::CodeFrame;
use crate::render::profile::text::brief;
use crate::text::{clean, count};

/// A remark on a place: the wait is of parts that have wakers of their own.
pub(crate) const IN_A_SET: &str = " (in a set: its parts are not seen)";

/// The most functions of a thread's stack without any of the service's own.
const MOST_FOREIGN: usize = 12;

/// The functions of places, by the places' numbers, the innermost first.
#[derive(Debug, Default)]
pub(crate) struct PlaceNames(pub(crate) HashMap<u32, Vec<CodeFrame>>);

impl PlaceNames {
    /// The functions of these places of a service. Without names they are addresses, and a note
    /// gives the reason.
    pub(crate) fn of(client: &mut Client, wanted: &BTreeSet<u32>, context: &Context) -> Outcome<Self> {
        if wanted.is_empty() {
            return Ok(Self::default());
        }
        let stacks = places(client, wanted)?;
        let (names, why) = named(client.names(), &stacks);
        if let Some(why) = why {
            context.note(format_args!("{FAIR}functions have no names:{FAIR:#} {}", clean(&why)));
        }
        Ok(Self(names))
    }

    /// The functions of a place; none if it is not known.
    pub(crate) fn frames(&self, place: u32) -> &[CodeFrame] {
        self.0.get(&place).map_or(&[], Vec::as_slice)
    }

    /// A place in words; `None` if it is not known.
    pub(crate) fn at(&self, place: u32) -> Option<String> {
        let frames = self.frames(place);
        let set = if hides_parts(frames) { IN_A_SET } else { "" };
        Some(name(most(frames)?) + set)
    }

    /// Where a task waits, on one line; empty if it is unknown. A place in the service's own code
    /// comes first: the timer of a timeout around it says less.
    pub(crate) fn line(&self, task: &TaskRow) -> String {
        let is_own = |place: &u32| most(self.frames(*place)).is_some_and(|frame| frame.is_own);
        let (own, others): (Vec<u32>, Vec<u32>) = task.places.iter().partition(|&place| is_own(place));
        let mut known = own.into_iter().chain(others).filter_map(|place| self.at(place));
        let Some(mut line) = known.next() else { return String::new() };
        match (known.count(), task.more_places) {
            (0, false) => {}
            (more, false) => {
                let _ = write!(line, " and {more} more");
            }
            (more, true) => {
                let _ = write!(line, " and {} or more", more + 1);
            }
        }
        if task.polls_ago > 0 {
            let _ = write!(line, " (as of {} ago)", count(u64::from(task.polls_ago), "poll"));
        }
        if self.is_yield(task) {
            line.push_str(" (yielded)");
        }
        line
    }
}

impl PlaceNames {
    /// Has the tasks of a list that have only yielded be runnable: nothing but a thread is missing.
    /// The service itself sees no wake before its worker's next turn.
    pub(crate) fn find_yields(&self, list: &mut TaskList) {
        for task in &mut list.tasks {
            if task.state == WireTaskState::Awaiting && self.is_yield(task) {
                task.state = WireTaskState::Runnable;
            }
        }
    }

    /// Takes the place of a set from tasks that have places in parts of it: they wait for these.
    pub(crate) fn leave_out_sets(&self, list: &mut TaskList) {
        for task in &mut list.tasks {
            let called: Vec<_> = task.places.iter().map(|&place| called(self.frames(place))).collect();
            let mut numbers = 0..;
            task.places.retain(|_| numbers.next().is_none_or(|set| parts_of(set, &called).is_empty()));
        }
    }

    fn is_yield(&self, task: &TaskRow) -> bool {
        let mut frames = task.places.iter().flat_map(|&place| self.frames(place));
        frames.any(|frame| is_yield(&frame.function))
    }
}

/// Whether a collection that gives its parts wakers of its own has taken the waker: where these
/// wait is not seen.
pub(crate) fn hides_parts(frames: &[CodeFrame]) -> bool {
    around_set(&called(frames)).is_some()
}

/// The functions as rules on names take them, without remarks.
pub(crate) fn called(frames: &[CodeFrame]) -> Vec<Called<'_>> {
    let frames = frames.iter().filter(|frame| frame.function != CUT && frame.function != LOST);
    frames
        .map(|of| (&*of.function, of.file.as_deref().unwrap_or_default(), of.line.unwrap_or_default()))
        .collect()
}

/// A function with its line, fit for a terminal.
pub(crate) fn name(frame: &CodeFrame) -> String {
    let function = clean(&brief(stem(&frame.function)));
    let Some(file) = &frame.file else { return function };
    let file = clean(file.rsplit('/').next().unwrap_or_default());
    match frame.line {
        Some(line) => format!("{function} ({file}:{line})"),
        None => format!("{function} ({file})"),
    }
}

/// The name without the parts that stand for the body of an async function.
fn stem(function: &str) -> &str {
    let mut stem = function;
    while let Some(shorter) = stem.strip_suffix("::{{closure}}") {
        stem = shorter;
    }
    stem
}

/// The stack of a thread that is stuck, one function a line. The most useful part of it are the
/// service's own functions: the innermost keeps the thread, through the leaf that it has called. At
/// the end stands why it is not whole.
pub(crate) fn stack(text: &mut String, frames: &[CodeFrame]) {
    let (frames, lack) = match frames {
        [frames @ .., last] if is_reason(&last.function) => (frames, Some(last)),
        _ => (frames, None),
    };
    functions(text, frames);
    if let Some(lack) = lack {
        let _ = writeln!(text, "    {DIM}{}{DIM:#}", clean(&lack.function));
    }
}

/// Whether that stands in place of a function, as the names of stacks' ends do.
fn is_reason(function: &str) -> bool {
    ["(caller unknown: ", "(deeper than "].iter().any(|prefix| function.starts_with(prefix))
}

fn functions(text: &mut String, frames: &[CodeFrame]) {
    let mut own = frames.iter().filter(|frame| is_the_services(frame)).peekable();
    if own.peek().is_none() {
        for frame in frames.iter().take(MOST_FOREIGN) {
            let _ = writeln!(text, "    {}", name(frame));
        }
        return;
    }
    let leaf = frames.first().filter(|leaf| !is_the_services(leaf));
    for (place, frame) in own.enumerate() {
        let leaf = leaf.filter(|_| place == 0);
        let by = leaf.map_or_else(String::new, |leaf| format!("{DIM}, in {}{DIM:#}", name(leaf)));
        let _ = writeln!(text, "    {}{by}", name(frame));
    }
}

/// Whether a function is the service's own. Those of C have no path, and are the library's here.
fn is_the_services(frame: &CodeFrame) -> bool {
    frame.is_own && frame.function.contains("::")
}

/// Whether the task waits at an unknown place.
pub(crate) fn is_unplaced(task: &TaskRow) -> bool {
    task.state == WireTaskState::Awaiting && task.has_waker && task.places.is_empty()
}

/// The most informative frame.
pub(crate) fn most(frames: &[CodeFrame]) -> Option<&CodeFrame> {
    frames.get(place(frames, |frame| frame.is_own, |frame| &frame.function))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::waiting::tests::{list, task};
    use dormouse_profile::OwnCode;

    pub(crate) fn frame(function: &str, file: &str, line: u32) -> CodeFrame {
        CodeFrame {
            function: function.into(),
            inlined: false,
            file: (!file.is_empty()).then(|| file.into()),
            line: (line > 0).then_some(line),
            is_own: OwnCode::default().is_own(function, Some(file)),
        }
    }

    #[test]
    fn the_innermost_own_function_is_the_place() {
        let stack = [
            frame("<tokio::time::sleep::Sleep as core::future::future::Future>::poll", "", 0),
            frame("<core::pin::Pin<P> as core::future::future::Future>::poll", "/rustc/1/core/pin.rs", 9),
            frame("reqwest::wait", "/home/a/.cargo/registry/src/x/wait.rs", 3),
            frame("<shop::orders::Fetch as core::future::future::Future>::poll", "/src/orders.rs", 42),
            frame("shop::main::{{closure}}", "/src/main.rs", 1),
        ];
        let names = PlaceNames([(4, stack.to_vec()), (5, stack[..3].to_vec())].into());
        let line = |places: &[u32]| {
            let all = TaskRow { places: places.to_vec(), ..task(1, 1, WireTaskState::Awaiting, 1) };
            names.line(&all)
        };
        assert!(line(&[4]).starts_with("<shop::orders::Fetch") && line(&[4]).ends_with("(orders.rs:42)"));
        for places in [[4, 5], [5, 4]] {
            assert!(line(&places).ends_with("(orders.rs:42) and 1 more"), "{}", line(&places));
        }
        let marked = |more_places, polls_ago| {
            let places = vec![4, 5];
            names.line(&TaskRow { places, more_places, polls_ago, ..task(1, 1, WireTaskState::Awaiting, 1) })
        };
        assert!(marked(true, 0).ends_with("(orders.rs:42) and 2 or more"), "{}", marked(true, 0));
        assert!(marked(false, 8).ends_with("and 1 more (as of 8 polls ago)"), "{}", marked(false, 8));
        assert!(line(&[5]).starts_with("<tokio::"), "where there is no own one, the leaf: {}", line(&[5]));
        assert_eq!((line(&[]), line(&[77])), (String::new(), String::new()));
    }

    #[test]
    fn a_task_that_yields_is_runnable() {
        let defer = frame("tokio::runtime::scheduler::defer::Defer::defer", "", 0);
        let names = PlaceNames(
            [(4, vec![defer, frame("shop::brew", "/src/brew.rs", 7)]), (5, vec![frame("shop::wait", "", 0)])]
                .into(),
        );
        let at = |number, places: &[u32]| TaskRow {
            places: places.to_vec(),
            ..task(number, 1, WireTaskState::Awaiting, 1)
        };
        let mut list = list(vec![at(1, &[4]), at(2, &[5]), at(3, &[5, 4]), at(4, &[])]);
        names.find_yields(&mut list);
        let states: Vec<_> = list.tasks.iter().map(|task| task.state).collect();
        let [runnable, awaiting] = [WireTaskState::Runnable, WireTaskState::Awaiting];
        assert_eq!(states, [runnable, awaiting, runnable, awaiting]);
        assert_eq!(names.line(&list.tasks[0]), "shop::brew (brew.rs:7) (yielded)");
        assert_eq!(names.line(&list.tasks[1]), "shop::wait");
    }

    #[test]
    fn a_set_says_that_it_hides_its_parts() {
        let set = "<futures_util::stream::futures_unordered::FuturesUnordered<Fut> as Stream>::poll_next";
        let inlined = frame(
            "poll_next<shop::Fetch>",
            "/home/a/.cargo/registry/src/x/futures-util/src/stream/futures_unordered/mod.rs",
            5,
        );
        for leaf in [frame(set, "", 0), inlined] {
            let names = PlaceNames([(4, vec![leaf, frame("shop::all", "/src/all.rs", 3)])].into());
            let line = names.line(&TaskRow { places: vec![4], ..task(1, 1, WireTaskState::Awaiting, 1) });
            assert_eq!(line, "shop::all (all.rs:3) (in a set: its parts are not seen)");
            let part = frame("dormouse_waits::part::PartWaits::poll", "/r/dormouse-waits/src/part.rs", 30);
            let [set, all] = names.frames(4) else { panic!() };
            let stack = vec![frame("shop::one", "/src/one.rs", 8), part, set.clone(), all.clone()];
            let names = PlaceNames([(4, vec![set.clone(), all.clone()]), (5, stack)].into());
            let at = |places: &[u32]| TaskRow {
                places: places.to_vec(),
                ..task(1, 1, WireTaskState::Awaiting, 1)
            };
            let mut list = list(vec![at(&[4, 5]), at(&[4])]);
            names.leave_out_sets(&mut list);
            assert_eq!([&list.tasks[0].places[..], &list.tasks[1].places], [&[5][..], &[4]]);
            assert_eq!(names.line(&list.tasks[0]), "shop::one (one.rs:8)", "its parts are seen");
        }
    }

    #[test]
    fn async_functions_have_their_names() {
        assert_eq!(
            name(&frame("shop::brew::{{closure}}::{{closure}}", "/src/brew.rs", 7)),
            "shop::brew (brew.rs:7)"
        );
        assert_eq!(name(&frame("shop::\u{1b}[31m", "", 0)), "shop::\\u{1b}[31m");
    }
}
