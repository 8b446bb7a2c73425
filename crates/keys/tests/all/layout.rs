//! The metadata of sites survives what compilers and linkers do to a program, and a sleeping site
//! is one instruction.
//!
//! Builds the programs in `tests/layout` by each profile and linker, runs them, and reads what they
//! say.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]

use crate::fixtures;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use dormouse_testkit::{is_long, long_only, short_or_long};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use object::{Object as _, ObjectSection as _, SectionFlags};

/// The output of a program: its keys with their numbers of sites, and the code of `codegen` and
/// `codegen_api`.
struct Said {
    keys: BTreeMap<String, usize>,
    code: Vec<Vec<u8>>,
}

/// Builds one binary, runs it, and takes apart what it prints. Flags are those of the linked
/// program alone.
fn run(profile: &str, package: &str, bin: &str, flags: &[&str], everywhere: &str) -> Said {
    // Each runs what it has built itself.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    fixtures::cargo("rustc", profile, &["--package", package, "--bin", bin], flags, everywhere);
    let folder = fixtures::folder(profile, everywhere);
    check_note(&folder.join(bin));
    let program = fixtures::program(&folder, bin);
    let said = fixtures::run(program, "every site follows");
    let mut result = Said { keys: BTreeMap::new(), code: Vec::new() };
    for line in said.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["key", name, sites] => {
                result.keys.insert(name.into(), sites.parse().unwrap());
            }
            ["code", hex] => result.code.push(bytes(hex)),
            _ => {}
        }
    }
    result
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Programs that bring a copy of dormouse, and not those that use a shared one, have its note where
/// it is mapped.
fn check_note(program: &Path) {
    let bytes = std::fs::read(program).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let note = file.section_by_name(".note.dormouse");
    let is_shared = program.ends_with("layout-app-shared");
    assert_eq!(note.is_none(), is_shared, "{}", program.display());
    let Some(note) = note else { return };
    let SectionFlags::Elf { sh_flags } = note.flags() else { panic!("{}", program.display()) };
    assert!(note.size() == 32 && sh_flags & u64::from(object::elf::SHF_ALLOC) != 0, "{}", program.display());
}

/// `lld`: whether the linker is one that drops the entries of dead functions. GNU ld and gold keep
/// a section that has a `__start_` symbol, and the functions with it: larger, not wrong.
fn check_keys(said: &Said, profile: &str, lld: bool) {
    let sites = |name: &str| said.keys.get(name).copied().unwrap_or(0);
    for name in [
        "app.own",
        "lib.public",
        "lib.twin-a",
        "lib.twin-b",
        "app.codegen",
        "lib.of-the-api",
        "app.codegen-api",
    ] {
        assert!(sites(name) >= 1, "{profile}: {name} in {:?}", said.keys);
    }
    assert!(sites("lib.inlined") >= 5, "{profile}: each inlined copy is a site of its own: {:?}", said.keys);
    // Two instances, which whole-program optimisation may find to be the same.
    assert!(sites("lib.generic") >= 1, "{profile}: {:?}", said.keys);
    assert!(sites("lib.starts-on") >= 2, "{profile}: {:?}", said.keys);
    assert!(!lld || sites("lib.dead") == 0, "{profile}: a dead function keeps its entry: {:?}", said.keys);
}

/// The functions that the program prints: one with a branch, and one with a probe of the API.
fn check_functions(said: &Said) {
    let [branch, probe] = &said.code[..] else { panic!("{} functions", said.code.len()) };
    check_codegen(branch);
    check_codegen(probe);
}

/// Asleep, the way to the return is straight: one five-byte test, no load, no branch, and the body
/// behind the end.
fn check_codegen(code: &[u8]) {
    let hot: Vec<Instruction> = {
        let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
        let mut until_return = Vec::new();
        loop {
            let instruction = decoder.decode();
            until_return.push(instruction);
            if instruction.flow_control() == FlowControl::Return {
                break until_return;
            }
            assert_eq!(
                instruction.flow_control(),
                FlowControl::Next,
                "a branch on the hot path: {until_return:?}"
            );
        }
    };
    let sites: Vec<&Instruction> = hot
        .iter()
        .filter(|i| i.mnemonic() == Mnemonic::Test && i.op1_kind() == OpKind::Immediate32)
        .collect();
    assert_eq!(sites.len(), 1, "{hot:?}");
    assert_eq!(sites[0].len(), 5);
    assert!(
        hot.iter()
            .all(|i| (0..i.op_count()).all(|n| i.op_kind(n) != OpKind::Memory)
                || i.mnemonic() == Mnemonic::Lea),
        "a load on the hot path: {hot:?}"
    );
    let target = sites[0].next_ip() + u64::from(sites[0].immediate32());
    let end = hot.last().unwrap().next_ip();
    assert!(target >= end, "the body at {target} is before the return at {end}");
}

