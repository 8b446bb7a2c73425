//! One test program for a crate, in which each module of tests has a process of its own.
//!
//! Linking takes longest when tests are built, so that the tests of a crate are modules of one
//! program. The things that they test exist once per process: the registry of keys, the groups, the
//! handlers of signals. Therefore the program starts itself once for each of its outermost modules,
//! with the exact names of the tests that its arguments choose there.
//!
//! The list of tests is in the harness, which rustc puts into `main` and which has no hooks.
//! [`isolate_modules`](crate::isolate_modules) hence registers a function that runs before `main`:
//!
//! 1. The arguments have `--exact` or `--list`: `main` follows, in this process. Children are
//!    started so.
//! 2. They choose tests of one module at most: the same.
//! 3. Otherwise each module has its child, and the process ends here.
//!
//! Most tests wait longer than they work, so that a few children run at a time.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{Read as _, Seek as _, Write as _};
use std::process::{Command, Stdio, exit};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// Options of the harness that take the next argument as their value.
const WITH_VALUE: [&str; 7] =
    ["--test-threads", "--skip", "--logfile", "--color", "--format", "--shuffle-seed", "-Z"];

/// With one of these, the harness runs in this process.
const AT_ONCE: [&str; 5] = ["--exact", "--list", "--help", "-h", "--bench"];

/// The number of children that run at a time.
const CHILDREN: usize = 2;

/// The exit code that cargo expects of a test program that has failed.
const FAILED: i32 = 101;

/// Gives each module of this test program a process of its own. To be called once, in the root.
#[macro_export]
macro_rules! isolate_modules {
    () => {
        #[cfg(all(target_os = "linux", not(miri)))]
        #[used]
        // SAFETY: the C library calls the functions of this section, before `main`.
        #[unsafe(link_section = ".init_array")]
        static ISOLATE_MODULES: extern "C" fn() = $crate::run_modules;
    };
}

/// Runs the chosen modules and ends the process, or returns if the harness is to run here.
#[doc(hidden)]
pub extern "C" fn run_modules() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.iter().any(|argument| AT_ONCE.contains(&&**argument)) {
        return;
    }
    let listed = this_program().args(&arguments).arg("--list").stderr(Stdio::inherit()).output();
    let listed = listed.expect("the list of tests");
    if !listed.status.success() {
        // The harness refuses its arguments.
        return;
    }
    let listed = String::from_utf8(listed.stdout).expect("names");
    let modules = by_module(&listed);
    if modules.len() < 2 {
        return;
    }
    let options = options(&arguments);
    let failed = run_children(modules.into_iter().map(|(module, tests)| {
        let mut child = this_program();
        child.args(&options).arg("--exact").args(tests);
        (module, child)
    }));
    if !failed.is_empty() {
        println!("\nmodules that failed: {}", failed.join(" "));
    }
    // No destructor of the standard library runs here.
    let _ = std::io::stdout().flush();
    exit(if failed.is_empty() { 0 } else { FAILED });
}

/// Runs a few of these at a time, and returns the names of those that failed. The text of a child
/// is printed when it ends.
fn run_children<'a>(children: impl Iterator<Item = (&'a str, Command)> + Send) -> Vec<&'a str> {
    let (left, failed) = (Mutex::new(children), Mutex::new(Vec::new()));
    let run = || {
        loop {
            // The lock is not held while the child runs.
            let next = left.lock().unwrap().next();
            let Some((name, mut child)) = next else { break };
            let (is_ok, cpu, text) = run_child(&mut child);
            // One write, so that no other text is inside of it.
            print!("\n     Running {name} ({:.2} s of CPU time)\n{text}", cpu.as_secs_f64());
            if !is_ok {
                failed.lock().unwrap().push(name);
            }
        }
    };
    thread::scope(|scope| (0..CHILDREN).for_each(|_| drop(scope.spawn(run))));
    failed.into_inner().unwrap()
}

