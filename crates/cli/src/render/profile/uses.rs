//! The use of each function of a group: its own, and including the functions that it called. In a
//! profile without groups the threads with one name stand for a group.
//!
//! A function of the language's own library that the compiler has inlined (`Iterator::next`,
//! `ptr::read`) counts as part of the function into which it is inlined, at the line of the call:
//! otherwise such helpers would rank above all code that users can change. A function of that
//! library that is really called has a row of its own, and files contain all frames.
//!
//! A wait counts for the function that the list of tasks shows as its place: functions inside of it
//! only register the wait.

use std::collections::HashMap;

use dormouse_profile::symbols::{NO_SAMPLE, STACK_UNKNOWN};
use dormouse_profile::{NO_GROUP, Profile, ProfileKind, Sample, Symbols, Thread, WallState, own};

use crate::duration::short;

/// Work in no group.
pub(crate) const UNATTRIBUTED: &str = "(unattributed)";
/// Frames of a stack that are read: more than a sampler takes.
const MOST_FRAMES: usize = 4096;
/// The parts of paths that only sources of a language's own library have: those of Rust as they are
/// built in, as they are installed, and their dependencies; those of C++.
const OF_LANGUAGE: [&str; 4] = ["/rustc/", "/rustlib/src/rust/", "/rust/deps/", "/include/c++/"];
/// Code in no mapping that is known.
const NOWHERE: &str = "[unknown]";

/// The use of a group, or of work in no group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupUse {
    pub(crate) name: String,
    /// By the account of groups, or if that is unknown, the sum of its samples.
    pub(crate) total: u64,
    /// The one that used most by itself first.
    pub(crate) functions: Vec<FunctionUse>,
}

/// The use of a function in a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FunctionUse {
    pub(crate) name: String,
    /// By the function itself.
    pub(crate) own: u64,
    /// By it and by those that it called.
    pub(crate) total: u64,
    /// The file of its source, and its most frequent line; `None` if unknown.
    pub(crate) place: Option<(String, u32)>,
}

/// Numbers of functions at the addresses of a profile.
struct Functions<'a> {
    profile: &'a Profile,
    symbols: &'a Symbols,
    names: Vec<&'a str>,
    numbers: HashMap<&'a str, usize>,
    /// Functions at an address, and their places, the innermost first.
    at: HashMap<u64, Vec<Found<'a>>>,
}

/// A function at an address.
#[derive(Clone, Copy)]
struct Found<'a> {
    number: usize,
    place: Place<'a>,
    is_own: bool,
}

type Place<'a> = (&'a str, u32);

#[derive(Default)]
struct Use<'a> {
    own: u64,
    total: u64,
    places: HashMap<Place<'a>, u64>,
}

impl<'a> Functions<'a> {
    fn number(&mut self, name: &'a str) -> usize {
        *self.numbers.entry(name).or_insert_with(|| {
            self.names.push(name);
            self.names.len() - 1
        })
    }

    /// Whether it is on the way to the allocator, in the language's own library.
    fn is_allocators(&self, found: &Found<'_>) -> bool {
        let name = self.names[found.number];
        ["__rustc::", "__rust_"].iter().any(|shim| name.starts_with(shim))
            || OF_LANGUAGE.iter().any(|part| found.place.0.contains(part))
    }

    fn at(&mut self, address: u64) -> &[Found<'a>] {
        if !self.at.contains_key(&address) {
            let symbols = self.symbols;
            let mut found = Vec::new();
            let frames = symbols.get(address);
            for (index, frame) in frames.iter().enumerate() {
                let is_last = index + 1 == frames.len();
                if frame.inlined && !is_last && OF_LANGUAGE.iter().any(|part| frame.file.contains(part)) {
                    continue;
                }
                found.push(Found {
                    number: self.number(&frame.function),
                    place: (&*frame.file, frame.line),
                    is_own: symbols.own().is_own(&frame.function, Some(&frame.file)),
                });
            }
            if found.is_empty() {
                let object = self.profile.mapping(address).map(|mapping| &*mapping.path);
                let object = object.map(|path| path.rsplit('/').next().unwrap_or(path));
                let number = self.number(object.filter(|name| !name.is_empty()).unwrap_or(NOWHERE));
                found.push(Found { number, place: ("", 0), is_own: false });
            }
            self.at.insert(address, found);
        }
        &self.at[&address]
    }
}

