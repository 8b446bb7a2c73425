//! The workloads in quick mode, as continuous integration runs them: every row that is promised is
//! there, in its unit, with values or with the reason why not, and nothing gave a wrong answer.
//! (`profile` and `teaparty` build programs: not here.)

use serde_json::Value;

use crate::support::run;
use dormouse_testkit::is_long;

const KEYS: &[&str] = &[
    "off/none",
    "off/dormouse",
    "off/atomic",
    "off/tracing",
    "off/tracing-envfilter-span",
    "off/static-keys",
    "read/rdtsc",
    "update/one-by-one-int3",
    "update/batch-int3",
    "update/one-by-one-flip",
    "update/batch-flip",
    "update/batch-int3/busy",
    "update/batch-speedup-int3",
    "update/batch-speedup-flip",
    "peer/static-keys-update",
    "ipis/batch-int3/cal",
    "ipis/batch-flip/cal",
    "ipis/batch-flip/tlb",
    "ipis/one-by-one-flip/cal",
    "ipis/one-by-one-flip/tlb",
    "ipis/batch-flip/cal/busy",
    "ipis/idle-cpu",
    "ipis/idle-cpu/busy",
    "traps/batch-int3",
    "traps/one-by-one-int3/busy",
    "syncs/batch-int3",
    "syncs/batch-flip",
    "trap/1",
    "trap/56",
    "trap/56/busy",
    "trap/4096",
    "off-difference/dormouse",
    "off/late-eax",
    "off-difference/late-eax",
    "cold/dormouse",
    "cold/atomic",
    "contended/dormouse",
    "contended/atomic",
    "scale/1000",
    "scale/10000",
    "scale/100000",
    "scale/100000/int3",
    "scale-ratio/100000/int3",
];

const POLL: [&str; 10] = [
    "poll/bare",
    "poll/dormouse",
    "poll/tokio-metrics",
    "poll/clock_gettime",
    "read/rdtsc",
    "read/thread-clock",
    "read/clock_gettime-thread",
    "attribution/hog",
    "attribution/hog-outer",
    "poll-added/dormouse",
];

const CLOCK: Promised = &[
    (
        "ns",
        "read/{rdtsc,thread-rseq,thread-page,thread-gap,thread-syscall,clock_gettime-thread,cpu-time-crate}",
    ),
    ("ns", "error/{rseq,page,gap}/{idle,competitor}/{p50,p99,p99.9,max}"),
    ("ns", "switch-cost/{none,rseq,page,gap}"),
    ("ns", "poll/dormouse-{rseq,page,gap,syscall}"),
];

/// Units, and names as a shell expands them.
type Promised = &'static [(&'static str, &'static str)];

const BREAKPOINT: Promised = &[
    ("us", "thread/{none,list,hash}{,/per-cpu,/waited}"),
    ("s", "thread/{none,list,hash}/total"),
    ("ns", "accounting/{list,hash,hash-watched}/{100,1000,10000,100000,1000000}"),
    ("%", "waiting/{list,hash}"),
    ("us", "kernel/thread/{0,1,2,3,4}"),
    ("us", "kernel/enable{,/256}"),
    ("times", "thread-ratio/{hash-to-none,list-to-hash}"),
    ("times", "accounting-growth/{hash,hash-watched}"),
    ("ms", "{,kernel/}{arm,disarm}/{16,256,1000}-threads"),
    ("us", "thread-start/{0,1,4}-watches"),
    ("ns", "hit/{count,ring,empty-handler,signal,signal-filtered,gdb,perf-stat}"),
    ("ns", "hit-added/{signal,signal-filtered}"),
    ("times", "{arm,disarm}-ratio/{16,256,1000}-threads"),
    ("times", "hit-ratio/{gdb,perf-stat}-to-signal"),
];

const ALLOC: Promised =
    &[("ns", "alloc/{system,dormouse-asleep,dormouse}"), ("ns", "alloc-added/{dormouse-asleep,dormouse}")];

const GROUPS: Promised = &[("us", "group-new/{known,new}/{idle,stat,count}/{p50,p99,max}")];

const SWITCH: Promised = &[
    ("ns", "ring/bare/{2,8,32}"),
    ("ns", "ring/{none,2,8,2hw,4h4s}/{2,8,32}/{eager,swap}"),
    ("us", "kernel/{none,2,8,2hw,4h4s}/{2,8,32}"),
    ("ns", "group-watch/{none,other,same,none-in-turn,in-turn}"),
    ("ns", "kernel/rearm"),
    ("ns", "group-watch-added/{other,same,in-turn}"),
    ("times", "ring-times-none/{2,8}/{2,8,32}/{eager,swap}"),
    ("times", "kernel-times-none/{2,8,2hw,4h4s}/{2,8,32}"),
];

const MAPS: Promised = &[
    ("%", "hit-rate/{boot,build,mining,ebizzy}/{single,vmacache,dormouse}"),
    ("TSC cycles", "cycles/{boot,build,mining,ebizzy}/{single,vmacache,dormouse}"),
    ("times", "cycles-over-single/{boot,build,mining,ebizzy}/{vmacache,dormouse}"),
    (
        "ns",
        "lookup/{run,hot90,uniform}/{32,1000,10000}/{sorted,btreemap,rangemap,vmacache,arc-swap,dormouse}",
    ),
    ("ns", "contended/{rwlock-btreemap,arc-swap,dormouse}"),
    ("us", "update/{32,1000,10000}"),
];

