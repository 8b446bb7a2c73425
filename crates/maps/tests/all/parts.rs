//! Names of functions in several parts, of bodies without names, and of crates: in programs that
//! compilers make here. No place has an empty name, and no offset is an address.

use crate::code;
use crate::program;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use code::symbol_in;
use dormouse_maps::symbols::{StaticError, Statics, Symbol, Symbolizer};
use dormouse_maps::{AddressSpace, symbols};
use dormouse_testkit::skip;
use program::{Language, Program, build, run_tool};

/// Two lambdas that are called, and functions with a part that is seldom run.
const PARTS: &str = r#"
    #include <cstdio>
    #include <cstdlib>
    namespace a { long COUNT; __attribute__((noinline)) long work(long n) {
        for (volatile long i = 0; i < n; i = i + 1) COUNT++;
        if (n < 0) { fprintf(stderr, "cold\n"); abort(); }
        return n; } }
    namespace b { __attribute__((noinline)) long work(long n) {
        for (volatile long i = 0; i < n / 3; i = i + 1);
        if (n < 0) { fprintf(stderr, "cold b\n"); abort(); }
        return n + 1; } }
    template <class F> __attribute__((noinline)) long call(F f, long n) { return f(n) + 1; }
    int main(int c, char **v) {
        auto one = [](long n) __attribute__((noinline)) { if (n < -5) throw 1; return a::work(n); };
        auto two = [](long n) __attribute__((noinline)) { if (n < -6) throw 2; return b::work(n); };
        return (int)(call(one, c) + call(two, c)) & 1;
    }"#;

/// A reference to an entry of the same unit, as gcc writes its abbreviation; and one to a third
/// file, to which dwz moves the entries that two programs share.
const REFERENCE: &str = "\t.uleb128 0x31\n\t.uleb128 0x13\n";
const ELSEWHERE: &str = "\t.uleb128 0x31\n\t.uleb128 0x1f20\n";

/// The functions of a program: their names in full, addresses and sizes, by `nm`.
fn functions(path: &Path) -> Option<Vec<(String, u64, u64)>> {
    let output = Command::new("nm").args(["-S", "-C"]).arg(path).output().ok()?;
    let line = |line: &str| {
        let mut words = line.splitn(4, ' ');
        let (addr, size) = (words.next()?, words.next()?);
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (kind, name) = (words.next()?, words.next()?);
        matches!(kind, "t" | "T" | "W" | "w").then(|| Some((name.to_owned(), hex(addr)?, hex(size)?)))?
    };
    Some(String::from_utf8_lossy(&output.stdout).lines().filter_map(line).collect())
}

/// The distance of addresses from the places in the file, of the segment with code.
fn shift(path: &Path) -> Option<u64> {
    let output = Command::new("readelf").arg("-lW").arg(path).output().ok()?;
    let headers = String::from_utf8_lossy(&output.stdout).into_owned();
    let code = headers.lines().find(|line| line.contains("LOAD") && line.contains("R E"))?;
    let hex =
        |at: usize| u64::from_str_radix(code.split_whitespace().nth(at)?.trim_start_matches("0x"), 16).ok();
    Some(hex(2)? - hex(1)?)
}

/// The symbols at some places of each function that this program has itself.
fn swept(path: &Path, symbolizer: &mut Symbolizer) -> Vec<(String, u64, Arc<Symbol>)> {
    let (functions, shift) = (functions(path).unwrap(), shift(path).unwrap());
    let mut found = Vec::new();
    for (name, addr, size) in functions {
        let is_linkers = ["_start", "register_tm", "deregister_tm", "_init", "_fini", "frame_dummy", "__"];
        if is_linkers.iter().any(|begin| name.starts_with(begin)) {
            continue;
        }
        for inside in (0..size).step_by(3) {
            found.push((name.clone(), inside, symbol_in(path, addr + inside - shift, symbolizer)));
        }
    }
    found
}