/// The use of each group by its functions, in the unit of `column`; the one that used most first.
pub(crate) fn uses(profile: &Profile, symbols: &Symbols, column: usize) -> Vec<GroupUse> {
    let (names, numbers, at) = Default::default();
    let mut functions = Functions { profile, symbols, names, numbers, at };
    let parts = Parts::of(profile);
    let mut groups: Vec<(u64, HashMap<usize, Use<'_>>)> = Vec::new();
    groups.resize_with(parts.names.len(), Default::default);
    let is_of_memory = profile.kind == ProfileKind::Alloc;
    // The last sample that met a function, which is counted once a sample if it calls itself.
    let (mut met, mut stack): (Vec<usize>, Vec<Found<'_>>) = (Vec::new(), Vec::new());
    for (now, sample) in profile.samples.iter().enumerate() {
        let value = sample.values[column];
        // Another process may have named a group that is not there.
        let part = parts.part(sample).and_then(|part| groups.get_mut(part));
        let Some((sum, uses)) = part.filter(|_| value > 0) else { continue };
        *sum = sum.saturating_add(value);
        if sample.stack == 0 {
            let name = if sample.values[0] == 0 { NO_SAMPLE } else { STACK_UNKNOWN };
            uses.entry(functions.number(name)).or_default().add(value, true, ("", 0));
            continue;
        }
        stack.clear();
        let mut outermost = 0;
        for address in profile.stack(sample.stack).take(MOST_FRAMES) {
            stack.extend_from_slice(functions.at(address));
            outermost = address;
        }
        let mut innermost = 0;
        if WallState::at(outermost) == Some(WallState::Awaiting) {
            let wait = &stack[..stack.len() - 1];
            innermost = own::place(wait, |found| found.is_own, |found| functions.names[found.number]);
        } else if is_of_memory {
            innermost = stack.iter().position(|found| !functions.is_allocators(found)).unwrap_or(0);
        }
        for (at, &Found { number, place, .. }) in stack[innermost..].iter().enumerate() {
            if met.len() <= number {
                met.resize(number + 1, usize::MAX);
            }
            if std::mem::replace(&mut met[number], now) != now {
                uses.entry(number).or_default().add(value, at == 0, place);
            }
        }
    }
    let named = |(index, (sum, uses)): (usize, (u64, HashMap<usize, Use<'_>>))| {
        let mut functions: Vec<FunctionUse> =
            uses.into_iter().map(|(number, of)| of.named(functions.names[number])).collect();
        functions.sort_unstable_by(|a, b| {
            (b.own, b.total).cmp(&(a.own, a.total)).then_with(|| a.name.cmp(&b.name))
        });
        // The account is in the unit of the main column.
        let is_main = column == profile.kind.main_column();
        let total = parts.totals[index].filter(|_| is_main).unwrap_or(sum);
        GroupUse { name: parts.names[index].clone(), total, functions }
    };
    let mut all: Vec<GroupUse> = groups.into_iter().enumerate().map(named).collect();
    all.retain(|group| group.total > 0);
    all.sort_by_key(|group| std::cmp::Reverse(group.total));
    all
}

/// The parts by which functions are distinguished.
struct Parts {
    names: Vec<String>,
    /// By the account, if there is one.
    totals: Vec<Option<u64>>,
    /// The part of each thread, in a profile without groups.
    by_thread: Option<Vec<usize>>,
}

impl Parts {
    fn of(profile: &Profile) -> Parts {
        if has_groups(profile) {
            let mut names: Vec<String> = profile.groups.iter().map(|group| group.name.clone()).collect();
            UNATTRIBUTED.clone_into(&mut names[NO_GROUP as usize]);
            let totals = profile.groups.iter().map(|group| group.total).collect();
            return Parts { names, totals, by_thread: None };
        }
        let (mut names, mut numbers) = (Vec::new(), HashMap::new());
        let part = |thread: &Thread| {
            // A thread without an id stands for several with the same name.
            let name = match (&*thread.name, thread.tid) {
                ("", _) => UNATTRIBUTED.to_owned(),
                (name, 0) => name.to_owned(),
                (name, _) => of_thread(name),
            };
            *numbers.entry(name).or_insert_with_key(|name| {
                names.push(name.clone());
                names.len() - 1
            })
        };
        let by_thread = profile.threads.iter().map(part).collect();
        Parts { totals: vec![None; names.len()], names, by_thread: Some(by_thread) }
    }

    fn part(&self, sample: &Sample) -> Option<usize> {
        match &self.by_thread {
            Some(parts) => parts.get(sample.thread as usize).copied(),
            None => Some(sample.group as usize),
        }
    }
}

/// The name of the part for threads of this name, in a profile without groups.
pub(crate) fn of_thread(name: &str) -> String {
    format!("thread {name}")
}

/// Whether a profile distinguishes groups.
pub(crate) fn has_groups(profile: &Profile) -> bool {
    profile.groups.len() > 1
}

impl<'a> Use<'a> {
    fn add(&mut self, value: u64, is_innermost: bool, place: Place<'a>) {
        // Values of another process may add up to anything.
        if is_innermost {
            self.own = self.own.saturating_add(value);
        }
        self.total = self.total.saturating_add(value);
        let at = self.places.entry(place).or_default();
        *at = at.saturating_add(value);
    }

    fn named(self, name: &str) -> FunctionUse {
        let place = self.places.into_iter().max_by_key(|&(place, value)| (value, place));
        let place = place.map(|(place, _)| place).filter(|(file, _)| !file.is_empty());
        FunctionUse {
            name: name.to_owned(),
            own: self.own,
            total: self.total,
            place: place.map(|(file, line)| (file.to_owned(), line)),
        }
    }
}

/// A value in words: `4.90 s`, `12.5 MiB`, `1204`.
pub(crate) fn amount(kind: ProfileKind, column: usize, value: u64) -> String {
    match kind.columns()[column].unit {
        "nanoseconds" => short(value),
        "bytes" => crate::bytes::short(value),
        _ => value.to_string(),
    }
}

/// The share of `part` in `whole`, in per cent.
pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

#[cfg(test)]
pub(crate) mod tests {
    use dormouse_profile::{MappedRange, Node, ProfileCoverage, ProfileGroup, SourceFrame};

    use super::*;

    fn frame(function: &str, line: u32, inlined: bool) -> SourceFrame {
        SourceFrame { function: function.into(), file: "src/tea.rs".into(), line, inlined }
    }

    /// Two groups: one whose `stir` is inlined into `blend`, which calls itself, and one that no
    /// sample met.
    pub(crate) fn tea() -> (Profile, Symbols) {
        let mut symbols = Symbols::default();
        symbols.insert(0x10, vec![frame("main", 1, false)]);
        symbols.insert(0x20, vec![frame("blend", 20, false)]);
        symbols.insert(0x21, vec![frame("stir", 31, true), frame("blend", 21, false)]);
        let nodes = [(0, 0x10), (1, 0x20), (2, 0x20), (3, 0x21), (2, 0x99)];
        let rows = [(1, 4, 3, 600), (1, 3, 1, 200), (1, 5, 1, 200), (2, 0, 0, 7), (0, 0, 2, 100)];
        let profile = Profile {
            duration_ns: 2_000_000_000,
            period: 10_101_010,
            pid: 7,
            program: "/opt/teaparty".into(),
            groups: ["", "GET /blend", "GET /menu"]
                .into_iter()
                .zip([None, Some(1_000), Some(7)])
                .map(|(name, total)| ProfileGroup { id: 0, name: name.into(), total })
                .collect(),
            threads: vec![Thread { tid: 8, name: "worker".into() }],
            stacks: nodes.map(|(parent, address)| Node { parent, address }).into(),
            samples: rows
                .map(|(group, stack, met, ns)| Sample { group, thread: 0, stack, values: [met, ns, 0, 0] })
                .into(),
            mappings: vec![MappedRange {
                start: 0x90,
                end: 0xa0,
                path: "/lib/libtea.so".into(),
                ..MappedRange::default()
            }],
            coverage: ProfileCoverage {
                total: 1_107,
                in_groups: 1_007,
                threads: 1,
                armed: 1,
                samples: 7,
                ended: 3,
                ..ProfileCoverage::default()
            },
            ..Profile::default()
        };
        (profile, symbols)
    }

    #[test]
    fn functions_are_counted_once_a_sample() {
        let (profile, symbols) = tea();
        let groups = uses(&profile, &symbols, 1);
        let totals: Vec<_> = groups.iter().map(|group| (&*group.name, group.total)).collect();
        assert_eq!(totals, [("GET /blend", 1_000), (UNATTRIBUTED, 100), ("GET /menu", 7)]);
        let functions: Vec<_> = groups[0].functions.iter().map(|of| (&*of.name, of.own, of.total)).collect();
        let right = [("stir", 600, 600), ("blend", 200, 1_000), ("libtea.so", 200, 200), ("main", 0, 1_000)];
        assert_eq!(functions, right);
        assert_eq!(groups[0].functions[1].place, Some(("src/tea.rs".into(), 21)));
        assert_eq!((&*groups[1].functions[0].name, groups[1].functions[0].own), (STACK_UNKNOWN, 100));
        assert_eq!((&*groups[2].functions[0].name, groups[2].functions[0].own), (NO_SAMPLE, 7));
    }

    #[test]
    fn an_allocation_counts_as_its_callers() {
        let (mut profile, mut symbols) = tea();
        profile.kind = ProfileKind::Alloc;
        let of = |function: &str, file: &str| SourceFrame { file: file.into(), ..frame(function, 1, false) };
        symbols.insert(0x10, vec![frame("shop::serve", 1, false)]);
        symbols.insert(0x20, vec![of("alloc::raw_vec::finish_grow", "/rustc/1/library/alloc/raw_vec.rs")]);
        symbols.insert(0x30, vec![of("__rustc::__rust_alloc", "")]);
        let node = |parent, address| Node { parent, address };
        profile.stacks = vec![node(0, 0x10), node(1, 0x20), node(2, 0x30), node(0, 0x30)];
        profile.samples = vec![
            Sample { group: 1, stack: 3, values: [1, 600, 0, 0], ..Sample::default() },
            Sample { group: 1, stack: 4, values: [1, 400, 0, 0], ..Sample::default() },
        ];
        let groups = uses(&profile, &symbols, 1);
        let functions: Vec<_> = groups[0].functions.iter().map(|of| (&*of.name, of.own, of.total)).collect();
        assert_eq!(functions, [("shop::serve", 600, 600), ("__rustc::__rust_alloc", 400, 400)]);
    }

    #[test]
    fn a_wait_counts_as_its_place() {
        let (mut profile, mut symbols) = tea();
        profile.kind = ProfileKind::Wall;
        let of = |function: &str| frame(function, 1, false);
        symbols.insert(0x10, vec![of("shop::serve")]);
        symbols.insert(0x20, vec![of("shop::pour")]);
        symbols.insert(0x30, vec![of("tokio::net::TcpStream::poll_read")]);
        symbols.insert(0x31, vec![of("tokio::io::into_waker")]);
        let waits = WallState::Awaiting.address();
        let nodes = [(0, waits), (1, 0x10), (2, 0x20), (3, 0x30), (4, 0x31), (1, 0x30), (6, 0x31)];
        profile.stacks = nodes.map(|(parent, address)| Node { parent, address }).into();
        profile.samples = [(5, 600), (7, 200), (1, 100)]
            .map(|(stack, ns)| Sample { group: 1, thread: 0, stack, values: [1, ns, 0, 0] })
            .into();
        let rows = |profile: &Profile| -> Vec<(String, u64, u64)> {
            let group = uses(profile, &symbols, 1).swap_remove(0);
            group.functions.into_iter().map(|of| (of.name, of.own, of.total)).collect()
        };
        let right = [
            ("shop::pour", 600, 600),
            ("tokio::net::TcpStream::poll_read", 200, 200),
            ("awaiting", 100, 900),
            ("shop::serve", 0, 600),
        ];
        assert_eq!(rows(&profile), right.map(|(name, own, total)| (name.to_owned(), own, total)));
        for node in profile.stacks.iter_mut().filter(|node| node.address == waits) {
            node.address = WallState::OnCpu.address();
        }
        assert_eq!(rows(&profile)[0].0, "tokio::io::into_waker", "the CPU runs what is innermost");
    }

    #[test]
    fn inlined_helpers_of_std_count_as_their_caller() {
        let (profile, mut symbols) = tea();
        let helper =
            |function: &str, file: &str| SourceFrame { file: file.into(), ..frame(function, 7, true) };
        let next = helper("next", "/rustc/59807616/library/core/src/iter/range.rs");
        let at = helper("at", "/usr/include/c++/13/bits/stl_vector.h");
        let last = SourceFrame { inlined: false, ..next.clone() };
        // Where one is inlined into the program's function, where that is inlined into one, and
        // where one is not inlined.
        let stir = frame("stir", 31, true);
        symbols.insert(0x21, vec![at, next.clone(), stir, next, frame("blend", 21, false)]);
        symbols.insert(0x20, vec![last]);
        let groups = uses(&profile, &symbols, 1);
        let functions: Vec<_> = groups[0].functions.iter().map(|of| (&*of.name, of.own, of.total)).collect();
        let right = [
            ("stir", 600, 600),
            ("next", 200, 1_000),
            ("libtea.so", 200, 200),
            ("main", 0, 1_000),
            ("blend", 0, 600),
        ];
        assert_eq!(functions, right);
        assert_eq!(groups[0].functions[0].place, Some(("src/tea.rs".into(), 31)), "the line of the call");
    }

    #[test]
    fn threads_stand_for_groups_that_are_not_there() {
        let (mut profile, symbols) = tea();
        profile.groups.truncate(1);
        profile.threads.push(Thread { tid: 9, name: "worker".into() });
        profile.threads.push(Thread { tid: 0, name: String::new() });
        profile.threads.push(Thread { tid: 0, name: "(threads that have ended)".into() });
        profile.samples.iter_mut().for_each(|it| it.group = 0);
        profile.samples[1].thread = 1;
        profile.samples[3].thread = 3;
        profile.samples[4].thread = 2;
        let groups = uses(&profile, &symbols, 1);
        let totals: Vec<_> = groups.iter().map(|group| (&*group.name, group.total)).collect();
        let right = [("thread worker", 1_000), (UNATTRIBUTED, 100), ("(threads that have ended)", 7)];
        assert_eq!(totals, right);
    }

    #[test]
    fn rows_of_a_hostile_service_are_left_out() {
        let (mut profile, symbols) = tea();
        profile.samples.push(Sample { group: 9, values: [1, 1, 0, 0], ..Sample::default() });
        profile.samples.push(Sample { group: 1, stack: 99, values: [1, 1, 0, 0], ..Sample::default() });
        assert_eq!(uses(&profile, &symbols, 1).len(), 3);
    }

    #[test]
    fn amounts_have_the_unit_that_fits() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1_048_575, "1.00 MiB"),
            (52_428_800, "50.0 MiB"),
        ];
        for (value, text) in cases {
            assert_eq!(amount(ProfileKind::Alloc, 1, value), text);
        }
        assert_eq!(amount(ProfileKind::Faults, 1, 1204), "1204");
        assert_eq!(amount(ProfileKind::Cpu, 1, 4_900_000_000), "4.90 s");
        assert_eq!(percent(1, 0).to_bits(), 0.0_f64.to_bits());
    }
}
