//! Groups that a program of C publishes, read by another process.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use dormouse_testkit::c::{self as tools, Build, GCC, Language, Link, have_basics};
use dormouse_testkit::otel::{ThreadSlot, Tracee, memory, process_context};
use dormouse_testkit::{eventually, skip};

const LOOKS: usize = 200;

struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _killed = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// Stops the program at many moments, and compares the group that it shows with its own word.
fn follow(program: &Path, object: &str) {
    let mut program = Program(tools::running(program).stdout(Stdio::piped()).spawn().unwrap());
    let pid = program.0.id();
    let mut line = String::new();
    BufReader::new(program.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let word: u64 = line.trim_end().parse().unwrap_or_else(|_| panic!("{line}"));
    let context = process_context(pid).expect("a process context");
    let slot = ThreadSlot::find(pid).expect("the thread-local");
    assert!(slot.object.contains(object), "{}", slot.object);
    let mut tracee = Tracee::new(pid, pid);
    let mut seen = [0; 5];
    for _ in 0..LOOKS {
        let place = tracee.stopped(|tracee| {
            let shown =
                slot.read(tracee, &context.keys).map(|shown| shown.attributes["dormouse.group"].clone());
            let [place] = memory::<u32, 1>(pid, word).unwrap();
            match place {
                1 => {}
                2 => assert_eq!(shown, None),
                3 => assert_eq!(shown.as_deref(), Some("GET /menu")),
                4 => assert_eq!(shown.as_deref(), Some("tea")),
                other => panic!("{other}"),
            }
            place
        });
        seen[place as usize] += 1;
        eventually(|| memory::<u32, 1>(pid, word) != Some([place]));
    }
    assert!(seen[2..].iter().all(|&times| times > 0), "{seen:?}");
}

#[test]
fn programs_show_groups_however_linked() {
    if !have_basics() {
        return;
    }
    let build = Build::new("publish", GCC, "-O2 -pthread");
    let objects = [build.compile("publish.c", Language::C, &["-fPIE"])];
    follow(&build.link("publish-shared", &objects, Link::Shared, &[]), "/libdormouse.so");
    let export = ["-Wl,--export-dynamic-symbol=otel_thread_ctx_v1"];
    follow(&build.link("publish-linked", &objects, Link::Static, &export), "/publish-linked");
}

/// The start of such a program can relocate no thread-local that it exports: glibc 2.36 ends it.
#[test]
fn static_programs_are_refused() {
    if !have_basics() {
        return;
    }
    if !Path::new("/usr/lib/x86_64-linux-gnu/libc.a").exists() {
        return skip("there is no static C library");
    }
    let build = Build::new("publish-static", GCC, "-O2 -pthread");
    let objects = [build.compile("publish.c", Language::C, &["-fPIE"])];
    let whole = ["-static-pie"];
    let said = tools::run(&build.link("publish-whole", &objects, Link::Static, &whole));
    assert!(said.contains("readers would not find"), "{said}");
}
