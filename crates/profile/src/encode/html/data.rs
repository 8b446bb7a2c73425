//! Data for the page's scripts: the stacks as one tree of names, and rows of weights in it.
//!
//! Everything is stored in columns of small numbers, so that a hundred thousand frames are a few
//! megabytes. The tree is written in the order of a walk from the root: the descendants of a node
//! are a range of nodes.

use std::collections::HashMap;

use serde::Serialize;

use crate::ends::StackEnds;
use crate::symbols::{missing, place};
use crate::{Column, Profile, ProfileCoverage, ProfileKind, SourceFrame, Symbols, Values};

/// The page's data.
#[derive(Serialize)]
pub(super) struct Data {
    program: String,
    pid: u32,
    unix_ms: u64,
    seconds: f64,
    /// The thing that the main column counts, in words.
    measure: &'static str,
    main: usize,
    columns: Vec<Unit>,
    groups: Vec<Named>,
    threads: Vec<Named>,
    coverage: ProfileCoverage,
    /// Where stacks end that are not whole: sentences.
    ends: Vec<String>,
    old: Option<Old>,
    functions: Vec<String>,
    /// For each function the index of its file, and of its library.
    file: Vec<u32>,
    library: Vec<u32>,
    /// For each function its first line, and how many lines later its last is.
    line: Vec<u32>,
    /// For each function 1 if it was inlined wherever it was seen.
    inlined: Vec<u8>,
    files: Vec<String>,
    libraries: Vec<String>,
    /// For each node of the tree but the root: how many levels the walk goes up before it, and its
    /// function.
    nodes: Vec<u32>,
    rows: Rows,
}

#[derive(Serialize)]
struct Unit {
    name: &'static str,
    unit: &'static str,
}

#[derive(Serialize)]
struct Named {
    name: String,
}

#[derive(Serialize)]
struct Old {
    seconds: f64,
    samples: u64,
}

/// Weights by node, group and thread, in the order of nodes.
#[derive(Default, Serialize)]
struct Rows {
    /// How many nodes later than the row before.
    node: Vec<u32>,
    group: Vec<u32>,
    thread: Vec<u32>,
    /// For each column of values one list.
    now: Vec<Vec<u64>>,
    before: Option<Vec<Vec<u64>>>,
}

/// Strings, each once.
#[derive(Default)]
struct Pool {
    of: HashMap<String, u32>,
    all: Vec<String>,
}

impl Pool {
    fn add(&mut self, text: &str) -> u32 {
        if let Some(&index) = self.of.get(text) {
            return index;
        }
        let index = number(self.all.len());
        self.of.insert(text.to_owned(), index);
        self.all.push(text.to_owned());
        index
    }

    fn named(self) -> Vec<Named> {
        self.all.into_iter().map(|name| Named { name }).collect()
    }
}

fn number(length: usize) -> u32 {
    u32::try_from(length).expect("as many as a profile's indices can tell apart")
}

/// Facts about a function.
#[derive(Clone, Copy)]
struct Known {
    file: u32,
    library: u32,
    /// 0 if unknown.
    first_line: u32,
    last_line: u32,
    inlined: bool,
}

/// A tree that grows: children by function.
struct Grown {
    function: u32,
    children: Vec<u32>,
}

struct Builder {
    functions: Pool,
    known: Vec<Known>,
    files: Pool,
    libraries: Pool,
    groups: Pool,
    threads: Pool,
    tree: Vec<Grown>,
    child: HashMap<(u32, u32), u32>,
    /// By node, group and thread: now, and before.
    weights: HashMap<(u32, u32, u32), [Values; 2]>,
}

