//! What `make install` installs.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::tools::{have_basics, make, prefix, scratch, succeed};

/// Files and links below a folder, relative to it.
fn files(folder: &Path) -> BTreeSet<String> {
    let said = succeed(Command::new("find").args([".", "!", "-type", "d"]).current_dir(folder));
    String::from_utf8(said.stdout).unwrap().lines().map(|line| line[2..].to_owned()).collect()
}

#[test]
fn install_puts_everything_below_the_destination_and_uninstall_takes_it_away() {
    if !have_basics() {
        return;
    }
    let folder = scratch().join("destination");
    let destination = format!("DESTDIR={}", folder.display());
    let arguments = [&*destination, "PREFIX=/usr", "LIBDIR=/usr/lib/x86_64-linux-gnu"];
    make(&[&["install"][..], &arguments].concat());
    let version = env!("CARGO_PKG_VERSION");
    let library = "usr/lib/x86_64-linux-gnu";
    assert_eq!(
        files(&folder),
        [
            "usr/include/dormouse/dormouse.h".to_owned(),
            "usr/include/dormouse/keys.h".to_owned(),
            format!("{library}/libdormouse.a"),
            format!("{library}/libdormouse.so"),
            format!("{library}/libdormouse.so.0"),
            format!("{library}/libdormouse.so.{version}"),
            format!("{library}/pkgconfig/dormouse.pc"),
        ]
        .into()
    );
    let file = folder.join(library).join("pkgconfig/dormouse.pc");
    let text = std::fs::read_to_string(file).unwrap();
    assert!(
        text.contains("includedir=/usr/include\n") && text.contains(&format!("Version: {version}\n")),
        "{text}"
    );
    make(&[&["uninstall"][..], &arguments].concat());
    assert_eq!(files(&folder), BTreeSet::new());
}

#[test]
fn the_shared_library_exports_its_own_names_alone_each_with_a_version() {
    if !have_basics() {
        return;
    }
    let library = prefix().join("lib/libdormouse.so");
    let said =
        succeed(Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(&library));
    let said = String::from_utf8(said.stdout).unwrap();
    let exported: BTreeSet<&str> = said.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    // What the headers declare, and nothing that they do not.
    let header = |name| std::fs::read_to_string(prefix().join("include/dormouse").join(name)).unwrap();
    let headers = header("keys.h") + &header("dormouse.h");
    let names = exported.iter().filter_map(|name| name.strip_suffix("@@DORMOUSE_0"));
    assert_eq!(names.clone().count(), exported.len() - 1, "{exported:?}");
    for name in names.clone() {
        assert!(name.starts_with("dormouse_") && headers.contains(&format!("{name}(")), "{name}");
    }
    for name in ["dormouse_init", "dormouse_enable", "dormouse_record", "dormouse_register_v1"] {
        assert!(names.clone().any(|exported| exported == name), "{name} in {exported:?}");
    }
    let dynamic = succeed(Command::new("readelf").arg("-dW").arg(&library));
    let dynamic = String::from_utf8(dynamic.stdout).unwrap();
    assert!(dynamic.contains("soname: [libdormouse.so.0]") && dynamic.contains("NODELETE"), "{dynamic}");
}