const LATENCY: Promised = &[
    ("ns", "request/{asleep,times}{,-read}/{task,queued,again}"),
    ("ns", "request-{added,null}/{asleep,times}{,-read}"),
    ("ms", "{client,shown}/{axum-http1,hyper-http2}/{1,4}/{idle,loaded,blocked}/{p50,p99}"),
    ("ms", "open-loop/{axum-http1,hyper-http2}/{1,4}/{idle,loaded,blocked}/p99"),
    ("%", "shown-error/{axum-http1,hyper-http2}/{1,4}/{idle,loaded,blocked}/{p50,p99}"),
];

/// The threads of the origin's table stand for each N.
const POUND: Promised = &[
    ("s", "pound/{clock_gettime,times,process,process-exact,group-stale,group-fresh,group-fresh-prefetch}/N"),
    ("%", "gain/{times,process,process-exact,group-stale,group-fresh,group-fresh-prefetch}/N"),
    ("ns", "call/{clock_gettime,process}/N"),
    ("%", "call-gain/process/N"),
    ("ms", "start/N"),
    ("times", "speedup/group-stale/N"),
    ("times", "growth/group-stale"),
    ("ns", "behind-{least,most}/{process,process-silent,group-stale,group-stale-silent,group-fresh}/N"),
    (
        "ns",
        "pound-error/{process,process-silent,group-stale,group-stale-silent,group-fresh}/N/{p50,max,told-p50,told-max}",
    ),
    ("reads", "pound-error/{process,process-silent,group-stale,group-stale-silent,group-fresh}/N/outside"),
    ("ns", "walk/{prefetch,no-prefetch}/N"),
    ("%", "walk-gain/N"),
    (
        "cycles",
        "cycles/{clock_gettime,times,process,process-exact,group-stale,group-fresh,group-fresh-prefetch}/N",
    ),
    (
        "%",
        "l1-misses/{clock_gettime,times,process,process-exact,group-stale,group-fresh,group-fresh-prefetch}/N",
    ),
];

const POUND_THREADS: &str = "/{2,5,8,12,21,30,48,79,110,128}";

/// All names that a pattern with braces stands for.
fn expand(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('{') else { return vec![pattern.to_owned()] };
    let (choices, after) = rest.split_once('}').unwrap();
    choices.split(',').flat_map(|choice| expand(&format!("{before}{choice}{after}"))).collect()
}

fn unitless(names: &[&'static str]) -> Vec<(&'static str, String)> {
    names.iter().map(|&name| ("", name.to_owned())).collect()
}

/// The workloads, with what they promise: names with their units, without one where the list has
/// none.
fn promised() -> [(&'static str, Vec<(&'static str, String)>); 10] {
    let expanded = |&(unit, pattern): &(&'static str, &str)| {
        expand(&pattern.replace("/N", POUND_THREADS)).into_iter().map(move |name| (unit, name))
    };
    let all = |rows: Promised| rows.iter().flat_map(expanded).collect();
    [
        ("poll", unitless(&POLL)),
        ("clock", all(CLOCK)),
        ("alloc", all(ALLOC)),
        ("breakpoint", all(BREAKPOINT)),
        ("switch", all(SWITCH)),
        ("groups", all(GROUPS)),
        ("latency", all(LATENCY)),
        ("maps", all(MAPS)),
        ("pound", all(POUND)),
        ("keys", unitless(KEYS)),
    ]
}

/// The breakpoint workload at a size that a build for debugging can bear.
const SMALL: [&str; 10] =
    ["--repeat", "3", "--breakpoints", "4", "--parallelism", "2", "--threads", "16", "--cpus", "4"];

/// One test for all: side by side they would measure each other. A short run has those that take a
/// few seconds in a build for debugging; `cargo xtask long` runs each of the others once, built for
/// release.
#[test]
fn every_promised_row_has_values_or_a_reason() {
    let short = ["poll", "alloc", "groups", "breakpoint"];
    for (name, promised) in promised().into_iter().filter(|(name, _)| is_long() || short.contains(name)) {
        let begin = std::time::Instant::now();
        let ran = run([name, "--json", "--quick", "--reps", "2"].into_iter().chain(SMALL));
        println!("{name}: {:.1} s", begin.elapsed().as_secs_f64());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let report: Value = serde_json::from_str(&ran.stdout).expect("a report");
        assert_eq!((&report["schema"], &report["bench"]), (&1.into(), &name.into()));
        let rows = report["rows"].as_array().expect("rows");
        for row in rows {
            let (name, n) = (&row["name"], row["n"].as_u64().expect("a number"));
            assert!(row["unit"].as_str().is_some_and(|unit| !unit.is_empty()), "{name} has no unit");
            assert_eq!(row["values"].as_array().map_or(0, Vec::len) as u64, n, "{name}");
            assert_eq!(n == 0, row["unavailable"].as_str().is_some_and(|why| !why.is_empty()), "{name}");
        }
        for (unit, expected) in promised {
            let row = rows.iter().find(|row| row["name"] == expected);
            let row = row.unwrap_or_else(|| panic!("{name} has no row {expected}"));
            assert!(unit.is_empty() || row["unit"] == unit, "{expected} in {}", row["unit"]);
        }
    }
}

#[test]
fn a_pattern_stands_for_every_choice() {
    assert_eq!(expand("a/{b,c}{,/d}"), ["a/b", "a/b/d", "a/c", "a/c/d"]);
}