#[test]
fn functions_in_parts_have_names_and_offsets() {
    let directory = tempfile::tempdir().unwrap();
    for (number, flags) in [&["-g", "-O2"][..], &["-O2"], &["-gdwarf-4", "-O2"]].into_iter().enumerate() {
        let path = directory.path().join(format!("tea{number}"));
        if !build(Language::Cpp, PARTS, &path, flags) {
            return;
        }
        let swept = swept(&path, &mut Symbolizer::new());
        assert!(swept.iter().any(|(name, ..)| name.contains("lambda")), "{flags:?}");
        let mut by_name: HashMap<Arc<str>, String> = HashMap::new();
        for (name, inside, symbol) in swept {
            let outer = symbol.function().unwrap_or_else(|| panic!("{name} {symbol:?}"));
            assert_eq!(outer.offset, Some(inside), "{flags:?} {name}: {symbol:?}");
            assert!(symbol.frames.iter().all(|frame| !frame.function.is_empty()), "{name}: {symbol:?}");
            let known = by_name.entry(Arc::clone(&outer.function)).or_insert_with(|| name.clone());
            assert_eq!(*known, name, "{flags:?}: two functions have the name {}", outer.function);
        }
    }
}

#[test]
fn inlined_lambdas_have_the_names_of_their_places() {
    let source = "
        namespace tea {
        struct Pot { long pour(volatile long *sink, long n); };
        long Pot::pour(volatile long *sink, long n) {
            auto one = [=](long n) { for (long i = 0; i < n; i++) *sink += i; };
            auto two = [=](long n) { for (long i = 0; i < n; i++) *sink *= i; };
            one(n); two(n); return *sink;
        }
        }
        int main(int c, char **) { volatile long sink = c; tea::Pot pot; return (int)pot.pour(&sink, c) & 1; }";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tea");
    for flags in [&["-g", "-O2", "-fno-inline-functions-called-once"][..], &["-gdwarf-4", "-O2"]] {
        if !build(Language::Cpp, source, &path, flags) {
            return;
        }
        let mut found: Vec<(String, u32)> = Vec::new();
        for (.., symbol) in swept(&path, &mut Symbolizer::new()) {
            for frame in symbol.frames.iter().filter(|frame| frame.offset.is_none()) {
                let line = frame.source.as_ref().and_then(|source| source.line).unwrap();
                if frame.function.contains("operator()") {
                    found.push((frame.function.to_string(), line));
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        // Each is at its line, and not at that of the other.
        let right =
            [("tea::Pot::pour::{lambda#1}::operator()", 5), ("tea::Pot::pour::{lambda#2}::operator()", 6)];
        assert_eq!(found, right.map(|(name, line)| (name.to_owned(), line)), "{flags:?}");
    }
}

#[test]
fn a_nameless_body_is_its_callers() {
    let source = "static inline __attribute__((always_inline)) long stir(volatile long *tea, long n)
            { for (long i = 0; i < n; i++) *tea += i; return *tea; }
        __attribute__((noinline)) long pour(volatile long *tea, long n) { return stir(tea, n) + 1; }
        int main(int argc, char **argv) { long tea = argc; return (int)pour(&tea, argc) & 1; }";
    let directory = tempfile::tempdir().unwrap();
    let (assembly, path) = (directory.path().join("tea.s"), directory.path().join("tea"));
    if !build(Language::C, source, &assembly, &["-g", "-O2", "-S"]) {
        return;
    }
    let text = fs::read_to_string(&assembly).unwrap();
    if !text.contains(REFERENCE) {
        skip("this compiler writes other assembly");
        return;
    }
    fs::write(&assembly, text.replace(REFERENCE, ELSEWHERE)).unwrap();
    if !run_tool("cc", &["-o".as_ref(), path.as_ref(), assembly.as_ref()]) {
        return;
    }
    let swept = swept(&path, &mut Symbolizer::new());
    let lines =
        swept.iter().filter(|(.., symbol)| symbol.frames.iter().any(|it| it.source.is_some())).count();
    assert!(lines > 5, "its debug information is read");
    for (name, inside, symbol) in swept {
        let names: Vec<&str> = symbol.frames.iter().map(|frame| &*frame.function).collect();
        assert_eq!((names, symbol.frames[0].offset), (vec![&*name], Some(inside)), "{symbol:?}");
    }
}

#[test]
fn crates_and_their_workspace_are_known() {
    let directory = tempfile::tempdir().unwrap();
    let source =
        "mod house { #[inline(never)] pub fn brew(n: usize) -> usize { std::hint::black_box(n) + 1 } }
        fn main() { println!(\"{}\", house::brew(std::env::args().count())); }";
    let path = directory.path().join("tea");
    let here = std::env::current_dir().unwrap().display().to_string();
    let remap = format!("--remap-path-prefix={here}=/app");
    for (flags, workspace) in [
        (&["-Cdebuginfo=line-tables-only", "-Copt-level=1"][..], &*here),
        (&["-Cdebuginfo=2", &remap], "/app"),
        (&["-Cdebuginfo=1", "-Cdwarf-version=5", "-Csymbol-mangling-version=v0"], &here),
    ] {
        if !build(Language::Rust, source, &path, flags) {
            return;
        }
        let (_, at, _) =
            functions(&path).unwrap().into_iter().find(|(name, ..)| name.contains("house::brew")).unwrap();
        let (mut symbolizer, file) = (Symbolizer::new(), fs::File::open(&path).unwrap());
        let code = code::Code::map(&file, at - shift(&path).unwrap());
        let (mapping, symbol) = code.looked_up(&mut symbolizer);
        assert!(symbol.to_string().contains("brew"), "{symbol:?}");
        let crates = symbolizer.crates(&mapping).unwrap();
        assert_eq!(crates.workspace.as_deref(), Some(workspace), "{flags:?}");
        let root = path.with_extension("rs").display().to_string();
        assert!(crates.all.contains(&symbols::Crate { name: "tea".into(), root }), "{flags:?} {crates:?}");
        assert_eq!(symbolizer.lack(&AddressSpace::own().unwrap(), &mapping), None);
    }
}

#[test]
fn an_object_says_what_it_lacks() {
    const BUILD: &str = "build it with debug information (-g; Cargo: debug = \"line-tables-only\")";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tea");
    let lack = |path: &Path| {
        let (mut symbolizer, file) = (Symbolizer::with_debug_dirs([""; 0]), fs::File::open(path).unwrap());
        let code = code::Code::map(&file, 0x1000);
        let (mapping, _) = code.looked_up(&mut symbolizer);
        symbolizer.lack(&AddressSpace::own().unwrap(), &mapping).map(|lack| lack.to_string())
    };
    let source = "int main(void) { return 0; }";
    for (flags, has, why) in [
        (&["-g"][..], "", ""),
        (&["-Wl,--build-id=none"], "functions only, no lines and no inlined functions; ", BUILD),
        (&["-s", "-Wl,--build-id=none"], "exported functions only; ", BUILD),
        (
            &["-Wl,--build-id=0x0123456789abcdef"],
            "functions only, no lines and no inlined functions; ",
            "or put its debug file under /usr/lib/debug/.build-id/01/23456789abcdef.debug",
        ),
        (
            &["-g", "-gsplit-dwarf"],
            "functions and lines, no inlined functions: ",
            "(dwp -e OBJECT -o OBJECT.dwp)",
        ),
        (&["-g", "-gz=zlib"], "", ""),
    ] {
        if !build(Language::C, source, &path, flags) {
            return;
        }
        let lack = lack(&path).unwrap_or_default();
        assert!(lack.starts_with(has) && lack.ends_with(why), "{flags:?}: {lack}");
        assert_eq!(lack.is_empty(), has.is_empty(), "{flags:?}: {lack}");
    }
}

#[test]
fn split_debug_information_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tea");
    let source = "#include <stdio.h>
        static struct { int cups; } STATE = { 3 };
        int main(void) { printf(\"STATE\\t%p\\t4\\n\\n\", (void *)&STATE); fflush(stdout); getchar(); return STATE.cups; }";
    for flags in [&["-gdwarf-4", "-gsplit-dwarf"][..], &["-gdwarf-5", "-gsplit-dwarf"]] {
        if !build(Language::C, source, &path, flags) {
            return;
        }
        let program = Program::start(&path);
        let space = AddressSpace::of(program.pid()).unwrap();
        let statics = Statics::with_debug_dirs([""; 0]);
        assert_eq!(statics.find(&space, "STATE").unwrap()[0].addr, program.said()[0].1);
        let error = statics.find(&space, "STATE.cups").unwrap_err();
        assert!(matches!(error, StaticError::Broken { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(".dwp file, which are not read") && !error.contains("cut off"), "{error}");
    }
}
