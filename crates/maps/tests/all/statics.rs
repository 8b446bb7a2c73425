//! Variables of real programs by name: each program says itself where its variables are.

use crate::program;

use std::fs;

use dormouse_maps::AddressSpace;
use dormouse_maps::symbols::{StaticError, StaticPlace, Statics};
use dormouse_testkit::skip;
use program::{Language, Program, build, run_tool};

const C: &str = include_str!("program/kitchen.c");
const CPP: &str = include_str!("program/kitchen.cpp");
const RUST: &str = include_str!("program/kitchen.rs");

/// A program in a directory of its own, running.
fn start(language: Language, source: &str, flags: &[&str]) -> Option<(tempfile::TempDir, Program)> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kitchen");
    let is_built = build(language, source, &path, flags);
    is_built.then(|| (directory, Program::start(&path)))
}

fn statics() -> Statics {
    Statics::with_debug_dirs([""; 0])
}

#[track_caller]
fn find(space: &AddressSpace, text: &str) -> Vec<StaticPlace> {
    statics().find(space, text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Each variable is found where the program says that it is, and nowhere else.
#[track_caller]
fn assert_all_are_found(program: &Program) {
    let space = AddressSpace::of(program.pid()).unwrap();
    assert!(program.said().len() > 10);
    for (text, addr, len) in program.said() {
        let found = find(&space, text);
        let steps = &text[text.find(['.', '[', '-', '+']).unwrap_or(text.len())..];
        assert!(found[0].name.ends_with(steps), "{text}: {found:?}");
        let found: Vec<_> = found.iter().map(|one| (one.addr, one.len)).collect();
        assert_eq!(found, [(*addr, *len)], "{text}");
    }
}

#[test]
fn parts_of_c_variables_are_found() {
    for flags in [
        &["-g", "-O0"][..],
        &["-gdwarf-4", "-O2"],
        &["-gdwarf-5", "-O2", "-no-pie"],
        &["-g", "-gz=zlib", "-static"],
        &["-gdwarf-5", "-fdebug-types-section"],
        &["-g", "-flto", "-O1"],
    ] {
        let Some((_directory, program)) = start(Language::C, C, flags) else { return };
        assert_all_are_found(&program);
    }
    // It puts addresses into tables of their own.
    for flags in [&["-gdwarf-5", "-O2"][..], &["-gdwarf-4", "-O0"]] {
        let Some((_directory, program)) = start(Language::Clang, C, flags) else { return };
        assert_all_are_found(&program);
    }
}

#[test]
fn parts_of_cpp_variables_are_found() {
    for flags in [&["-g", "-O0"][..], &["-gdwarf-4", "-O2", "-no-pie"]] {
        let Some((_directory, program)) = start(Language::Cpp, CPP, flags) else { return };
        assert_all_are_found(&program);
    }
}

#[test]
fn parts_of_rust_variables_are_found() {
    for flags in [
        &["-g"][..],
        &["-g", "-Copt-level=3", "-Csymbol-mangling-version=v0"],
        &["-g", "-Crelocation-model=static"],
        &["-g", "-Cdwarf-version=5"],
        &["-g", "-Clto=fat", "-Copt-level=2"],
    ] {
        let Some((_directory, program)) = start(Language::Rust, RUST, flags) else { return };
        assert_all_are_found(&program);
    }
}

#[test]
fn types_have_the_names_of_their_language() {
    let Some((_directory, program)) = start(Language::C, C, &["-g"]) else { return };
    let space = AddressSpace::of(program.pid()).unwrap();
    let type_of = |space: &AddressSpace, text: &str| find(space, text)[0].type_name.clone().unwrap();
    for (text, name) in [
        ("hall", "room"),
        ("hall.name", "char[16]"),
        ("hall.grid[1]", "int[5]"),
        ("hall.grid[1][2]", "int"),
        ("hall.next", "point*"),
        ("fixed", "const volatile int"),
    ] {
        let found = type_of(&space, text);
        assert!(found == name || (name == "const volatile int" && found == "volatile const int"), "{found}");
    }
    let Some((_directory, program)) = start(Language::Rust, RUST, &["-g"]) else { return };
    let space = AddressSpace::of(program.pid()).unwrap();
    for (text, name) in [("HALL.rooms", "[(u8, u32); 3]"), ("HALL.rooms[1].1", "u32"), ("HALL.title", "&str")]
    {
        assert_eq!(type_of(&space, text), name);
    }
}

#[test]
fn without_debug_information_whole_variables_are_found() {
    let Some((_directory, program)) = start(Language::C, C, &["-g0"]) else { return };
    let space = AddressSpace::of(program.pid()).unwrap();
    let (_, addr, len) = program.said().iter().find(|(text, ..)| text == "hall").unwrap();
    let hall = find(&space, "hall");
    assert_eq!((hall[0].addr, hall[0].len, &hall[0].type_name), (*addr, *len, &None));
    let word = find(&space, "hall+0x14");
    assert_eq!((word[0].addr, word[0].len), (addr + 0x14, 4), "it is aligned by four");
    let error = statics().find(&space, "hall.name").unwrap_err();
    assert!(matches!(error, StaticError::NoType { .. }), "{error}");
    assert!(error.to_string().contains("`-g`"), "{error}");
}

#[test]
fn wrong_names_and_steps_tell_what_there_is() {
    let Some((_directory, program)) = start(Language::Rust, RUST, &["-g"]) else { return };
    let space = AddressSpace::of(program.pid()).unwrap();
    let error = |text: &str| statics().find(&space, text).unwrap_err();
    for (text, part) in [
        ("HALLL", "`kitchen::HALL`"),
        ("HALL.room", "`rooms`"),
        ("HALL.rooms[3]", "3 elements"),
        ("HALL.rooms.x", "has no fields"),
        ("HALL[1]", "is no array"),
        ("HALL->x", "is no pointer"),
        ("HALL+0x10000", "bytes"),
        ("MINE", "thread-local"),
        ("NOTHING", "no bytes"),
    ] {
        let error = error(text).to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    assert!(matches!(error("HALL."), StaticError::Syntax { .. }));
}

#[test]
fn all_variables_of_one_name_are_found() {
    let Some((_directory, program)) = start(Language::Rust, RUST, &["-g"]) else { return };
    let space = AddressSpace::of(program.pid()).unwrap();
    let found = find(&space, "TWICE");
    let names: Vec<&str> = found.iter().map(|one| &*one.name).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names.contains(&"kitchen::one::TWICE") && names.contains(&"kitchen::two::TWICE"), "{names:?}");
    assert_eq!(find(&space, "one::TWICE").len(), 1);
}

#[test]
fn stripped_program_says_how_to_build() {
    let Some((directory, program)) = start(Language::C, C, &["-g"]) else { return };
    let (whole, stripped) = (directory.path().join("kitchen"), directory.path().join("stripped"));
    drop(program);
    if !run_tool("objcopy", &["--strip-all".as_ref(), whole.as_ref(), stripped.as_ref()]) {
        return;
    }
    let program = Program::start(&stripped);
    let space = AddressSpace::of(program.pid()).unwrap();
    let error = statics().find(&space, "hall").unwrap_err().to_string();
    assert!(error.contains("stripped is stripped") && error.contains("-s"), "{error}");
}

#[test]
fn separate_debug_file_tells_all() {
    let Some((directory, program)) = start(Language::C, C, &["-g"]) else { return };
    drop(program);
    let at = |name: &str| directory.path().join(name);
    let link = format!("--add-gnu-debuglink={}", at("kitchen.debug").display());
    let (whole, debug, tea) = (at("kitchen"), at("kitchen.debug"), at("tea"));
    if !run_tool("objcopy", &["--only-keep-debug".as_ref(), whole.as_ref(), debug.as_ref()])
        || !run_tool("objcopy", &["--strip-all".as_ref(), link.as_ref(), whole.as_ref(), tea.as_ref()])
    {
        return;
    }
    assert_all_are_found(&Program::start(&at("tea")));
    fs::remove_file(at("kitchen.debug")).unwrap();
    let program = Program::start(&at("tea"));
    assert!(statics().find(&AddressSpace::of(program.pid()).unwrap(), "hall").is_err());
}

#[test]
fn variables_of_a_library_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let (library, path) = (directory.path().join("libcellar.so"), directory.path().join("kitchen"));
    let source = "struct pair { int full, empty; };
        static struct pair bottles;
        struct pair barrels = { 1, 2 };
        int *look(void) { return &bottles.empty; }";
    if !build(Language::C, source, &library, &["-g", "-shared", "-fPIC"]) {
        return;
    }
    // The linker makes a copy of `barrels` in the program, which the library uses, too.
    let source = r#"#include <stdio.h>
        extern struct pair { int full, empty; } barrels;
        int *look(void);
        int main(void) {
            printf("bottles.empty\t%p\t4\n", (void *)look());
            printf("barrels.empty\t%p\t4\n", (void *)&barrels.empty);
            putchar('\n');
            fflush(stdout);
            getchar();
        }"#;
    let here = directory.path().to_str().unwrap();
    let run_path = format!("-Wl,-rpath,{here}");
    for kind in ["-no-pie", "-pie"] {
        assert!(build(Language::C, source, &path, &[kind, "-L", here, &run_path, "-lcellar"]));
        let program = Program::start(&path);
        let space = AddressSpace::of(program.pid()).unwrap();
        for ((text, addr, len), object) in program.said().iter().zip(["libcellar.so", "kitchen"]) {
            let found = find(&space, text);
            assert_eq!((found.len(), found[0].addr, found[0].len), (1, *addr, *len), "{text}");
            assert_eq!(&*found[0].object, object);
        }
    }
}

#[test]
fn functions_are_found() {
    #[inline(never)]
    fn brew() -> usize {
        std::hint::black_box(brew as fn() -> usize as usize)
    }
    let space = AddressSpace::own().unwrap();
    let find = |text: &str| statics().find_function(&space, text).unwrap();
    assert_eq!(find("statics::functions_are_found::brew")[0].addr, brew() as u64);
    assert_eq!(find("functions_are_found::brew+0x1")[0].addr, brew() as u64 + 1);
    let error = statics().find_function(&space, "functions_are_found::breww").unwrap_err().to_string();
    assert!(
        error.contains("no function") && error.contains("`all::statics::functions_are_found::brew`"),
        "{error}"
    );
}

#[test]
fn file_mapped_by_others_moves_nothing() {
    let Some((_directory, program)) = start(Language::C, C, &["-g", "-DMAP_TWICE"]) else { return };
    assert_all_are_found(&program);
}

#[test]
fn own_variables_are_found() {
    static OWN: [u64; 2] = [1, 2];
    let space = AddressSpace::own().unwrap();
    let expected = (&raw const OWN[1] as u64, 8);
    match statics().find(&space, "own_variables_are_found::OWN[1]") {
        Ok(found) => assert_eq!((found[0].addr, found[0].len), expected),
        // Tests may be built with tables of lines alone.
        Err(StaticError::NoType { .. }) => skip("this program has no debug information of types"),
        Err(error) => panic!("{error}"),
    }
    let found = find(&space, "own_variables_are_found::OWN+8");
    assert_eq!((found[0].addr, found[0].len), expected);
}