/// The page's data for a profile, and for an earlier one to compare with.
pub(super) fn of(profile: &Profile, symbols: &Symbols, old: Option<(&Profile, &Symbols)>) -> Data {
    let mut builder = Builder {
        functions: Pool::default(),
        known: Vec::new(),
        files: Pool::default(),
        libraries: Pool::default(),
        groups: Pool::default(),
        threads: Pool::default(),
        tree: vec![Grown { function: 0, children: Vec::new() }],
        child: HashMap::new(),
        weights: HashMap::new(),
    };
    builder.files.add("");
    builder.take(profile, symbols, 0);
    if let Some((old, symbols)) = old {
        builder.take(old, symbols, 1);
    }
    builder.finish(profile, old.map(|(old, _)| old))
}

#[expect(clippy::cast_precision_loss, reason = "a page does not show nanoseconds of a week")]
fn seconds(profile: &Profile) -> f64 {
    profile.duration_ns as f64 / 1e9
}

impl Builder {
    /// Adds the samples of a profile: of now (`side` 0), or of before (1).
    fn take(&mut self, profile: &Profile, symbols: &Symbols, side: usize) {
        let groups: Vec<_> = profile.groups.iter().map(|group| self.groups.add(&group.name)).collect();
        let threads: Vec<_> = profile.threads.iter().map(|thread| self.threads.add(&thread.name)).collect();
        let mut at = HashMap::new();
        let mut nodes: Vec<u32> = Vec::with_capacity(profile.stacks.len());
        for (index, node) in profile.stacks.iter().enumerate() {
            // A node comes after its parent. One that does not begins at the root.
            let parent = (node.parent as usize).checked_sub(1).filter(|&parent| parent < index);
            let mut here = parent.map_or(0, |parent| nodes[parent]);
            let functions =
                at.entry(node.address).or_insert_with(|| self.functions_at(profile, symbols, node.address));
            for &function in functions.iter() {
                here = self.below(here, function);
            }
            nodes.push(here);
        }
        for sample in &profile.samples {
            let stack = (sample.stack as usize).checked_sub(1).and_then(|index| nodes.get(index));
            let node = stack.copied().unwrap_or_else(|| {
                let function = self.function(missing(profile, sample), "", &SourceFrame::default());
                self.below(0, function)
            });
            let group = groups.get(sample.group as usize).copied().unwrap_or_else(|| self.groups.add(""));
            let thread = threads.get(sample.thread as usize).copied();
            let thread = thread.unwrap_or_else(|| self.threads.add(""));
            let row = &mut self.weights.entry((node, group, thread)).or_default()[side];
            for (sum, value) in row.iter_mut().zip(sample.values) {
                *sum = sum.saturating_add(value);
            }
        }
    }

    /// The functions at an address, the outermost first.
    fn functions_at(&mut self, profile: &Profile, symbols: &Symbols, address: u64) -> Vec<u32> {
        let path = profile.mapping(address).map_or("", |mapping| &mapping.path);
        let object = path.rsplit('/').next().unwrap_or_default();
        let frames = symbols.get(address);
        if frames.is_empty() {
            return vec![self.function(&place(profile, address), object, &SourceFrame::default())];
        }
        frames.iter().rev().map(|frame| self.function(&frame.function, object, frame)).collect()
    }

    fn function(&mut self, name: &str, object: &str, frame: &SourceFrame) -> u32 {
        let index = self.functions.add(name);
        if let Some(known) = self.known.get_mut(index as usize) {
            known.inlined &= frame.inlined;
            if frame.line > 0 {
                let first = if known.first_line == 0 { frame.line } else { known.first_line };
                known.first_line = first.min(frame.line);
                known.last_line = known.last_line.max(frame.line);
            }
        } else {
            self.known.push(Known {
                file: self.files.add(&frame.file),
                library: self.libraries.add(library(name, object)),
                first_line: frame.line,
                last_line: frame.line,
                inlined: frame.inlined,
            });
        }
        index
    }

    fn below(&mut self, parent: u32, function: u32) -> u32 {
        *self.child.entry((parent, function)).or_insert_with(|| {
            let child = number(self.tree.len());
            self.tree.push(Grown { function, children: Vec::new() });
            self.tree[parent as usize].children.push(child);
            child
        })
    }

