//! Threads by the kernel's own account: for how long they ran, and waited for a CPU.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use dormouse_testkit::eventually;
use serde_json::Value;

use crate::support::{RUNTIME_VARIABLES, Wire, run, skip};

/// A service whose threads are alike but for what they do: some spin on one CPU, one sleeps.
struct Crowd {
    child: Child,
    runtime: tempfile::TempDir,
}

/// Threads that spin.
const SPINNERS: usize = 3;

impl Crowd {
    fn start() -> Crowd {
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["threads::crowd", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        for variable in RUNTIME_VARIABLES {
            command.env_remove(variable);
        }
        command.env("DORMOUSE_RUNTIME_DIR", runtime.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a service");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        assert!(lines.by_ref().map_while(Result::ok).any(|line| line.ends_with("ready")));
        Crowd { child, runtime }
    }

    /// A connection to its agent.
    fn wire(&self) -> Wire {
        let mut wire = Wire::open(&self.runtime.path().join(format!("dormouse/{}.sock", self.child.id())));
        wire.ask(r#"{"v":1,"id":1,"op":"hello","client":"test"}"#);
        wire
    }

    /// For how long a thread ran, and waited for a CPU, by the kernel's account.
    fn account(&self, tid: u64) -> [u64; 2] {
        let path = format!("/proc/{}/task/{tid}/schedstat", self.child.id());
        let text = std::fs::read_to_string(path).expect("the thread's account");
        let mut numbers = text.split_ascii_whitespace().map(|number| number.parse().expect("a number"));
        [numbers.next().expect("ns run"), numbers.next().expect("ns waited")]
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The service: it ends with its standard input.
#[test]
#[ignore = "the service of other tests"]
fn crowd() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    dormouse::init().expect("an agent");
    let all = sched_getaffinity(None).expect("its CPUs");
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).expect("a CPU");
    let thread = |name: &str, body: fn()| {
        let pinned = move || {
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one).expect("one CPU");
            body();
        };
        std::thread::Builder::new().name(name.into()).spawn(pinned).expect("a thread");
    };
    for _ in 0..SPINNERS {
        thread("spins", || {
            loop {
                std::hint::spin_loop();
            }
        });
    }
    thread("sleeps", || {
        loop {
            std::thread::park();
        }
    });
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
    std::process::exit(0);
}

fn ns(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number of nanoseconds: {value}"))
}

fn named<'a>(answer: &'a Value, name: &str) -> Vec<&'a Value> {
    let threads = answer["threads"].as_array().expect("threads");
    threads.iter().filter(|thread| thread["name"] == name).collect()
}

/// Whether `part` is `whole` but for 2 %.
fn is_about(part: u64, whole: u64) -> bool {
    part.abs_diff(whole) <= whole / 50
}

#[test]
fn threads_tell_what_the_kernel_counts() {
    let crowd = Crowd::start();
    let mut wire = crowd.wire();
    let mut stat = || wire.ask(r#"{"v":1,"id":2,"op":"stat"}"#)["ok"].clone();
    let mut first = Value::Null;
    // A thread names itself once it runs.
    eventually(|| {
        first = stat();
        named(&first, "spins").len() == SPINNERS
    });
    let spinners: Vec<u64> =
        named(&first, "spins").iter().map(|thread| thread["tid"].as_u64().expect("an id")).collect();
    if named(&first, "spins")[0].get("runnable_ns").is_none() {
        return skip("the kernel does not count how long threads wait for a CPU");
    }
    for tid in spinners {
        let before = crowd.account(tid);
        let told = stat();
        let after = crowd.account(tid);
        let thread = named(&told, "spins").into_iter().find(|thread| thread["tid"] == tid).expect("it lives");
        let [run, waited] = [ns(&thread["cpu_ns"]), ns(&thread["runnable_ns"])];
        assert!((before[0]..=after[0].max(run)).contains(&run), "{before:?} {thread} {after:?}");
        assert!((before[1]..=after[1]).contains(&waited), "{before:?} {thread} {after:?}");
    }
}

#[test]
fn contending_threads_run_or_are_runnable() {
    let crowd = Crowd::start();
    // One look may be disturbed: the machine has other work.
    eventually(|| {
        let total = run(["--json", "stat", "-p", &crowd.child.id().to_string(), "--for", "3s"]).json();
        let elapsed = ns(&total["elapsed_ns"]);
        let spinners = named(&total, "spins");
        if spinners.len() != SPINNERS {
            return false;
        }
        if spinners[0]["runnable_ns"].is_null() {
            skip("the kernel does not count how long threads wait for a CPU");
            return true;
        }
        // One that was begun late has yet to get its name, and to sleep.
        let [sleeper] = named(&total, "sleeps")[..] else { return false };
        let sleeps = ns(&sleeper["runnable_ns"]) + ns(&sleeper["cpu_ns"]) < elapsed / 50;
        // Others may run on that CPU, too, so that all run for less than the whole time.
        let all_run: u64 = spinners.iter().map(|thread| ns(&thread["cpu_ns"])).sum();
        let is_whole =
            |thread: &&Value| is_about(ns(&thread["cpu_ns"]) + ns(&thread["runnable_ns"]), elapsed);
        assert!(ns(&total["process"]["runnable_ns"]) > 0, "{total}");
        sleeps && all_run <= elapsed + elapsed / 50 && spinners.iter().all(is_whole)
    });
    let text = run(["stat", "-p", &crowd.child.id().to_string(), "--for", "100ms"]).stdout;
    for part in ["RUNNABLE ms", "waited for a CPU", "by the kernel's account"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}
