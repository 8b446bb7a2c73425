//! Names of code that no file maps: text on anonymous pages, and what runtimes generate.

#![allow(unsafe_code)]

use crate::program;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::ptr;

use dormouse_maps::symbols::Symbolizer;
use dormouse_maps::{AddressSpace, Mapping, Region};
use dormouse_testkit::skip;
use dormouse_testkit::viewers::python_with;
use program::{Language, Program, build};

/// Copies its text to anonymous pages, and puts these where the text was; says where `pour` is, and
/// other code that it has made.
const COPIED: &str = r#"
    #define _GNU_SOURCE
    #include <stdio.h>
    #include <string.h>
    #include <sys/mman.h>
    extern char __executable_start, etext;
    __attribute__((noinline)) long pour(volatile long *tea) { for (int i = 0; i < 99; i++) *tea += i; return *tea; }
    int main(void) {
        long tea = 1;
        unsigned long from = (unsigned long)pour & ~4095ul, to = (unsigned long)&etext & ~4095ul;
        if (to <= from) to = from + 4096;
        char *new = mmap(0, to - from, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memcpy(new, (void *)from, to - from);
        mprotect(new, to - from, PROT_READ | PROT_EXEC);
        mremap(new, to - from, to - from, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)from);
        char *other = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(other, 0xc3, 4096);
        pour(&tea);
        printf("pour\t%p\t8\nother\t%p\t8\n\n", (void *)pour, (void *)other);
        fflush(stdout);
        getchar();
        return 0; }"#;

#[test]
fn text_on_anonymous_pages_has_its_names() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tea");
    if !build(Language::C, COPIED, &path, &["-g", "-O1"]) {
        return;
    }
    let program = Program::start(&path);
    let (space, mut symbolizer) = (AddressSpace::of(program.pid()).unwrap(), Symbolizer::new());
    let [(_, pour, _), (_, other, _)] = program.said() else { panic!("{:?}", program.said()) };
    let mapping = space.resolve_now(pour + 4).unwrap().unwrap();
    assert_eq!(mapping.value.kind, dormouse_maps::MappingKind::Anonymous);
    let symbol = symbolizer.symbol(&space, &mapping, pour + 4);
    assert_eq!((symbol.to_string().as_str(), &*symbol.object), ("pour+0x4", "tea"));
    assert!(symbol.frames[0].source.is_some(), "{symbol:?}");
    let mapping = space.resolve_now(*other).unwrap().unwrap();
    assert!(symbolizer.symbol(&space, &mapping, *other).frames.is_empty());
    assert!(
        symbolizer
            .lack(&space, &mapping)
            .unwrap()
            .change
            .contains(&format!("/tmp/perf-{}.map", program.pid()))
    );
}

/// The file in which this process names its generated code, removed at the end.
struct Named(PathBuf);

