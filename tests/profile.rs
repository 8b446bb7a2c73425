//! Profiles of live services, of commands, and of programs without dormouse: the table, the files,
//! what changed, and what goes wrong.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{DORMOUSE, Run, Running, Service, command, finish, run, skip, with_guest};
use dormouse_testkit::c::have;
use dormouse_testkit::{eventually, is_long};

/// The route that uses most of the CPU under load.
const HOT: &str = "GET /blend";

/// A program without dormouse: `hot` uses three times as much as `cool`.
const SPINS: &str = "
    static volatile unsigned long sink;
    __attribute__((noinline)) void cool(long n) { while (n--) sink += n; }
    __attribute__((noinline)) void hot(long n) { while (n--) sink += n; }
    int main(void) {
        for (int i = 0; i < 1000; i++) { hot(600000); cool(200000); }
        return 7;
    }";

/// A program without frame pointers: a chain of calls below `qsort`, of which the innermost uses
/// all.
const BARE: &str = "
    #include <stdlib.h>
    #define DEEPER(name, next) __attribute__((noinline)) long name(long n) { return next(n) + n; }
    static volatile unsigned long sink;
    __attribute__((noinline)) long bare0(long n) { while (n--) sink += n; return 1; }
    DEEPER(bare1, bare0) DEEPER(bare2, bare1) DEEPER(bare3, bare2) DEEPER(bare4, bare3)
    DEEPER(bare5, bare4) DEEPER(bare6, bare5) DEEPER(bare7, bare6) DEEPER(bare8, bare7)
    int compare(const void *a, const void *b) {
        for (int i = 0; i < 300; i++) sink += bare8(800000);
        return 0;
    }
    int main(void) { char two[2] = {1, 2}; qsort(two, 2, 1, compare); return 7; }";

/// A program that uses the CPU in `hot` until it is dropped; none where the kernel does not allow
/// profiles from outside.
pub(crate) fn spinning() -> Option<Spinning> {
    let endless = SPINS.replace("int i = 0; i < 1000; i++", ";;");
    let spinning = Spinning::start(&endless, &["-fno-omit-frame-pointer", "-fno-ipa-icf"])?;
    if spinning.profile(&[]).code == Some(3) {
        skip("the kernel does not allow profiles from outside");
        return None;
    }
    Some(spinning)
}

pub(crate) struct Spinning(
    pub(crate) Child,
    #[expect(dead_code, reason = "is removed last")] tempfile::TempDir,
);

impl Spinning {
    fn start(text: &str, flags: &[&str]) -> Option<Self> {
        if !have(&["gcc"]) {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let program = compiled(directory.path(), text, flags);
        Some(Self(Command::new(program).spawn().expect("it was built"), directory))
    }

    /// A short profile of it.
    fn profile(&self, args: &[&str]) -> Run {
        profile(&[&[&*self.0.id().to_string(), "--for", "300ms"], args].concat())
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn profile(args: &[&str]) -> Run {
    run(["profile"].iter().chain(args))
}

/// The group of that name in a profile as JSON.
pub(crate) fn group<'a>(document: &'a Value, name: &str) -> &'a Value {
    let groups = document["groups"].as_array().unwrap_or_else(|| panic!("{document}"));
    groups.iter().find(|group| group["name"] == name).unwrap_or_else(|| panic!("no {name} in {document}"))
}

pub(crate) fn number(of: &Value, field: &str) -> f64 {
    of[field].as_f64().unwrap_or_else(|| panic!("no {field} in {of}"))
}

/// The share of a function and those that it called, in percent of its group.
pub(crate) fn total_of(functions: &[Value], name: &str) -> f64 {
    let of = functions.iter().find(|of| of["function"] == name);
    of.map_or(0.0, |of| number(of, "total_percent"))
}

/// Waits until the service has used `ticks` ticks of CPU time while it is profiled.
fn await_samples(service: &Service, ticks: u64) {
    let task = format!("/proc/{}/task", service.pid());
    let name = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
    let is_sampled = || {
        let mut threads = fs::read_dir(&task).expect("a live service").flatten();
        // The kernel cuts names off.
        threads.any(|thread| name(thread).starts_with("dormouse-profil"))
    };
    eventually(is_sampled);
    let used = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", service.pid())).expect("a live service");
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let fields: Vec<u64> =
            fields.split_ascii_whitespace().skip(11).take(2).flat_map(str::parse).collect();
        fields.iter().sum::<u64>()
    };
    let before = used();
    eventually(|| used() >= before + ticks);
}