    /// The tree as a walk, and the place of each node in it.
    fn walk(&self) -> (Vec<u32>, Vec<u32>) {
        let mut nodes = Vec::with_capacity(2 * self.tree.len());
        let mut places = vec![0; self.tree.len()];
        let mut depth = 0;
        let mut next: Vec<(u32, u32)> = self.tree[0].children.iter().rev().map(|&child| (child, 1)).collect();
        while let Some((node, level)) = next.pop() {
            let grown = &self.tree[node as usize];
            nodes.extend([depth + 1 - level, grown.function]);
            depth = level;
            places[node as usize] = number(nodes.len() / 2);
            next.extend(grown.children.iter().rev().map(|&child| (child, level + 1)));
        }
        (nodes, places)
    }

    fn finish(self, profile: &Profile, old: Option<&Profile>) -> Data {
        let (nodes, places) = self.walk();
        let mut weights: Vec<_> = self
            .weights
            .iter()
            .filter(|(_, values)| values.as_flattened().iter().any(|&value| value > 0))
            .map(|(&(node, group, thread), values)| (places[node as usize], group, thread, values))
            .collect();
        weights.sort_unstable_by_key(|&(node, group, thread, _)| (node, group, thread));
        let columns = profile.kind.columns();
        let lists = |side: usize| -> Vec<Vec<u64>> {
            let list = |column| weights.iter().map(|row| row.3[side][column]).collect();
            (0..columns.len()).map(list).collect()
        };
        let mut rows = Rows { now: lists(0), before: old.map(|_| lists(1)), ..Rows::default() };
        let mut last = 0;
        for &(node, group, thread, _) in &weights {
            rows.node.push(node - last);
            rows.group.push(group);
            rows.thread.push(thread);
            last = node;
        }
        let known = &self.known;
        Data {
            program: profile.program.clone(),
            pid: profile.pid,
            unix_ms: profile.unix_ns / 1_000_000,
            seconds: seconds(profile),
            measure: measure(profile.kind),
            main: profile.main_column(),
            columns: columns.iter().map(|&Column { name, unit }| Unit { name, unit }).collect(),
            coverage: profile.coverage.clone(),
            ends: StackEnds::of(profile).sentences(),
            old: old.map(|old| Old { seconds: seconds(old), samples: old.coverage.samples }),
            file: known.iter().map(|known| known.file).collect(),
            library: known.iter().map(|known| known.library).collect(),
            line: known
                .iter()
                .flat_map(|known| [known.first_line, known.last_line - known.first_line])
                .collect(),
            inlined: known.iter().map(|known| u8::from(known.inlined)).collect(),
            functions: self.functions.all,
            files: self.files.all,
            libraries: self.libraries.all,
            groups: self.groups.named(),
            threads: self.threads.named(),
            nodes,
            rows,
        }
    }
}

fn measure(kind: ProfileKind) -> &'static str {
    match kind {
        ProfileKind::Cpu => "of CPU time",
        ProfileKind::Alloc => "allocated",
        ProfileKind::Faults => "page faults",
        ProfileKind::Wall => "of wall time",
    }
}

