//! The files of `make install`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use dormouse_testkit::c::{have_basics, make, prefix, scratch, succeed};

/// Files and links below a folder, relative to it.
fn files(folder: &Path) -> BTreeSet<String> {
    let said = succeed(Command::new("find").args([".", "!", "-type", "d"]).current_dir(folder));
    String::from_utf8(said.stdout).unwrap().lines().map(|line| line[2..].to_owned()).collect()
}

#[test]
fn uninstall_removes_all_that_install_put() {
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
            "usr/include/dormouse/groups.h".to_owned(),
            "usr/include/dormouse/keys.h".to_owned(),
            "usr/include/dormouse/metrics.h".to_owned(),
            "usr/include/dormouse/profile.h".to_owned(),
            "usr/include/dormouse/publish.h".to_owned(),
            "usr/include/dormouse/waits.h".to_owned(),
            "usr/include/dormouse/watch.h".to_owned(),
            format!("{library}/libdormouse.a"),
            format!("{library}/libdormouse.so"),
            format!("{library}/libdormouse.so.0"),
            format!("{library}/libdormouse.so.{version}"),
            format!("{library}/pkgconfig/dormouse-static.pc"),
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

/// The symbols of the shared library with their versions, by `nm`.
fn symbols() -> BTreeSet<String> {
    let library = prefix().join("lib/libdormouse.so");
    let said =
        succeed(Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(&library));
    let said = String::from_utf8(said.stdout).unwrap();
    said.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect()
}

/// The functions that the shared library exports.
pub(crate) fn exported() -> BTreeSet<String> {
    let ours = |name: &&str| *name != "otel_thread_ctx_v1";
    let versioned = symbols();
    let names = versioned.iter().filter_map(|name| name.strip_suffix("@@DORMOUSE_0"));
    names.filter(ours).map(str::to_owned).collect()
}

#[test]
fn exported_names_are_ours_and_versioned() {
    if !have_basics() {
        return;
    }
    let (symbols, names) = (symbols(), exported());
    // The names that the headers declare, and no other.
    let header = |name| std::fs::read_to_string(prefix().join("include/dormouse").join(name)).unwrap();
    let headers =
        ["keys.h", "groups.h", "metrics.h", "profile.h", "publish.h", "waits.h", "watch.h", "dormouse.h"];
    let headers = headers.map(header).concat();
    assert_eq!(names.len(), symbols.len() - 2, "{symbols:?}");
    for name in &names {
        assert!(name.starts_with("dormouse_") && headers.contains(&format!("{name}(")), "{name}");
    }
    for name in ["dormouse_init", "dormouse_enable", "dormouse_record", "dormouse_register_v1"] {
        assert!(names.contains(name), "{name} in {names:?}");
    }
    let library = prefix().join("lib/libdormouse.so");
    let dynamic = succeed(Command::new("readelf").arg("-dW").arg(&library));
    let dynamic = String::from_utf8(dynamic.stdout).unwrap();
    assert!(dynamic.contains("soname: [libdormouse.so.0]") && dynamic.contains("NODELETE"), "{dynamic}");
}
