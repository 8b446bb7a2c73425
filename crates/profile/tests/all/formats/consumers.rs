//! Other people's tools read the right functions with the right shares in our files.
//!
//! `cargo xtask ci` installs what npm has of them into `target/consumers`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use dormouse_profile::{MappedRange, Node, Profile, ProfileGroup, Sample, Symbols, Thread, encode};
use dormouse_testkit::skip;
use dormouse_testkit::viewers::{Pq, node_package, printed};
use serde_json::Value;

use super::known::{self, BLEND, MIX, POLL, SHARES, STEEP};

/// Functions with their own and their whole share.
pub(crate) type Shares = BTreeMap<String, (f64, f64)>;

fn expected() -> Shares {
    SHARES.iter().map(|&(name, own, whole)| (name.to_owned(), (own, whole))).collect()
}

/// Tools print two digits.
fn assert_shares(read: &Shares, expected: &Shares) {
    let names = |shares: &Shares| shares.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(read), names(expected), "{read:?}");
    for (name, (own, whole)) in expected {
        let it = read[name];
        assert!((it.0 - own).abs() < 0.1 && (it.1 - whole).abs() < 0.1, "{name}: {it:?}, not {own}, {whole}");
    }
}

fn has(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(argument).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|it| it.success())
}

pub(crate) struct File {
    directory: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

pub(crate) fn file(name: &str, bytes: impl AsRef<[u8]>) -> File {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    File { directory, path }
}

/// `go tool pprof` on a file.
pub(crate) fn go(file: &File, options: &[&str]) -> Option<String> {
    if !has("go", "version") {
        skip("go is not installed");
        return None;
    }
    let mut command = Command::new("go");
    command.args(["tool", "pprof"]).args(options).arg(&file.path);
    // It keeps what it fetches; and there are no binaries of the known profile, wherever it looks.
    command.env("PPROF_TMPDIR", file.directory.path()).env("PPROF_BINARY_PATH", file.directory.path());
    Some(printed(command.output().unwrap()))
}

/// The table of `go tool pprof -top`: flat, flat%, sum%, cum, cum%, name.
pub(crate) fn top(text: &str) -> Shares {
    let share = |word: &str| word.trim_end_matches('%').parse().unwrap();
    let rows = text.lines().skip_while(|it| !it.trim_start().starts_with("flat ")).skip(1);
    let row = |row: &str| {
        let words: Vec<&str> = row.split_whitespace().collect();
        let name = words[5..].join(" ");
        (name.trim_end_matches(" (inline)").to_owned(), (share(words[1]), share(words[4])))
    };
    rows.filter(|it| !it.is_empty()).map(row).collect()
}

#[test]
fn go_finds_functions_and_groups() {
    let pprof = file("known.pb.gz", encode::pprof(&known::profile(), &known::symbols()));
    let Some(plain) = go(&pprof, &["-top", "-nodecount=99"]) else { return };
    assert!(plain.contains("File: teaparty"), "{plain}");
    assert!(plain.contains("Build ID: 0123456789abcdef0123456789abcdef01234567"), "{plain}");
    assert!(plain.contains("Type: cpu"), "{plain}");
    assert!(plain.contains("Duration: 10s, Total samples = 10000ms"), "{plain}");
    assert_shares(&top(&plain), &expected());

    let by_group = go(&pprof, &["-top", "-nodecount=99", "-tagroot=group"]).unwrap();
    let mut with_groups = expected();
    with_groups.insert("GET /blend".to_owned(), (0.0, 50.0));
    with_groups.insert("GET /steep".to_owned(), (0.0, 35.0));
    with_groups.insert("group: (none)".to_owned(), (0.0, 15.0));
    let mut read = top(&by_group);
    // Its name for samples without the label differs from version to version.
    let none: Vec<String> = read.keys().filter(|it| !with_groups.contains_key(*it)).cloned().collect();
    for name in none {
        let share = read.remove(&name).unwrap();
        read.insert("group: (none)".to_owned(), share);
    }
    assert_shares(&read, &with_groups);

    let steep = go(&pprof, &["-top", "-nodecount=99", "-tagfocus=group=GET /steep"]).unwrap();
    let expected =
        [("main", 0.0, 30.0), ("tea::serve", 0.0, 30.0), (STEEP, 30.0, 30.0), ("(not sampled)", 5.0, 5.0)];
    let expected = expected.map(|(name, own, whole)| (name.to_owned(), (own, whole)));
    assert_shares(&top(&steep), &Shares::from(expected));

    let tags = go(&pprof, &["-tags"]).unwrap();
    for (tag, share) in [("worker-0", "50.00%"), ("worker-1", "50.00%"), ("GET /blend", "50.00%")] {
        assert!(tags.lines().any(|it| it.contains(tag) && it.contains(share)), "{tag}: {tags}");
    }
    let comments = go(&pprof, &["-comments"]).unwrap();
    assert!(comments.contains("coverage: total=10000000000 in_groups=8500000000"), "{comments}");
    assert!(comments.contains("RLIMIT_SIGPENDING"), "{comments}");
}

#[test]
fn go_reads_lines_inlining_and_mappings() {
    let pprof = file("known.pb.gz", encode::pprof(&known::profile(), &known::symbols()));
    let Some(raw) = go(&pprof, &["-raw"]) else { return };
    assert!(raw.contains("PeriodType: cpu nanoseconds\nPeriod: 10000000\n"), "{raw}");
    assert!(raw.contains("Samples:\nsamples/count cpu/nanoseconds[dflt]\n"), "{raw}");
    let blended = raw.lines().find(|it| it.contains(MIX)).unwrap();
    assert!(blended.contains("0x555555550002 M=1") && blended.contains("src/mix.rs:7"), "{raw}");
    assert!(raw.contains(&format!("{BLEND} src/blend.rs:21")), "{raw}");
    assert!(
        raw.contains("1: 0x555555550000/0x555555560000/0x1000 /opt/tea party/teaparty 0123456789abcdef0123456789abcdef01234567 [FN][FL][LN][IN]"),
        "{raw}"
    );
    // Of this one only the functions are known.
    assert!(
        raw.contains("2: 0x7f0000000000/0x7f0000010000/0x1000 /usr/lib/libmio.so abcdef01 [FN]\n"),
        "{raw}"
    );
    assert!(raw.contains("group:[GET /blend] thread:[worker-0]") && raw.contains("tid:[4001]"), "{raw}");
}

const GRINDS: u32 = line!() + 2;
#[inline(never)]
extern "C" fn grinds_the_leaves() {
    std::hint::black_box(1);
}

const BOILS: u32 = line!() + 2;
#[inline(never)]
extern "C" fn boils_the_water() {
    std::hint::black_box(2);
}

#[test]
fn go_finds_lines_of_addresses_by_itself() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let program = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    let mappings: Vec<MappedRange> = maps
        .lines()
        .filter(|it| it.contains(" r-xp ") && it.ends_with(&program))
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (start, end) = words[0].split_once('-').unwrap();
            let number = |it| u64::from_str_radix(it, 16).unwrap();
            MappedRange {
                start: number(start),
                end: number(end),
                offset: number(words[2]),
                path: program.clone(),
                build_id: String::new(),
            }
        })
        .collect();
    assert!(!mappings.is_empty());
    let addresses = [grinds_the_leaves as *const () as u64, boils_the_water as *const () as u64];
    let profile = Profile {
        program,
        mappings,
        groups: vec![ProfileGroup::default()],
        threads: vec![Thread::default()],
        stacks: addresses.iter().map(|&address| Node { parent: 0, address }).collect(),
        samples: [30, 70]
            .iter()
            .zip(1..)
            .map(|(&value, stack)| Sample { stack, values: [1, value, 0, 0], ..Sample::default() })
            .collect(),
        ..Profile::default()
    };
    let pprof = file("own.pb.gz", encode::pprof(&profile, &Symbols::default()));
    // It knows the functions of programs in Go, and of others the lines.
    let Some(text) = go(&pprof, &["-top", "-lines", "-nodecount=99"]) else { return };
    let read = top(&text);
    for (line, share) in [(GRINDS, 30.0), (BOILS, 70.0)] {
        let found =
            read.iter().find(|(it, _)| it.ends_with(&format!("tests/all/formats/consumers.rs:{line}")));
        assert!(found.is_some_and(|(_, it)| (it.0 - share).abs() < 0.1), "{line}: {text}");
    }
}

