//! The context that a service publishes, read by another process as the standards say.
//!
//! The reader knows x86-64 alone.
#![cfg(all(target_arch = "x86_64", not(dormouse_fallback)))]

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use dormouse::{PublishError, Publishing};
use dormouse_testkit::otel::{ThreadSlot, Tracee, memory, process_context};
use dormouse_testkit::{eventually, in_child, short_or_long};

use crate::fixtures::folder;

/// How often a thread is looked at.
fn looks() -> usize {
    short_or_long(40, 400)
}

/// Group names by number; 0 is none.
fn name(group: u64) -> Option<String> {
    let long = "long ".repeat(40);
    [None, Some("GET /menu"), Some("tea"), Some(&long[..128])][group as usize].map(str::to_owned)
}

/// A service that runs until this is dropped.
struct Service {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Threads, and the addresses of their words.
    threads: Vec<(u32, u64)>,
    holder: (u32, u64),
}

impl Service {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .env("OTEL_SERVICE_NAME", "tea house")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut service = Self { child, input, output, threads: Vec::new(), holder: (0, 0) };
        while service.threads.len() < 3 || service.holder == (0, 0) {
            let line = service.line();
            let [kind, tid, word] = line.split(' ').collect::<Vec<_>>().try_into().expect(&line);
            let thread = (tid.parse().unwrap(), word.parse().unwrap());
            if kind == "holder" { service.holder = thread } else { service.threads.push(thread) }
        }
        service
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the service has ended");
        line.trim_end().to_owned()
    }

    fn command(&mut self, command: &str) -> String {
        writeln!(self.input.as_ref().unwrap(), "{command}").unwrap();
        self.line()
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.input.take());
        if std::thread::panicking() {
            let _killed = self.child.kill();
        }
        let ended = self.child.wait();
        assert!(std::thread::panicking() || ended.unwrap().success());
    }
}

/// The group that a stopped thread shows.
fn shown(slot: &ThreadSlot, tracee: &Tracee, keys: &[String]) -> Option<String> {
    let context = slot.read(tracee, keys)?;
    assert_eq!((context.trace_id, context.span_id), ([0; 16], [0; 8]));
    assert_eq!(context.attributes.len(), 1);
    context.attributes.into_iter().next().map(|(key, value)| {
        assert_eq!(key, "dormouse.group");
        value
    })
}

fn keys() -> [String; 1] {
    ["dormouse.group".to_owned()]
}

/// The group that the holder shows.
fn held(service: &Service, slot: &ThreadSlot) -> Option<String> {
    let mut tracee = Tracee::new(service.pid(), service.holder.0);
    tracee.stopped(|tracee| shown(slot, tracee, &keys()))
}

/// Whether no thread shows a group, at many moments.
fn nothing_is_shown(service: &Service, slot: &ThreadSlot) -> bool {
    service.threads.iter().all(|&(tid, _)| {
        let mut tracee = Tracee::new(service.pid(), tid);
        (0..looks() / 4).all(|_| tracee.stopped(|tracee| slot.read(tracee, &keys()).is_none()))
    })
}

/// Stops each thread at many moments, and compares the group that it shows with the place where it
/// says it is.
fn follow(service: &Service, object: &str) {
    let pid = service.pid();
    let context = process_context(pid).expect("a process context");
    assert_eq!((&*context.schema, &context.keys[..]), ("tlsdesc_v1_dev", &["dormouse.group".to_owned()][..]));
    assert_eq!(context.resource["service.name"], "tea house");
    assert_eq!(context.resource["service.instance.id"].len(), 36);
    let slot = ThreadSlot::find(pid).expect("the thread-local");
    assert!(slot.object.ends_with(object), "{}", slot.object);
    for &(tid, word) in &service.threads {
        let mut tracee = Tracee::new(pid, tid);
        // In the poll in which publishing began it shows none.
        eventually(|| tracee.stopped(|tracee| shown(&slot, tracee, &context.keys)).is_some());
        let (mut settled, mut looked) = ([0; 4], 0);
        let mut look = || {
            let seen = tracee.stopped(|tracee| {
                let shown = shown(&slot, tracee, &context.keys);
                let [word] = memory::<u64, 1>(pid, word).unwrap();
                let (moves, before, after) = (word >> 16 == 1, word >> 8 & 0xff, word & 0xff);
                // On the way it may show none.
                let legal = if moves { vec![name(before), name(after), None] } else { vec![name(after)] };
                assert!(legal.contains(&shown), "{word:#x}: {shown:?} after {settled:?}");
                if !moves {
                    settled[after as usize] += 1;
                }
                word
            });
            // It goes on before the next reading.
            eventually(|| memory::<u64, 1>(pid, word) != Some([seen]));
            looked += 1;
            looked >= looks() && settled.iter().filter(|&&times| times > 0).count() >= 3
        };
        // Longer until three of its places have been seen.
        eventually(&mut look);
    }
}

