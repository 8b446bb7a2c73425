//! The traces that visitors leave in a house.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::support::{HANG, run};

/// The memory that may have been added for good: holes of the heap, tables as large as the house
/// has once been, and a latency of four bytes for each request of the load, whose vector doubles.
const GROWTH_KIB: u64 = 4 * 1024;
const GROWTH_OF_1000_REQUESTS_KIB: u64 = 16;

/// The resources of a process, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Residue {
    /// Descriptors, threads, files that are mapped, and keys that are on.
    counts: BTreeMap<String, u32>,
    anonymous_kib: u64,
}

fn proc(pid: u32, file: &str) -> PathBuf {
    format!("/proc/{pid}/{file}").into()
}

/// `socket:[123]` without the number.
fn kind(name: &str) -> &str {
    name.split_once(":[").map_or(name, |(kind, _)| kind)
}

/// The kinds of files that are open in a table, but for those that come by themselves.
fn open_files(descriptors: fs::ReadDir) -> impl Iterator<Item = String> {
    let targets = descriptors.flatten().filter_map(|file| fs::read_link(file.path()).ok());
    targets.map(|target| target.to_string_lossy().into_owned()).filter_map(|target| {
        // Connections to its database open this when they first have to; a batch opens the list of
        // mappings, or the memory, when it first has to, in each copy of dormouse.
        let is_kept = target.ends_with("/maps") || target.ends_with("/mem");
        (!target.contains("/teaparty.db") && !is_kept).then(|| kind(&target).to_owned())
    })
}

impl Residue {
    pub(crate) fn of(pid: u32) -> Residue {
        let mut counts = BTreeMap::new();
        let mut count = |what: &str, name: &str| *counts.entry(format!("{what} {name}")).or_default() += 1;
        let descriptors = fs::read_dir(proc(pid, "fd")).expect("a process that lives");
        for name in open_files(descriptors) {
            count("descriptor", &name);
        }
        for task in fs::read_dir(proc(pid, "task")).expect("threads").flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            let name = name.trim_end();
            // tokio keeps threads of its pool for a while.
            if !["", "tea"].contains(&name) {
                count("thread", name);
            }
            // The agent's sockets are in this thread's own table.
            if name == "dormouse-door" {
                for file in open_files(fs::read_dir(task.path().join("fd")).expect("the door's files")) {
                    count("descriptor of the door", &file);
                }
            }
        }
        let maps = fs::read_to_string(proc(pid, "maps")).expect("mappings");
        // Heaps and stacks of threads come and go.
        for line in maps.lines().filter(|line| line.contains('/')) {
            let name = line.splitn(6, ' ').last().unwrap_or_default().trim();
            // A lease pins the object of its key for good.
            if !name.ends_with("/sugar.so") {
                count("mapping", name);
            }
        }
        let keys = run(["--json", "keys", &pid.to_string()]).json();
        for key in keys["keys"].as_array().expect("a list of keys").iter().filter(|key| key["on"] == true) {
            count("key", key["name"].as_str().expect("a name"));
        }
        let status = fs::read_to_string(proc(pid, "status")).expect("its status");
        let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("RssAnon");
        let anonymous_kib = anonymous.trim().trim_end_matches(" kB").parse().expect("a number");
        Residue { counts, anonymous_kib }
    }

    /// When looks for half a second see the same: what ends by itself has ended.
    pub(crate) fn at_rest(pid: u32) -> Residue {
        let start = Instant::now();
        let (mut last, mut same) = (Residue::of(pid), 0);
        while same < 5 {
            assert!(start.elapsed() < HANG, "{last:?}");
            std::thread::sleep(Duration::from_millis(100));
            let now = Residue::of(pid);
            same = if now.counts == last.counts { same + 1 } else { 0 };
            last = now;
        }
        last
    }

    /// The things of which there are more than before.
    pub(crate) fn beyond(&self, before: &Residue, requests: u64) -> Vec<String> {
        let more = self.counts.iter().filter_map(|(name, &now)| {
            let then = before.counts.get(name).copied().unwrap_or_default();
            (now > then).then(|| format!("{name}: {then}, then {now}"))
        });
        let (then, now) = (before.anonymous_kib, self.anonymous_kib);
        let growth = GROWTH_KIB + requests * GROWTH_OF_1000_REQUESTS_KIB / 1000;
        more.chain((now > then + growth).then(|| format!("memory: {then}, then {now} KiB"))).collect()
    }

    pub(crate) fn anonymous_kib(&self) -> u64 {
        self.anonymous_kib
    }
}

/// Asserts that groups and the rest are the process, within what the answer allows.
pub(crate) fn assert_balance(target: &str) {
    let total = run(["--json", "stat", target, "--for", "500ms"]).json();
    let ns = |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("{value} in {total}"));
    let groups = total["groups"].as_array().expect("groups");
    let charged: u64 = groups.iter().map(|group| ns(&group["cpu_ns"])).sum();
    let all = charged + ns(&total["unattributed_cpu_ns"]);
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let threads = total["threads"].as_array().map_or(0, Vec::len) as u64;
    let clock = &total["clock"];
    let apart = ns(&clock["group_skew_ns"]) * processors + ns(&clock["group_error_bound_ns"]) * threads;
    assert!(charged > 0 && all.abs_diff(ns(&total["process"]["cpu_ns"])) <= apart, "{total}");
}
