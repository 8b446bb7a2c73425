//! Objects that come and leave, and copies of dormouse that meet in one process.
//!
//! The programs in `tests/layout` do it, each case in a process of its own; each says what it
//! checks. They are built by cargo, so on x86-64 alone: a virtual machine has none.
#![cfg(all(target_arch = "x86_64", not(dormouse_fallback)))]

use crate::fixtures;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use dormouse_sys::rendezvous::ABI;
use dormouse_testkit::long_only;
use object::{Object as _, ObjectSection as _};

/// Where the host and the objects are that share one copy.
fn shared() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let what = ["-p", "objects-host-shared", "-p", "objects-guest", "-p", "objects-second"];
        fixtures::cargo("build", "release", &what, &[], fixtures::SHARED);
        fixtures::folder("release", fixtures::SHARED)
    });
    built.clone()
}

/// Where those are that bring their own.
fn apart() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let what =
            ["-p", "objects-host", "-p", "objects-bare", "-p", "objects-plugin", "-p", "objects-empty"];
        fixtures::cargo("build", "release", &what, &[], "");
        fixtures::folder("release", "")
    });
    built.clone()
}

fn run_shared(case: &str) -> String {
    let mut program = fixtures::program(&shared(), "objects-host-shared");
    program.arg(case);
    fixtures::run(program, "done")
}

fn run_apart(host: &str, case: &str, objects: &[&str]) -> String {
    let folder = apart();
    let mut program = fixtures::program(&folder, host);
    program.arg(case).args(objects.iter().map(|object| folder.join(object)));
    fixtures::run(program, "done")
}

const PLUGIN: &str = "libobjects_plugin.so";

#[test]
fn sites_follow_keys_of_other_objects() {
    run_shared("table");
}

#[test]
fn an_opened_object_follows_before_it_runs() {
    run_shared("present");
}

#[test]
fn a_key_stays_while_its_users_do() {
    run_shared("needed");
}

#[test]
fn a_lease_pins_and_a_look_does_not() {
    run_shared("pinned");
}

#[test]
fn a_leaving_object_takes_no_files() {
    run_shared("prepared");
}

#[test]
fn a_hold_pins_the_object() {
    run_shared("held");
}

#[test]
fn a_key_handed_out_pins_its_object() {
    run_shared("handed-out");
}

#[test]
fn an_object_that_cannot_follow_waits() {
    let mut program = fixtures::program(&shared(), "objects-host-shared");
    program.arg("waiting").env("GUEST_BREAKS", "1");
    fixtures::run(program, "done");
}

#[test]
fn objects_come_and_leave_during_batches() {
    println!("{}", run_shared("churn"));
}

#[test]
fn a_forked_child_can_load_objects() {
    run_shared("fork");
}

#[test]
fn two_copies_share_their_keys() {
    run_apart("objects-host", "table", &[PLUGIN]);
}

#[test]
fn two_copies_share_lock_and_handler() {
    println!("{}", run_apart("objects-host", "both", &[PLUGIN]));
}

#[test]
fn a_fork_waits_for_all_copies() {
    run_apart("objects-host", "fork", &[PLUGIN]);
}

#[test]
fn a_copy_leaves_with_its_object() {
    println!("{}", run_apart("objects-host", "churn", &[PLUGIN]));
    println!("{}", run_apart("objects-bare", "alone", &[PLUGIN]));
}

/// The note, the constructor and the destructor survive in a shared object, whichever linker and
/// profile made it. The one that [`a_copy_leaves_with_its_object`] loads is linked by lld.
#[test]
fn a_copy_leaves_whichever_object_linked_it() {
    if !long_only() {
        return;
    }
    let linkers = [("fat", ""), ("dev", "ld.gold"), ("thin", "ld.bfd")];
    let mut skipped = 0;
    for (profile, linker) in linkers {
        if !linker.is_empty() && Command::new(linker).arg("--version").output().is_err() {
            dormouse_testkit::skip(format_args!("{linker} is not installed"));
            skipped += 1;
            continue;
        }
        let flag = linker.strip_prefix("ld.").map(|name| format!("-Clink-arg=-fuse-ld={name}"));
        let flags: Vec<&str> = flag.iter().map(String::as_str).collect();
        fixtures::cargo("rustc", profile, &["-p", "objects-plugin", "--lib"], &flags, "");
        let plugin = fixtures::folder(profile, "").join(PLUGIN);
        for case in ["table", "churn"] {
            run_apart("objects-host", case, &[plugin.to_str().unwrap()]);
        }
    }
    assert!(skipped < linkers.len());
}

#[test]
fn a_copy_that_lays_traps_stays() {
    run_apart("objects-host", "trapped", &[PLUGIN]);
}

#[test]
fn a_key_missed_once_pins_later() {
    run_apart("objects-host", "missed", &[PLUGIN]);
}

#[test]
fn an_object_without_sites_comes_and_leaves() {
    run_apart("objects-host", "empty", &["libobjects_empty.so"]);
}

#[test]
fn a_truncated_object_loses_only_its_keys() {
    for when in ["unseen", "seen", "given", "tail"] {
        let object = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("libcut_{when}.so"));
        std::fs::copy(shared().join("libobjects_guest.so"), &object).unwrap();
        let mut program = fixtures::program(&shared(), "objects-host-shared");
        program.args(["truncated", object.to_str().unwrap(), when]);
        fixtures::run(program, "done");
    }
}

/// The same object under another name, as a second one.
fn another(name: &str, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut bytes = std::fs::read(apart().join(PLUGIN)).unwrap();
    change(&mut bytes);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn the_first_copy_leads_a_foreign_host() {
    let second = another("libsecond_plugin.so", |_| {});
    for case in ["two", "follower"] {
        run_apart("objects-bare", case, &[PLUGIN, second.to_str().unwrap()]);
    }
}

#[test]
fn a_copy_of_another_version_is_refused() {
    let newer = another("libnewer_plugin.so", |bytes| {
        let file = object::File::parse(&**bytes).unwrap();
        let (at, length) = file.section_by_name(".note.dormouse").unwrap().file_range().unwrap();
        // Behind three lengths and twelve bytes of name.
        let version = at as usize + 24;
        assert_eq!((length, &bytes[version..version + 4]), (32, &ABI.to_ne_bytes()[..]));
        bytes[version] = 77;
    });
    let said = run_apart("objects-host", "refused", &[newer.to_str().unwrap()]);
    for part in
        ["libnewer_plugin.so", "version 77", "objects-host", &format!("version {ABI})"), "same version"]
    {
        assert!(said.contains(part), "{part} in {said}");
    }
}