/// speedscope's importer on a file: the unit and the functions of each profile in it.
pub(crate) fn speedscope(file: &File) -> Option<Vec<(String, Shares)>> {
    let release = node_package("speedscope")?.join("dist/release");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/formats/speedscope.mjs");
    let said = printed(Command::new("node").arg(script).arg(release).arg(&file.path).output().unwrap());
    let profiles: Value = serde_json::from_str(&said).unwrap();
    let shares = |profile: &Value| {
        let total = profile["total"].as_f64().unwrap();
        let share = |it: &Value| it.as_f64().unwrap() / total * 100.0;
        let functions = profile["functions"].as_array().unwrap();
        let shares = functions
            .iter()
            .map(|it| (it["name"].as_str().unwrap().to_owned(), (share(&it["self"]), share(&it["total"]))));
        (profile["unit"].as_str().unwrap().to_owned(), shares.collect())
    };
    Some(profiles.as_array().unwrap().iter().map(shares).collect())
}

#[test]
fn speedscope_reads_pprof() {
    let pprof = file("known.pb.gz", encode::pprof(&known::profile(), &known::symbols()));
    let Some(read) = speedscope(&pprof) else { return };
    assert_eq!(read[0].0, "nanoseconds");
    assert_shares(&read[0].1, &without_inlined());
}