#[test]
fn no_live_site_is_lost_in_any_profile() {
    // The test of linkers builds for release, and this program is built to be debugged.
    let profiles = short_or_long(&["fat"][..], &["dev", "release", "thin", "fat"]);
    for &profile in profiles {
        let said = run(profile, "layout-app", "sites", &[], "");
        check_keys(&said, profile, true);
        if profile != "dev" {
            check_functions(&said);
        }
        // The test of linkers builds it for release, too.
        if !is_long() {
            continue;
        }
        let none = run(profile, "layout-app", "none", &[], "");
        assert_eq!(none.keys.len(), 0, "{profile}: {:?}", none.keys);
    }
}

/// Builds everything once more. Without it, the step `bare` of the checks runs a service whose
/// sites are off.
#[test]
fn a_site_that_is_off_leaves_nothing() {
    if !long_only() {
        return;
    }
    let everywhere = "--cfg dormouse_off";
    fixtures::cargo("rustc", "release", &["--package", "layout-app", "--bin", "off"], &[], everywhere);
    let program = fixtures::program(&fixtures::folder("release", everywhere), "off");
    let said = fixtures::run(program, "constant");
    let codes = said.lines().filter_map(|line| line.strip_prefix("code "));
    let mnemonics: Vec<Vec<Mnemonic>> = codes.map(|hex| until_return(&bytes(hex))).collect();
    let [site, probe, nothing] = &mnemonics[..] else { panic!("{mnemonics:?}") };
    assert!(site == nothing && probe == nothing, "{mnemonics:?}");
}

/// The instructions of a function up to its return.
fn until_return(code: &[u8]) -> Vec<Mnemonic> {
    let mut mnemonics: Vec<Mnemonic> =
        Decoder::with_ip(64, code, 0, DecoderOptions::NONE).iter().map(|it| it.mnemonic()).collect();
    let end = mnemonics.iter().position(|mnemonic| *mnemonic == Mnemonic::Ret);
    mnemonics.truncate(end.expect("a return") + 1);
    mnemonics
}

#[test]
fn no_linker_loses_a_live_site() {
    let linkers: [(&str, &[&str]); 4] = [
        ("ld.lld", &["-Clink-arg=-Wl,--icf=all"]),
        ("ld.bfd", &["-Clink-arg=-fuse-ld=bfd"]),
        ("ld.gold", &["-Clink-arg=-fuse-ld=gold"]),
        ("ld.gold", &["-Clink-arg=-fuse-ld=gold", "-Clink-arg=-Wl,--icf=all"]),
    ];
    let mut skipped = 0;
    for (linker, flags) in linkers {
        // rustc brings its own lld.
        if linker != "ld.lld" && Command::new(linker).arg("--version").output().is_err() {
            dormouse_testkit::skip(format_args!("{linker} is not installed"));
            skipped += 1;
            continue;
        }
        let said = run("release", "layout-app", "sites", flags, "");
        check_keys(&said, linker, linker == "ld.lld");
        check_functions(&said);
        let none = run("release", "layout-app", "none", flags, "");
        assert_eq!(none.keys.len(), 0, "{linker}: {:?}", none.keys);
    }
    assert!(skipped < linkers.len());
}

#[test]
fn a_shared_key_has_the_sites_of_both() {
    for profile in short_or_long(&["release"][..], &["dev", "release"]) {
        let said = run(profile, "layout-app-shared", "layout-app-shared", &[], fixtures::SHARED);
        assert_eq!(said.keys, BTreeMap::from([("shared.key".to_owned(), 2)]), "{profile}");
    }
}
