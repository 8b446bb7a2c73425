//! The house: this program once more, with a load and a thread that has things happen inside, as it
//! reads on its standard input.
//!
//! # Safety
//!
//! The object that comes and goes is compiled here; nothing of it is used after it has gone. The
//! environment is changed while there is one thread.
#![allow(unsafe_code)]

use std::ffi::{CString, c_int, c_void};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use clap::Parser as _;
use dormouse::Group;
use dormouse_teaparty::{Summary, run};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::chance::Chance;
use crate::support::{RUNTIME_VARIABLES, signal_to};

/// Requests a second: so few that a debug build keeps up beside the visitors.
pub(crate) const RATE: &str = "40";

/// The things that can happen inside.
const HAPPENINGS: [&str; 5] = ["object", "call", "fork", "groups", "threads"];

/// Groups that come up again and again: a name is for good.
const NAMES: usize = 64;

/// The address of `register` and `unregister`, for the object's constructor and destructor.
const REGISTER: [&str; 2] = ["DORMOUSE_TEST_REGISTER", "DORMOUSE_TEST_UNREGISTER"];
const OBJECT: &str = "DORMOUSE_TEST_OBJECT";

/// Its key has three sites, and follows what visitors switch from the moment when it is loaded.
const SOURCE: &str = r#"
#include <dormouse/keys.h>
#include <stdlib.h>
typedef void call(const struct dormouse_object *);
void dormouse_register_v1(const struct dormouse_object *object)
{
        ((call *)strtoull(getenv("DORMOUSE_TEST_REGISTER"), 0, 10))(object);
}
void dormouse_unregister_v1(const struct dormouse_object *object)
{
        ((call *)strtoull(getenv("DORMOUSE_TEST_UNREGISTER"), 0, 10))(object);
}
DORMOUSE_KEY_NAMED(sugar, "soak.sugar", false);
int sweeten(int spoons)
{
        if (dormouse_unlikely(sugar))
                spoons += 1;
        if (dormouse_likely(sugar))
                spoons += 2;
        return dormouse_unlikely(sugar) ? spoons : -spoons;
}
"#;

/// The house as a visitor knows it.
#[derive(Debug)]
pub(crate) struct House {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Its socket and its object.
    _place: TempDir,
}