#[test]
fn functions_are_shown_by_group() {
    let service = Service::busy();
    let document = profile(&[&service.target(), "--for", "2s", "--json"]).json();
    assert_eq!((&document["kind"], &document["unit"]), (&"cpu".into(), &"nanoseconds".into()));
    // The load comes from the same process, and on a busy machine takes as much as a route.
    let mut groups = document["groups"].as_array().expect("groups").iter();
    let hot = groups.find(|group| group["name"] != "load").expect("a route");
    assert_eq!(hot["name"], HOT, "{document}");
    let functions = hot["functions"].as_array().expect("functions");
    let own: f64 = functions.iter().map(|function| number(function, "self")).sum();
    let total = number(hot, "total");
    assert!((own - total).abs() <= total / 1e6, "{own} of {total}");
    let is_of_route = |function: &&Value| function["function"].as_str().unwrap().contains("blend");
    assert!(functions.iter().any(|function| is_of_route(&function)), "{document}");
    let coverage = &document["coverage"];
    assert!(number(coverage, "in_groups") <= number(coverage, "total"), "{coverage}");
    assert!(number(coverage, "in_groups") >= total, "{coverage}");

    let text = profile(&[&service.target(), "--for", "500ms", "-n", "2", "--group", HOT]);
    assert_eq!(text.code, Some(0), "{text:?}");
    for part in
        ["CPU time in ", HOT, "% of the process", "SELF %", "FUNCTION", "stacks of ", "ended properly"]
    {
        assert!(text.stdout.contains(part), "no {part:?} in {}", text.stdout);
    }
    assert!(!text.stdout.contains("GET /menu"), "{}", text.stdout);
    service.assert_alive();
}

#[test]
fn allocations_of_the_demo_are_sampled() {
    let service = Service::busy();
    let document = profile(&[&service.target(), "--kind", "alloc", "--live", "--for", "1s", "--json"]).json();
    assert_eq!((&document["kind"], &document["unit"]), (&"alloc".into(), &"bytes".into()));
    let text = profile(&[&service.target(), "--kind", "alloc", "--for", "1s"]);
    assert!(text.stdout.contains("allocated memory in ") && text.stdout.contains(HOT), "{text:?}");
    service.assert_alive();
}