impl Named {
    fn write(lines: &str) -> Self {
        let path = PathBuf::from(format!("/tmp/perf-{}.map", std::process::id()));
        fs::write(&path, lines).unwrap();
        Self(path)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn executable() -> u64 {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping where the kernel likes it; nobody runs what is there.
    let at = unsafe { libc::mmap(ptr::null_mut(), 4096, prot, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at as u64
}

#[test]
fn map_of_another_user_is_not_read() {
    let (at, space, mut symbolizer) = (executable(), AddressSpace::own().unwrap(), Symbolizer::new());
    let mut name = || {
        let mapping = space.resolve_now(at + 8).unwrap().unwrap();
        symbolizer.symbol(&space, &mapping, at + 8).to_string()
    };
    assert!(name().starts_with("anonymous+"));
    let named = Named::write(&format!("{at:x} 10 py::pour:/tea.py\n"));
    assert_eq!(name(), "py::pour:/tea.py+0x8");
    drop(named);
    assert!(name().starts_with("anonymous+"), "what it said is not kept");
    let named = Named::write(&format!("{at:x} 10 evil\n"));
    if std::os::unix::fs::chown(&named.0, Some(65534), None).is_err() {
        skip("only root has files of others");
        return;
    }
    assert!(name().starts_with("anonymous+"));
}

/// A program of another language that has generated code and runs until it is dropped.
struct Runtime(Child);

impl Runtime {
    fn start(command: &mut Command) -> Option<Self> {
        let Ok(mut child) = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
            skip(format!("there is no {}", command.get_program().display()));
            return None;
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let runtime = Self(child);
        if line.trim() != "ready" {
            skip(format!("{}: {line:?}", command.get_program().display()));
            return None;
        }
        Some(runtime)
    }

    /// The names at the places that its own file lists for `function`, and that are still code.
    fn names(&self, function: &str) -> Vec<(String, String)> {
        let text = fs::read_to_string(format!("/tmp/perf-{}.map", self.0.id())).unwrap_or_default();
        let (space, mut symbolizer) = (AddressSpace::of(self.0.id()).unwrap(), Symbolizer::new());
        let found = text.lines().filter(|line| line.contains(function)).filter_map(|line| {
            let (begin, rest) = line.split_once(' ')?;
            let at = u64::from_str_radix(begin.trim_start_matches("0x"), 16).ok()? + 1;
            let mapping: Mapping<Region> = space.resolve_now(at).ok()??;
            let symbol = symbolizer.symbol(&space, &mapping, at);
            Some((rest.split_once(' ')?.1.to_owned(), symbol.function()?.function.to_string()))
        });
        found.collect()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = fs::remove_file(format!("/tmp/perf-{}.map", self.0.id()));
    }
}

#[test]
fn functions_of_node_are_named() {
    let source = "function pour(n) { let tea = 0; for (let i = 0; i < n; i++) tea += i % 7; return tea; }
        for (let i = 0; i < 2000; i++) pour(2000);
        require('fs').writeSync(1, 'ready\\n'); process.stdin.on('data', () => {});";
    // It writes another log, to the directory in which it is started.
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("node");
    command.args(["--perf-basic-prof", "-e", source]).current_dir(directory.path());
    let Some(node) = Runtime::start(&mut command) else { return };
    let names = node.names("pour");
    assert!(names.iter().any(|(listed, found)| listed == found && found.contains("pour")), "{names:?}");
}

#[test]
fn functions_of_python_are_named() {
    let source = "import sys
def pour(n): return sum(i % 7 for i in range(n))
pour(99); print('ready', flush=True); sys.stdin.read()";
    let mut command = Command::new("python3.12");
    let Some(python) = Runtime::start(command.args(["-X", "perf", "-c", source])) else { return };
    let names = python.names("pour");
    assert!(names.iter().any(|(listed, found)| listed == found && found.contains("pour")), "{names:?}");
}

#[test]
fn functions_of_java_are_named() {
    let source = "class Tea {
        static int pour(int n) { int tea = 0; for (int i = 0; i < n; i++) tea += i % 7; return tea; }
        public static void main(String[] arguments) throws Exception {
            int all = 0;
            for (int i = 0; i < 20000; i++) all += pour(2000);
            System.out.println(\"ready\");
            System.in.read();
        } }";
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("Tea.java"), source).unwrap();
    let mut command = Command::new("java");
    // The compiler does not work beside it.
    command.args(["-Xbatch", "Tea.java"]).current_dir(directory.path());
    let Some(java) = Runtime::start(&mut command) else { return };
    let listed = Command::new("jcmd").args([&java.0.id().to_string(), "Compiler.perfmap"]).output();
    if !listed.is_ok_and(|listed| listed.status.success()) {
        return skip("jcmd lists no functions");
    }
    let names = java.names("pour");
    assert!(names.iter().any(|(listed, found)| listed == found && found.contains("Tea.pour")), "{names:?}");
}

#[test]
fn functions_of_wasmtime_are_named() {
    let source = "import sys, wasmtime
config = wasmtime.Config()
config.profiler = 'perfmap'
store = wasmtime.Store(wasmtime.Engine(config))
module = wasmtime.Module(store.engine, '(module (func $pour (export \"pour\") (result i32) i32.const 7))')
wasmtime.Instance(store, module, []).exports(store)['pour'](store)
print('ready', flush=True); sys.stdin.read()";
    let Some(python) = python_with("wasmtime") else { return };
    let Some(wasmtime) = Runtime::start(Command::new(python).args(["-c", source])) else { return };
    let names = wasmtime.names("pour");
    assert!(names.iter().any(|(listed, found)| listed == found && found == "pour"), "{names:?}");
}