impl House {
    pub(crate) fn open() -> House {
        let place = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["soak::house::house", "--exact", "--ignored", "--nocapture"]);
        for variable in RUNTIME_VARIABLES {
            command.env_remove(variable);
        }
        // Sixteen heaps keep what they once had: megabytes, as chance has it.
        command.env("MALLOC_ARENA_MAX", "1");
        command.env("DORMOUSE_RUNTIME_DIR", place.path()).env("DORMOUSE_COUNT", "task-clock");
        command.env("DORMOUSE_RECORD_DIR", place.path()).env(OBJECT, object(place.path()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a house");
        let (input, output) = (child.stdin.take().expect("its input"), child.stdout.take());
        let output = BufReader::new(output.expect("its output"));
        let mut house = House { child, input, output, _place: place };
        house.answer();
        house
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its id as an argument.
    pub(crate) fn target(&self) -> String {
        self.pid().to_string()
    }

    /// The next line that is no line of the harness.
    fn answer(&mut self) -> Value {
        loop {
            let mut line = String::new();
            let length = self.output.read_line(&mut line).expect("a line");
            assert!(length > 0, "the house has ended: {:?}", self.child.wait());
            if let Some((_, answer)) = line.split_once("house: ") {
                return serde_json::from_str(answer).unwrap_or_else(|why| panic!("{why} in {answer}"));
            }
        }
    }

    fn ask(&mut self, what: &str) {
        writeln!(self.input, "{what}").expect("a house that lives");
        assert_eq!(self.answer(), json!(what));
    }

    /// Has everything happen once.
    pub(crate) fn each_once(&mut self) {
        for what in HAPPENINGS {
            self.ask(what);
        }
        for _ in 0..NAMES {
            self.ask("groups");
        }
        self.settle();
    }

    /// Has something happen.
    pub(crate) fn happen(&mut self, chance: &mut Chance) {
        self.ask(chance.of(&HAPPENINGS));
    }

    /// Has the object go, and the allocator give back what is free.
    pub(crate) fn settle(&mut self) {
        self.ask("settle");
    }

    /// Sends the guests home, and closes. Each request has been answered, and charged.
    pub(crate) fn close(mut self) {
        signal_to(self.pid(), Signal::TERM);
        let end = self.answer();
        let summary: Summary = serde_json::from_value(end["summary"].clone()).expect("a summary");
        let load = summary.load.expect("a load");
        println!("{} requests served", load.served);
        assert_eq!((load.errors, &load.first_error, summary.served.cut), (0, &None, 0));
        let of = |name: &str| end["groups"].as_array().expect("groups").iter().find(|it| it["name"] == name);
        for route in load.routes {
            let group = of(&route.route).unwrap_or_else(|| panic!("no group {}", route.route));
            assert_eq!(group["requests"], route.served, "{group}");
        }
        for group in end["groups"].as_array().expect("groups") {
            assert_eq!(group["alive"], 0, "{group}");
        }
        assert!(self.child.wait().expect("its end").success());
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles the object.
fn object(folder: &Path) -> PathBuf {
    let object = folder.join("sugar.so");
    std::fs::write(folder.join("sugar.c"), SOURCE).expect("a file");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi/include");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O1", "-I"]).arg(include);
    command.arg(folder.join("sugar.c")).arg("-o").arg(&object);
    dormouse_testkit::c::succeed(&mut command);
    object
}

/// A tea house without the command around it.
#[derive(Debug, clap::Parser)]
struct Program {
    #[command(flatten)]
    args: dormouse_teaparty::Args,
}

/// The things that happen inside; see [`House`].
#[derive(Debug, Default)]
struct Inside {
    object: Option<*mut c_void>,
    happened: usize,
}

impl Inside {
    fn object(&mut self) {
        if let Some(object) = self.object.take() {
            // SAFETY: nobody else uses it.
            assert_eq!(unsafe { libc::dlclose(object) }, 0);
            return;
        }
        let path = std::env::var_os(OBJECT).expect("the path of the object");
        let path = CString::new(path.as_bytes()).expect("a path");
        // SAFETY: its constructor calls `register`.
        let object = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!object.is_null());
        self.object = Some(object);
    }

    fn call(&self) {
        let Some(object) = self.object else { return };
        // SAFETY: the object is loaded, and its function is one of this type.
        let spoons = unsafe {
            let sweeten = libc::dlsym(object, c"sweeten".as_ptr());
            assert!(!sweeten.is_null());
            std::mem::transmute::<*mut c_void, extern "C" fn(c_int) -> c_int>(sweeten)(3)
        };
        // A key that is switched in the middle is on for some sites and off for others.
        assert!([-3, 3, -4, 4, -5, 5, -6, 6].contains(&spoons), "{spoons}");
    }

    fn groups(&self) {
        let group = Group::new(&format!("soak {}", self.happened % NAMES));
        group.scope(|| dormouse::probe!("soak.group", happened = self.happened));
        // A task that is dropped before its first poll, and one that is kept for a while.
        drop(group.instrument(async {}));
        let mut task = group.task();
        task.run(|| std::hint::black_box(vec![1_u8; 10_000]));
    }

    fn threads() {
        let group = Group::new("soak threads");
        let threads: Vec<_> = (0..8_u32)
            .map(|n| group.spawn_thread(move || dormouse::probe!("soak.thread", n)).expect("a thread"))
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
    }

    fn fork() {
        let ended = dormouse_testkit::fork(|| {
            Group::new("soak child")
                .scope(|| dormouse::probe!("soak.child", bytes = vec![1_u8; 50_000].len()));
        });
        assert!(ended.success(), "{ended}");
    }

    fn settle(&mut self) {
        if self.object.is_some() {
            self.object();
        }
        // SAFETY: it takes the heap's lock, as an allocation does.
        unsafe { libc::malloc_trim(0) };
    }

    fn happen(&mut self, what: &str) {
        self.happened += 1;
        match what {
            "object" => self.object(),
            "call" => self.call(),
            "fork" => Self::fork(),
            "groups" => self.groups(),
            "threads" => Self::threads(),
            "settle" => self.settle(),
            _ => {}
        }
    }
}

/// Past the harness.
fn say(value: &Value) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "house: {value}").and_then(|()| output.flush()).expect("somebody who reads");
}

#[test]
#[ignore = "the program that others look into"]
fn house() {
    // Somebody who asks for all tests asks for no house.
    if std::env::var_os(OBJECT).is_none() {
        return;
    }
    let addresses = [dormouse::keys::macros::register as *const (), dormouse::keys::macros::unregister as _];
    for (variable, address) in REGISTER.into_iter().zip(addresses) {
        // SAFETY: the harness's main thread waits, and nobody else reads the environment.
        unsafe { std::env::set_var(variable, address.addr().to_string()) };
    }
    std::thread::spawn(|| {
        let mut inside = Inside::default();
        for line in std::io::stdin().lock().lines() {
            let line = line.expect("a line");
            inside.happen(&line);
            say(&json!(line));
        }
        // The visitors' process has ended.
        std::process::exit(3);
    });
    let program = ["house", "--workers", "2", "--load", RATE, "--for", "24h"];
    let summary = run(&Program::parse_from(program).args, |url| say(&json!(url))).expect("a party");
    let groups = Group::all().into_iter().map(Group::read);
    let rows: Vec<_> =
        groups.map(|it| json!({ "name": it.name, "requests": it.requests, "alive": it.alive })).collect();
    say(&json!({ "summary": summary, "groups": rows }));
}