/// Where a function is at home: the crate or namespace of its name, else the object that holds it.
fn library<'a>(name: &'a str, object: &'a str) -> &'a str {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    // "<a::B as c::D>::e" is of crate `a`; "<T as c::D>::e" of `c`, since `T` is no path.
    name.split(|letter: char| !is_word(letter) && letter != ':')
        .filter_map(|path| path.split_once("::"))
        .map(|(first, _)| first)
        .find(|first| first.starts_with(|letter: char| letter.is_alphabetic() || letter == '_'))
        .unwrap_or(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Node, Sample};

    #[test]
    fn library_is_the_crate_of_a_name() {
        for (name, expected) in [
            ("teaparty::blend::grind", "teaparty"),
            ("<alloc::vec::Vec<T> as core::ops::Drop>::drop", "alloc"),
            ("<T as core::convert::Into<U>>::into", "core"),
            ("&mut dyn tokio::Runtime", "tokio"),
            ("<&mut hyper::Body as http::Body>::poll::{{closure}}", "hyper"),
            ("std::vector<int>::push_back(int)", "std"),
            ("memcpy", "libc.so.6"),
            ("libc.so.6+0x1234", "libc.so.6"),
        ] {
            assert_eq!(library(name, "libc.so.6"), expected, "{name}");
        }
    }

    fn frame(function: &str, line: u32, inlined: bool) -> SourceFrame {
        SourceFrame { function: function.to_owned(), file: "tea.rs".to_owned(), line, inlined }
    }

    fn profile(samples: &[(u32, u32, u64)]) -> (Profile, Symbols) {
        let node = |parent, address| Node { parent, address };
        let sample = |&(group, stack, value)| Sample { group, thread: 0, stack, values: [1, value, 0, 0] };
        let group =
            |name: &str| crate::ProfileGroup { name: name.to_owned(), ..crate::ProfileGroup::default() };
        let profile = Profile {
            groups: vec![group(""), group("GET /tea")],
            stacks: vec![node(0, 1), node(1, 2), node(1, 3), node(2, 4)],
            samples: samples.iter().map(sample).collect(),
            ..Profile::default()
        };
        let mut symbols = Symbols::default();
        symbols.insert(1, vec![frame("main", 1, false)]);
        // Two addresses of one function: they are one box.
        symbols.insert(2, vec![frame("step", 9, true), frame("pour", 7, false)]);
        symbols.insert(3, vec![frame("pour", 3, false)]);
        (profile, symbols)
    }

    #[test]
    fn stacks_are_one_tree_of_names() {
        let (profile, symbols) = profile(&[(1, 4, 10), (1, 2, 5), (0, 3, 2), (0, 0, 1)]);
        let data = of(&profile, &symbols, None);
        let name = |index: usize| data.functions[data.nodes[2 * index + 1] as usize].as_str();
        let names: Vec<_> = (0..data.nodes.len() / 2).map(name).collect();
        assert_eq!(names, ["main", "pour", "step", "0x4", "(stack unknown)"]);
        let ups: Vec<_> = data.nodes.iter().step_by(2).copied().collect();
        assert_eq!(ups, [0, 0, 0, 0, 4]);
        assert_eq!(data.rows.node, [2, 1, 1, 1]);
        assert_eq!(data.rows.group, [0, 1, 1, 0]);
        assert_eq!(data.rows.now[1], [2, 5, 10, 1]);
        let pour = data.functions.iter().position(|name| name == "pour").unwrap();
        assert_eq!(data.line[2 * pour..2 * pour + 2], [3, 4]);
        let step = data.functions.iter().position(|name| name == "step").unwrap();
        assert_eq!((data.inlined[pour], data.inlined[step]), (0, 1));
    }

    #[test]
    fn rows_hold_both_profiles() {
        let (new, symbols) = profile(&[(1, 4, 10), (0, 3, 2)]);
        let (old, _) = profile(&[(1, 4, 4), (1, 3, 6)]);
        let data = of(&new, &symbols, Some((&old, &symbols)));
        let before = data.rows.before.unwrap();
        assert_eq!(data.rows.group, [0, 1, 1]);
        assert_eq!(data.rows.now[1], [2, 0, 10]);
        assert_eq!(before[1], [0, 6, 4]);
    }

    #[test]
    fn foreign_indices_do_no_harm() {
        let mut broken = profile(&[(7, 99, 10)]).0;
        broken.stacks[0].parent = 3;
        broken.samples[0].thread = 5;
        let data = of(&broken, &Symbols::default(), None);
        assert_eq!(data.rows.now[1], [10]);
        assert_eq!(data.groups[data.rows.group[0] as usize].name, "");
    }
}