/// For a location in pprof's format speedscope shows the function into which the others are
/// inlined.
fn without_inlined() -> Shares {
    let mut shares = expected();
    let inlined = shares.remove(MIX).unwrap();
    shares.get_mut(BLEND).unwrap().0 += inlined.0;
    shares
}

#[test]
fn speedscope_reads_folded_stacks() {
    let folded = file("known.folded", encode::folded(&known::profile(), &known::symbols()));
    let Some(read) = speedscope(&folded) else { return };
    let mut with_groups: Shares =
        expected().into_iter().map(|(name, shares)| (name.replace(';', ":"), shares)).collect();
    with_groups.insert("GET /blend".to_owned(), (0.0, 50.0));
    with_groups.insert("GET /steep".to_owned(), (0.0, 35.0));
    with_groups.insert("(no group)".to_owned(), (0.0, 15.0));
    assert_shares(&read[0].1, &with_groups);
}

/// The functions of the thread with this name, as `pq` has them.
pub(crate) fn functions(pq: &Pq, thread: &str) -> Shares {
    let said = pq.json(&["thread", "functions", "--thread", &pq.thread(thread), "--limit", "0"]);
    let functions = said["functions"].as_array().unwrap_or_else(|| panic!("{said}"));
    let share = |it: &Value| it.as_f64().unwrap_or_else(|| panic!("{said}"));
    let row = |it: &Value| {
        let name = it["name"].as_str().unwrap().to_owned();
        (name, (share(&it["selfPercentage"]), share(&it["totalPercentage"])))
    };
    functions.iter().map(row).collect()
}

#[test]
fn firefox_reads_threads_groups_and_weights() {
    let bytes = encode::firefox(&known::profile(), &known::symbols());
    let file = file("known.json.gz", bytes);
    let Some(pq) = Pq::load(&file.path) else { return };
    let of = |rows: &[(&str, f64, f64)]| -> Shares {
        rows.iter().map(|&(name, own, whole)| (name.to_owned(), (own, whole))).collect()
    };
    // Five seconds each.
    let first = of(&[
        ("GET /blend", 0.0, 80.0),
        ("main", 0.0, 80.0),
        ("tea::serve", 0.0, 80.0),
        (BLEND, 0.0, 80.0),
        (MIX, 80.0, 80.0),
        ("GET /steep", 0.0, 10.0),
        ("(not sampled)", 10.0, 10.0),
        ("(no group)", 0.0, 10.0),
        ("(stack unknown)", 10.0, 10.0),
    ]);
    let second = of(&[
        ("GET /blend", 0.0, 20.0),
        (BLEND, 20.0, 20.0),
        ("GET /steep", 0.0, 60.0),
        (STEEP, 60.0, 60.0),
        ("tea::serve", 0.0, 80.0),
        ("main", 0.0, 100.0),
        ("(no group)", 0.0, 20.0),
        (POLL, 20.0, 20.0),
    ]);
    assert_shares(&functions(&pq, "worker-0"), &first);
    assert_shares(&functions(&pq, "worker-1"), &second);
}