/// Runs a child, and returns whether it succeeded, its CPU time, and all that it has written. A
/// file takes the text, because a process that a test forgot would keep a pipe open.
fn run_child(child: &mut Command) -> (bool, Duration, String) {
    let mut file = tempfile::tempfile().expect("a file");
    let [output, errors] = [file.try_clone(), file.try_clone()].map(|it| it.expect("the same file"));
    let mut child = child.stdout(output).stderr(errors).spawn().expect("a child");
    // A process that has ended keeps its times until another waits for it.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let id = Pid::from_child(&child);
    retry_on_intr(|| waitid(WaitId::Pid(id), ended)).expect("its end");
    let cpu = cpu_time(child.id());
    let status = child.wait().expect("its status");
    let mut text = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut text)).expect("its text");
    (status.success(), cpu, String::from_utf8_lossy(&text).into_owned())
}

/// The CPU time of a process, and of the children that it has waited for (proc(5), `utime` to
/// `cstime`).
fn cpu_time(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("a process of ours");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let ticks =
        fields.split_ascii_whitespace().skip(11).take(4).map(|field| field.parse::<u64>().expect("a number"));
    Duration::from_secs_f64(ticks.sum::<u64>() as f64 / clock_ticks_per_second() as f64)
}

fn this_program() -> Command {
    Command::new(env::current_exe().expect("this program"))
}

/// The listed tests by their outermost modules.
fn by_module(listed: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut modules = BTreeMap::<_, Vec<_>>::new();
    for test in listed.lines().filter_map(|line| line.strip_suffix(": test")) {
        let module = test.split_once("::").map_or("", |(module, _)| module);
        modules.entry(module).or_default().push(test);
    }
    modules
}

/// The arguments without the filters, which the list has applied.
fn options(arguments: &[String]) -> Vec<&str> {
    let mut options = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument.starts_with('-') {
            options.push(&**argument);
            if WITH_VALUE.contains(&&**argument) {
                options.extend(arguments.next().map(|value| &**value));
            }
        }
    }
    options
}

/// The variable that names the program that this process is.
const PROGRAM: &str = "DORMOUSE_TEST_PROGRAM";

/// Runs tests without a harness, each in a process of its own, which is this program again.
/// Arguments choose them by a part of their names. To be called by `main`.
///
/// If a test starts this program, the child runs only that test, because it inherits the test's
/// name.
pub fn run_programs(programs: &[(&str, fn())]) {
    if let Ok(name) = env::var(PROGRAM) {
        let (_, main) = programs.iter().find(|(known, _)| *known == name).expect("a known program");
        return main();
    }
    let arguments: Vec<String> = env::args().skip(1).collect();
    let filters: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_chosen = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(*filter));
    let chosen: Vec<_> = programs.iter().map(|(name, _)| *name).filter(|name| is_chosen(name)).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        for name in &chosen {
            println!("{name}: test");
        }
        return;
    }
    let failed = run_children(chosen.iter().map(|&name| {
        let mut child = this_program();
        child.env(PROGRAM, name);
        (name, child)
    }));
    for name in chosen {
        println!("test {name} ... {}", if failed.contains(&name) { "FAILED" } else { "ok" });
    }
    if !failed.is_empty() {
        exit(FAILED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_parted_by_outermost_module() {
        let listed = "a::x: test\na::b::y: test\nz: test\n\n3 tests, 0 benchmarks\n";
        let expected = [("", vec!["z"]), ("a", vec!["a::x", "a::b::y"])];
        assert_eq!(by_module(listed), BTreeMap::from(expected));
    }

    #[test]
    fn filters_are_no_options() {
        let given = ["one", "--test-threads", "1", "two", "--ignored", "--skip=a"].map(String::from);
        assert_eq!(options(&given), ["--test-threads", "1", "--ignored", "--skip=a"]);
    }
}