fn executable() -> Service {
    Service::start(&mut Command::new(folder().join("published-service")))
}

#[test]
fn an_executable_shows_each_threads_group() {
    let mut service = executable();
    follow(&service, "/published-service");
    // Polls that are counted end in other ways.
    assert_eq!(service.command("count"), "counts");
    follow(&service, "/published-service");
}

#[test]
fn an_opened_library_shows_each_threads_group() {
    if !dormouse_testkit::c::have(&["gcc"]) {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let program = temporary.path().join("host");
    let source = temporary.path().join("host.c");
    std::fs::write(
        &source,
        "#include <dlfcn.h>\n\
         int main(int argc, char **argv)\n\
         {\n\
         \tvoid *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : 0;\n\
         \tvoid (*serve)(void) = library ? (void (*)(void))dlsym(library, \"serve_published\") : 0;\n\
         \tif (!serve)\n\
         \t\treturn 1;\n\
         \tserve();\n\
         \treturn 0;\n\
         }\n",
    )
    .unwrap();
    let compiled = Command::new("gcc").arg(&source).arg("-o").arg(&program).arg("-ldl").status().unwrap();
    assert!(compiled.success());
    let library = folder().join("libpublished_service.so");
    let service = Service::start(Command::new(&program).arg(&library));
    follow(&service, "/libpublished_service.so");
}

#[test]
fn nothing_is_left_when_publishing_ends() {
    let mut service = executable();
    let slot = ThreadSlot::find(service.pid()).unwrap();
    // The end comes while one thread is in a group, and others go from group to group.
    assert_eq!((held(&service, &slot), service.command("hold").as_str()), (None, "holds"));
    assert_eq!(held(&service, &slot), name(1));
    assert_eq!(service.command("off"), "off");
    assert_eq!(process_context(service.pid()), None);
    eventually(|| nothing_is_shown(&service, &slot));
    // It is in the group still, and then not.
    assert_eq!(held(&service, &slot), name(1));
    assert_eq!(service.command("hold"), "holds nothing");
    assert_eq!(held(&service, &slot), None);
    // Entered while nothing is published, left while it is.
    assert_eq!((service.command("hold").as_str(), held(&service, &slot)), ("holds", None));
    assert_eq!(service.command("on"), "on");
    assert_eq!((held(&service, &slot), service.command("hold").as_str()), (None, "holds nothing"));
    assert_eq!(held(&service, &slot), None);
    follow(&service, "/published-service");
    // On and off, while a thread is in a group that it has shown and is idle after it.
    assert_eq!(service.command("hold"), "holds");
    assert_eq!(held(&service, &slot), name(1));
    assert_eq!([service.command("off"), service.command("on")], ["off", "on"]);
    assert_eq!((service.command("hold").as_str(), held(&service, &slot)), ("holds nothing", None));
}

#[test]
fn threads_are_followed_through_many_ends() {
    let mut service = executable();
    for _ in 0..30 {
        assert_eq!([service.command("off"), service.command("on")], ["off", "on"]);
    }
    follow(&service, "/published-service");
    for _ in 0..10 {
        assert_eq!(
            [service.command("off"), service.command("on"), service.command("off")],
            ["off", "on", "off"]
        );
        let slot = ThreadSlot::find(service.pid()).unwrap();
        eventually(|| nothing_is_shown(&service, &slot));
    }
}

#[test]
fn a_forked_child_publishes_nothing() {
    let mut service = executable();
    let slot = ThreadSlot::find(service.pid()).unwrap();
    let said = service.command("fork");
    let child: u32 = said.strip_prefix("forked ").unwrap().parse().unwrap();
    assert_eq!(process_context(child), None);
    let mut tracee = Tracee::new(child, child);
    // It takes its pointer back as it begins.
    eventually(|| tracee.stopped(|tracee| slot.read(tracee, &keys()).is_none()));
    for _ in 0..looks() / 4 {
        assert_eq!(tracee.stopped(|tracee| slot.read(tracee, &keys())), None);
    }
    drop(tracee);
    let pid = rustix::process::Pid::from_raw(child.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    follow(&service, "/published-service");
}

#[test]
fn publishing_begins_and_ends_while_the_process_forks() {
    let mut service = executable();
    assert_eq!(service.command("storm"), "weathered");
    assert_eq!(process_context(service.pid()), None);
    assert_eq!(service.command("on"), "on");
    follow(&service, "/published-service");
}

#[test]
fn a_program_that_hides_the_symbol_is_refused() {
    in_child(|| {
        let refused = Publishing::start();
        assert!(matches!(refused, Err(PublishError::Hidden { .. })), "{refused:?}");
        assert_eq!(process_context(std::process::id()), None);
        let awake =
            dormouse::keys::list(|used| used.key.name() == "dormouse.publish" && used.key.is_enabled());
        assert!(!awake.contains(&true));
    });
}
