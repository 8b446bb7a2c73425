//! No site is lost, and none follows another's key, whatever compiler, assembler and linker do.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dormouse_testkit::c::{Build, CLANG, Compiler, GCC, Language, Link, have, have_basics, run, succeed};

const UNITS: [(&str, Language); 4] = [
    ("sites.c", Language::C),
    ("sites_c.c", Language::C),
    ("sites_b.cc", Language::Cxx),
    ("sites_d.cc", Language::Cxx),
];

/// The numbers of sites of its keys, as a program says them.
fn sites(program: &Path, what: &str) -> BTreeMap<String, usize> {
    let said = run(program);
    assert!(said.ends_with("every site follows\n"), "{what}: {said}");
    let keys = said.lines().filter_map(|line| line.strip_prefix("key ")?.split_once(' '));
    keys.map(|(name, sites)| (name.to_owned(), sites.parse().unwrap())).collect()
}

fn program(name: &str, compiler: Compiler, flags: &str, link: Link) -> PathBuf {
    let build = Build::new(name, compiler, flags);
    let objects = UNITS.map(|(unit, language)| build.compile(unit, language, &["-DWITH_CXX"]));
    build.link("program", &objects, link, &[])
}

/// Builds and runs the program once for each set of flags.
fn check(name: &str, compiler: Compiler, all: &[(&str, Link)]) {
    for (number, &(flags, link)) in all.iter().enumerate() {
        let what = format!("{name} {flags} {link:?}");
        let sites = sites(&program(&format!("{name}-{number}"), compiler, flags, link), &what);
        for key in ["c.own", "c.twin-a", "c.twin-b", "c.public", "c.in-loop", "cc.member", "cc.between"] {
            assert!(sites.contains_key(key), "{what}: {key} in {sites:?}");
        }
        assert_eq!(sites["c.starts-on"], 2, "{what}");
        // lld alone drops the entry of a dead function; the others keep it, and the function with
        // it.
        let dropped = flags.contains("lld") && flags.contains("--gc-sections");
        assert!(!dropped || !sites.contains_key("c.dead"), "{what}: {sites:?}");
    }
}

#[test]
fn gcc_and_gnu_linkers_lose_no_site() {
    if !have_basics() {
        return;
    }
    check(
        "gcc",
        GCC,
        &[
            ("-O0", Link::Shared),
            ("-O1 -masm=intel", Link::Shared),
            ("-O2 -fPIC -fcf-protection", Link::Shared),
            ("-O2 -fPIE -pie -ffunction-sections -fdata-sections -Wl,--gc-sections", Link::Static),
            ("-O3 -fno-pic -no-pie -funroll-loops", Link::Shared),
            ("-Os -static", Link::Static),
        ],
    );
    if have(&["ld.gold"]) {
        let folded = "-O2 -fuse-ld=gold -ffunction-sections -Wl,--gc-sections,--icf=all";
        // Each unit has its own copy of an inline function; the linker discards one, and its
        // entries.
        let copies = "-O2 -fno-inline -fuse-ld=gold";
        check("gcc-gold", GCC, &[(folded, Link::Shared), (copies, Link::Shared)]);
    }
}

#[test]
fn no_site_is_lost_by_link_time_optimisation() {
    if !have_basics() {
        return;
    }
    check(
        "gcc-lto",
        GCC,
        &[
            ("-O2 -flto", Link::Static),
            ("-O3 -flto -fPIC -ffunction-sections -Wl,--gc-sections", Link::Shared),
            ("-O2 -flto -flto-partition=max -fno-pic -no-pie", Link::Shared),
        ],
    );
}

#[test]
fn no_site_is_lost_by_clang_and_lld() {
    if !have_basics() || !have(&[CLANG.c, CLANG.cxx]) {
        return;
    }
    check(
        "clang",
        CLANG,
        &[
            ("-O0 -fPIC", Link::Shared),
            ("-O2", Link::Static),
            ("-O3 -fno-pic -no-pie", Link::Shared),
            ("-O2 -fno-integrated-as", Link::Shared),
        ],
    );
    if have(&["ld.lld"]) {
        check(
            "clang-lld",
            CLANG,
            &[
                ("-O2 -fuse-ld=lld -ffunction-sections -Wl,--gc-sections,--icf=all", Link::Shared),
                ("-O2 -fno-inline -fuse-ld=lld", Link::Shared),
                ("-O2 -flto -fuse-ld=lld", Link::Static),
                ("-O2 -flto=thin -fPIC -fuse-ld=lld -Wl,--gc-sections,--icf=all", Link::Shared),
            ],
        );
    }
}

/// The header asks GNU as for its version; here every version is too old.
#[test]
fn an_old_assembler_loses_no_site() {
    if !have_basics() {
        return;
    }
    let build = Build::new("old-assembler", GCC, "-O2 -fno-inline");
    let mut objects = vec![build.compile("sites.c", Language::C, &["-DWITH_CXX"])];
    objects.extend(UNITS[1..].iter().map(|&(unit, language)| {
        let assembly = build.compile(unit, language, &["-DWITH_CXX", "-S"]);
        let text = fs::read_to_string(&assembly).unwrap();
        let old = text.replace(".if .gasversion. < 23600", ".if .gasversion. < 99999999");
        assert!(text != old, "{unit} asks for no version");
        let source = assembly.with_extension("s");
        fs::write(&source, old).unwrap();
        let object = assembly.with_extension("old.o");
        succeed(Command::new(GCC.c).arg("-c").arg(&source).arg("-o").arg(&object));
        let sections = succeed(Command::new("readelf").args(["-SW"]).arg(&object));
        let sections = String::from_utf8(sections.stdout).unwrap();
        let ours = || sections.lines().filter(|line| line.contains(" dormouse_sites_v1"));
        assert!(ours().count() > 0 && ours().all(|line| !line.contains(" AL")), "{sections}");
        object
    }));
    let program = build.link("program", &objects, Link::Shared, &[]);
    assert!(sites(&program, "old assembler").contains_key("cc.member"));
}
