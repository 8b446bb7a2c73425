//! Tasks as a tree: groups, the functions on the way to the places where tasks wait, and how many
//! wait there.

use std::collections::BTreeMap;

use clap::builder::styling::Style;
use dormouse_protocol::{TaskRow, WireTaskState};
use serde::Serialize;

use super::document::ListingHead;
use super::text::cut;
use super::{Listing, Unlisted, state, without_waker};
use crate::duration::short;
use crate::output::HEAD;
use crate::render::frame::CodeFrame;
use crate::render::table::Table;
use crate::text::clean;
use crate::waiting::place::name;

/// The most functions on the way to a place: the others, on the outside, are left out.
const MOST_FRAMES: usize = 128;

/// A function on the way to places, or a stand-in for one, and the tasks that wait there.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Branch {
    tasks: u64,
    /// The longest time that one of them has been in its state.
    longest_ns: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inner: Vec<Named>,
    #[serde(skip)]
    by_key: BTreeMap<Key, Branch>,
    /// The task that was counted last: one that waits at several places counts once.
    #[serde(skip)]
    last: Option<u64>,
}

/// A branch with its name.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Named {
    #[serde(flatten)]
    key: Key,
    #[serde(flatten)]
    branch: Branch,
}

/// The difference between branches.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
enum Key {
    Group {
        group: String,
    },
    Frame {
        function: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        file: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        line: Option<u32>,
    },
    /// No place is known, or there is none.
    State {
        state: &'static str,
    },
}

impl From<&CodeFrame> for Key {
    fn from(of: &CodeFrame) -> Self {
        Self::Frame { function: of.function.clone(), file: of.file.clone(), line: of.line }
    }
}

impl Branch {
    fn of(listing: &Listing<'_>) -> Self {
        let mut root = Self::default();
        for task in &listing.tasks {
            let group = Key::Group { group: listing.group(task).to_owned() };
            let places: Vec<&[CodeFrame]> = match task.state {
                WireTaskState::Polled => Vec::new(),
                _ => task.places.iter().map(|&place| listing.places.frames(place)).collect(),
            };
            let known: Vec<_> = places.into_iter().filter(|frames| !frames.is_empty()).collect();
            for frames in &known {
                let way = frames[..frames.len().min(MOST_FRAMES)].iter().rev().map(Key::from);
                root.add([group.clone()].into_iter().chain(way), task);
            }
            if known.is_empty() {
                let state = without_waker(task).unwrap_or_else(|| state(task.state));
                root.add([group, Key::State { state }].into_iter(), task);
            }
        }
        root.close();
        root
    }

    fn add(&mut self, way: impl Iterator<Item = Key>, task: &TaskRow) {
        let mut at = self;
        at.count(task);
        for key in way {
            at = at.by_key.entry(key).or_default();
            at.count(task);
        }
    }

    fn count(&mut self, task: &TaskRow) {
        if self.last.replace(task.task) != Some(task.task) {
            self.tasks += 1;
            self.longest_ns = self.longest_ns.max(task.for_ns);
        }
    }

    /// Has those with most tasks come first.
    fn close(&mut self) {
        let by_key = std::mem::take(&mut self.by_key);
        self.inner = by_key.into_iter().map(|(key, branch)| Named { key, branch }).collect();
        self.inner.sort_by_key(|it| std::cmp::Reverse((it.branch.tasks, it.branch.longest_ns)));
        self.inner.iter_mut().for_each(|it| it.branch.close());
    }

    /// Rows of a table. A branch without a sibling stands below the one around it, not further to
    /// the right.
    fn rows(&self, depth: usize, table: &mut Table) {
        for Named { key, branch } in &self.inner {
            let text = match key {
                Key::Group { group } => clean(group),
                Key::Frame { function, file, line } => name(&CodeFrame {
                    function: function.clone(),
                    inlined: false,
                    file: file.clone(),
                    line: *line,
                    is_own: false,
                }),
                Key::State { state: "awaiting" } => "(awaiting, place not noted)".to_owned(),
                Key::State { state } => format!("({state})"),
            };
            let indent = "  ".repeat(depth);
            table.row([branch.tasks.to_string(), short(branch.longest_ns), format!("{indent}{text}")]);
            let is_fork = branch.inner.len() > 1 || matches!(key, Key::Group { .. });
            branch.rows(depth + usize::from(is_fork), table);
        }
    }
}

/// The tree as text; lines are cut off at `width`.
pub(crate) fn report(listing: &Listing<'_>, width: Option<usize>) -> String {
    let mut table = Table::new([">TASKS", ">LONGEST", "PLACE"]);
    let root = Branch::of(listing);
    root.rows(0, &mut table);
    let mut text = cut(&listing.head(), width, HEAD);
    if root.tasks > 0 {
        let mut rendered = table.render(Style::new());
        let rows = rendered.split_off(rendered.find('\n').map_or(0, |end| end + 1));
        text.push_str(&cut(&rendered, width, HEAD));
        text.push_str(&cut(&rows, width, Style::new()));
    }
    text + &cut(&listing.foot(), width, Style::new())
}

/// The tree as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct TreeDocument<'a> {
    #[serde(flatten)]
    head: ListingHead,
    tree: Branch,
    unlisted: &'a [Unlisted<'a>],
}

impl<'a> TreeDocument<'a> {
    pub(crate) fn new(listing: &'a Listing<'a>) -> Self {
        Self { head: ListingHead::of(listing), tree: Branch::of(listing), unlisted: &listing.unlisted }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::listing;
    use super::*;
    use crate::waiting::place::PlaceNames;
    use crate::waiting::place::tests::frame;
    use crate::waiting::tests::{list, task};

    #[test]
    fn tasks_are_counted_on_their_way_inside() {
        let [db, web, main] = [("db::wait", 1), ("web::wait", 2), ("shop::main", 3)]
            .map(|(function, line)| frame(function, "/a/shop.rs", line));
        let places = PlaceNames([(4, vec![db, main.clone()]), (5, vec![web, main])].into());
        let at = |number, places: &[u32]| TaskRow {
            places: places.to_vec(),
            ..task(number, 1, WireTaskState::Awaiting, number * 1_000)
        };
        let polled = TaskRow { places: vec![4], ..task(9, 1, WireTaskState::Polled, 1) };
        let by_hand = TaskRow { has_waker: false, by_hand: true, ..task(8, 2, WireTaskState::Awaiting, 1) };
        let list = list(vec![at(1, &[4]), at(2, &[4, 5]), at(3, &[77]), polled, by_hand]);
        let listing = listing(&list, places);
        let text = anstream::adapter::strip_str(&report(&listing, None)).to_string();
        insta::assert_snapshot!("tree", text);
        let json = serde_json::to_value(TreeDocument::new(&listing)).unwrap();
        let group = &json["tree"]["inner"][0];
        assert_eq!((&group["group"], &group["tasks"]), (&"GET /tea".into(), &4.into()), "{json}");
        assert_eq!(group["inner"][0]["function"], "shop::main", "{json}");
        assert_eq!(group["inner"][0]["inner"][0]["line"], 1, "{json}");
    }

    #[test]
    fn very_deep_places_are_cut_off() {
        let deep: Vec<_> = (0..100_000).map(|line| frame("deep", "/a/d.rs", line + 1)).collect();
        let places = PlaceNames([(4, deep)].into());
        let list = list(vec![TaskRow { places: vec![4], ..task(1, 1, WireTaskState::Awaiting, 1) }]);
        let text = report(&listing(&list, places), None);
        assert!(text.contains("d.rs:1)") && text.lines().count() < 200, "{} lines", text.lines().count());
    }
}