#[test]
fn every_form_of_file_is_written() {
    let service = Service::busy();
    let directory = tempfile::tempdir().unwrap();
    let written = |ending: &str| {
        let path = directory.path().join(format!("tea.{ending}"));
        let run = profile(&[&service.target(), "--for", "300ms", "-o", path.to_str().unwrap()]);
        assert_eq!(run.code, Some(0), "{run:?}");
        assert!(run.stdout.starts_with(path.to_str().unwrap()), "{run:?}");
        fs::read(&path).unwrap()
    };
    for packed in ["pb.gz", "pprof", "json.gz"] {
        assert!(written(packed).starts_with(&[0x1f, 0x8b]), "{packed}");
    }
    for text in ["folded", "txt"] {
        let text = String::from_utf8(written(text)).unwrap();
        assert!(text.lines().count() > 0);
        for line in text.lines() {
            let (stack, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
            assert!(value.parse::<u64>().is_ok() && stack.contains(';'), "{line:?}");
        }
        assert!(text.contains(HOT), "{text}");
    }
    let page = String::from_utf8(written("html")).unwrap();
    assert!(page.to_lowercase().starts_with("<!doctype html") && page.contains(HOT), "{} bytes", page.len());
    let firefox: Value = serde_json::from_slice(&written("json")).unwrap();
    assert!(!firefox["threads"].as_array().unwrap().is_empty(), "{firefox}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 7, "and nothing beside them");
}

#[test]
fn wall_time_has_states_below_groups() {
    let service = Service::busy();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wall.folded");
    // Some blend is always at work.
    let run = with_guest(&service, "/blend?spoons=32", || {
        profile(&["--kind", "wall", &service.target(), "--for", "500ms", "-o", path.to_str().unwrap()])
    });
    assert_eq!(run.code, Some(0), "{run:?}");
    let folded = fs::read_to_string(&path).unwrap();
    for line in folded.lines() {
        let state = line.split(';').nth(1).unwrap();
        let state =
            state.rsplit_once(' ').filter(|(_, ns)| ns.parse::<u64>().is_ok()).map_or(state, |it| it.0);
        assert!(["on CPU", "stalled", "runnable", "awaiting"].contains(&state), "{line}");
    }
    assert!(folded.contains(&format!("{HOT};on CPU;")), "{folded}");
    let text = profile(&["--kind", "wall", &service.target(), "--for", "300ms"]);
    assert!(text.stdout.contains("wall time of tasks in ") && text.stdout.contains("on CPU"), "{text:?}");
    service.assert_alive();
}

#[test]
fn change_since_an_old_profile_is_shown() {
    let service = Service::busy();
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let old = place("old.pb.gz");
    assert_eq!(profile(&[&service.target(), "--for", "500ms", "-o", &old]).code, Some(0));
    let document = profile(&[&service.target(), "--for", "1s", "--diff", &old, "--json"]).json();
    let blend = group(&document, HOT);
    assert!(number(blend, "self_old") > 0.0 && number(blend, "self_new") > 0.0, "{blend}");
    let functions = blend["functions"].as_array().unwrap();
    let both = |it: &Value| number(it, "total_old") > 0.0 && number(it, "total_new") > 0.0;
    assert!(functions.iter().any(both), "functions are known by their names: {blend}");
    let text = profile(&[&service.target(), "--for", "300ms", "--diff", &old]);
    // Changes that may be chance are left out, and it is said.
    assert!(text.stdout.contains("CHANGE") || text.stdout.contains("left out: "), "{text:?}");
    assert!(text.stdout.contains(" → "), "{text:?}");
    for (name, part) in [("d.html", HOT), ("d.folded", HOT)] {
        let path = place(name);
        let run = profile(&[&service.target(), "--for", "300ms", "--diff", &old, "-o", &path]);
        assert_eq!(run.code, Some(0), "{run:?}");
        assert!(fs::read_to_string(&path).unwrap().contains(part), "{name}");
    }
    let two = fs::read_to_string(place("d.folded")).unwrap();
    let columns = |line: &str| line.rsplit(' ').take(2).filter(|it| it.parse::<u64>().is_ok()).count();
    assert!(two.lines().all(|line| columns(line) == 2), "{two}");
}

#[test]
fn faults_come_before_the_profile_begins() {
    let service = Service::idle();
    // Groups are there from their first task on.
    service.get("/menu");
    let target = service.target();
    let directory = tempfile::tempdir().unwrap();
    let junk = directory.path().join("junk.pb.gz");
    fs::write(&junk, "no profile").unwrap();
    let junk = junk.to_str().unwrap();
    // One that began would hang.
    let cases: [(&[&str], i32, &[&str]); 10] = [
        (&["--hz", "0"], 2, &["--hz", "from 1 to 1000"]),
        (&["--hz", "many"], 2, &["--hz"]),
        (&["--kind", "faults", "--hz", "9"], 2, &["--hz is for --kind cpu"]),
        (&["-o", "x.svg"], 2, &[".pb.gz", ".html", ".json.gz"]),
        (&["-o", "/proc/self/x.html"], 1, &["/proc/self/x.html", "-o"]),
        (&["-o", "/nowhere/x.html"], 1, &["cannot write /nowhere/x.html, which -o asks for: No such file"]),
        (&["--diff", "/nowhere/old.pb.gz"], 1, &["/nowhere/old.pb.gz", "--diff"]),
        (&["--diff", junk], 1, &["junk.pb.gz", "hint"]),
        (&["--group", "GET /menus"], 1, &["GET /menus", "near: GET /menu"]),
        (&["--group", "a{"], 2, &["hint"]),
    ];
    for (wrong, code, parts) in cases {
        let run = profile(&[&[&*target, "--for", "10m"], wrong].concat());
        run.assert_fails(code, parts);
    }
    profile(&["no-such-program-at-all"]).assert_fails(3, &["no-such-program-at-all"]);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn ctrl_c_shows_what_there_is() {
    let service = Service::busy();
    let running = Running::start(["profile", "--json", "--for", "10m", &service.target()]);
    await_samples(&service, 50);
    let ended = running.end_by(Signal::INT);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let document = ended.json_lines().pop().expect("a profile");
    assert!(number(&document["coverage"], "samples") > 0.0, "{document}");
    assert_eq!(document["ended_because"], Value::Null);
    service.assert_alive();
}

#[test]
fn a_killed_service_leaves_its_profile() {
    let mut service = Service::busy();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("left.folded");
    let running =
        Running::start(["profile", "--for", "10m", "-o", path.to_str().unwrap(), &service.target()]);
    await_samples(&service, 200);
    service.kill();
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("has ended"), "{ended:?}");
    let folded = fs::read_to_string(&path).unwrap();
    assert!(folded.contains(HOT) && folded.contains("::"), "functions are named: {folded}");
}

#[test]
fn a_command_is_profiled_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let mut line = command(["profile", "--json", "--", DORMOUSE, "teaparty", "--load", "300", "--for", "2s"]);
    line.env("DORMOUSE_RUNTIME_DIR", directory.path());
    let ended = finish(line);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let document: Value = serde_json::from_str(ended.stdout.lines().last().expect("a profile")).unwrap();
    assert!(number(group(&document, HOT), "total") > 0.0, "{document}");
    let failed = finish(command(["profile", "--kind", "alloc", "--", "sh", "-c", "exit 9"]));
    assert_eq!(failed.code, Some(9), "{failed:?}");
    profile(&["--", "/nowhere/command"]).assert_fails(127, &["/nowhere/command"]);
}

#[test]
fn any_program_is_profiled_by_thread() {
    if !have(&["gcc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = compiled(directory.path(), SPINS, &["-fno-omit-frame-pointer", "-fno-ipa-icf"]);
    let program = program.to_str().unwrap();
    for command in [&[program][..], &["sh", "-c", "sleep 0.5; exec \"$0\"", program]] {
        let ended = profile(&[&["--json", "--hz", "499", "--"][..], command].concat());
        if ended.code == Some(3) || ended.stdout.is_empty() {
            skip("the kernel does not allow profiles from outside");
            return;
        }
        assert_eq!(ended.code, Some(7), "the command's own: {ended:?}");
        let document = ended.json();
        let functions = group(&document, "thread spins")["functions"].as_array().unwrap().clone();
        let share = |name: &str| {
            let of = functions.iter().find(|of| of["function"] == name);
            of.map_or(0.0, |of| number(of, "self_percent"))
        };
        assert_eq!(functions[0]["function"], "hot", "{document}");
        let (hot, cool) = (share("hot"), share("cool"));
        // Three to one in steps; where a loop lies changes its speed on some processors.
        assert!((50.0..90.0).contains(&hot) && (10.0..50.0).contains(&cool), "{hot} and {cool}: {document}");
    }
    let refused = profile(&["--kind", "alloc", &std::process::id().to_string()]);
    refused.assert_fails(
        3,
        &["has no dormouse in it, which --kind alloc needs", "hint: leave --kind alloc out"],
    );
    let refused = profile(&["--group", "GET *", &std::process::id().to_string()]);
    refused.assert_fails(3, &["which --group needs", "hint: leave --group out"]);
}

#[test]
fn code_without_names_says_why() {
    let Some(endless) = spinning() else { return };
    drop(endless);
    // The loop runs in a copy of its own bytes.
    let copied = "
        #include <string.h>
        #include <sys/mman.h>
        __attribute__((noinline, aligned(4096))) void spin(volatile long *sink) { for (;;) *sink += 1; }
        int main(void) {
            void *copy = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            memcpy(copy, (void *)spin, 4096);
            long sink = 0;
            ((void (*)(volatile long *))copy)(&sink);
        }";
    let spins = SPINS.replace("int i = 0; i < 1000; i++", ";;");
    for (text, flags, why) in [
        (copied, &["-fno-omit-frame-pointer"][..], "no names for code that is generated at run time"),
        (&spins, &["-s"], "spins: exported functions only"),
        (
            &spins,
            &["-gsplit-dwarf"],
            "spins: functions and lines, no inlined functions: they are in .dwo files",
        ),
    ] {
        let Some(program) = Spinning::start(text, flags) else { return };
        for form in [&[][..], &["--json"]] {
            // On a busy machine a short profile may have no sample.
            eventually(|| program.profile(form).stdout.contains(why));
        }
    }
}

/// Reads zeros, most of the time in the kernel.
const READS: &str = "
    #include <fcntl.h>
    #include <unistd.h>
    static char into[1 << 20];
    int main(void) {
        int zeros = open(\"/dev/zero\", O_RDONLY);
        for (int n = 0; n < 6000; n++) if (read(zeros, into, sizeof into) < 0) return 1;
    }";

#[test]
fn functions_of_the_kernel_have_names_for_root() {
    let list = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let is_known = |name: &str| {
        let mut lines = list.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
        lines.any(|words| words.len() >= 3 && words[2] == name && !words[0].trim_matches('0').is_empty())
    };
    if !is_known("vfs_read") {
        return skip("the kernel hides its addresses");
    }
    if !have(&["gcc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = compiled(directory.path(), READS, &[]);
    let ended = profile(&["--json", "--", program.to_str().unwrap()]);
    if ended.code == Some(3) {
        return skip("the kernel does not allow profiles from outside");
    }
    let document = ended.json();
    if document["coverage"]["notes"].to_string().contains("the kernel's own time") {
        return skip("the kernel shows this user no time of its own");
    }
    let functions = group(&document, "thread spins")["functions"].as_array().unwrap();
    let share = |name| total_of(functions, name);
    assert!(share("vfs_read") > 50.0 && share("main") > 50.0, "{functions:#?}");
    // The innermost is a function of the kernel with a name, too.
    let most =
        functions.iter().max_by(|a, b| number(a, "self_percent").total_cmp(&number(b, "self_percent")));
    assert!(is_known(most.unwrap()["function"].as_str().unwrap()), "{functions:#?}");
}

#[test]
fn bare_callers_are_found_by_tables() {
    if !have(&["gcc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = compiled(directory.path(), BARE, &["-fomit-frame-pointer"]);
    let callers = ["bare1", "bare2", "bare3", "bare4", "bare5", "bare6", "bare7", "bare8", "compare", "main"];
    let all = [&callers[..], &["qsort"]].concat();
    let totals = |args: &[&str]| {
        let ended = profile(&[args, &["--json", "--", program.to_str().unwrap()]].concat());
        if ended.stdout.is_empty() {
            skip("the kernel does not allow profiles from outside");
            return None;
        }
        assert_eq!(ended.stderr.contains("--unwind has no effect"), args == ["--unwind"], "{ended:?}");
        let document = ended.json();
        let functions = group(&document, "thread spins")["functions"].as_array().unwrap().clone();
        let share = |name: &&str| {
            let of = functions.iter().find(|of| of["function"].as_str().is_some_and(|it| it.contains(name)));
            of.map_or(0.0, |of| number(of, "total_percent"))
        };
        Some(all.iter().map(share).collect::<Vec<_>>())
    };
    // The option of earlier versions changes nothing.
    for args in [&[][..], &["--unwind"]] {
        // On a busy machine the kernel may find no room for most stacks of a short run.
        eventually(|| totals(args).is_none_or(|whole| whole.iter().all(|&share| share > 80.0)));
    }
}

pub(crate) fn compiled(directory: &Path, text: &str, flags: &[&str]) -> PathBuf {
    let (source, program) = (directory.join("spins.c"), directory.join("spins"));
    fs::write(&source, text).unwrap();
    let flags = [flags, &["-O1", "-g", "-o"]].concat();
    let status = Command::new("gcc").args(flags).args([&program, &source]).status();
    assert!(status.is_ok_and(|status| status.success()));
    program
}

/// The tea house without debug information, whose symbols contain types (as Rust makes them from
/// 1.97 on).
#[test]
fn tasks_have_names_by_symbols_alone() {
    // A build of its own.
    if !is_long() {
        return;
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("v0");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--package", "dormouse-teaparty", "--target-dir"])
        .arg(&target)
        .env("RUSTFLAGS", "-C symbol-mangling-version=v0 -C debuginfo=0")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .status();
    assert!(built.is_ok_and(|built| built.success()));
    let load = |command: &mut Command| {
        command.args(["--load", "300", "--for", "10m"]);
    };
    let directory = tempfile::tempdir().expect("a directory");
    let program = target.join("debug/dormouse-teaparty");
    let service = Service::start_as(program.as_os_str(), directory, load).expect("the service starts");
    let document = profile(&[&service.target(), "--by", "task", "--for", "3s", "--json"]).json();
    let notes = document["coverage"]["notes"].as_array().expect("notes");
    let named = |note: &Value| note.as_str()?.strip_prefix("tasks: ")?.split(' ').next()?.parse::<f64>().ok();
    let named = notes.iter().find_map(named).expect("how much has a name");
    assert!(named >= 95.0, "{notes:?}");
}
