//! The house's plan: crates depend on one another one way only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every crate may depend on this one, for its tests alone.
const TESTKIT: &str = "dormouse-testkit";
/// The project's checks.
const XTASK: &str = "xtask";

/// The dependencies that each crate may have, of ours. A crate that is not here has no place in the
/// plan yet.
const PLAN: [(&str, &[&str]); 26] = [
    (TESTKIT, &[]),
    (XTASK, &[]),
    // Its services use the processor by the testkit.
    ("dormouse-others", &["dormouse", "dormouse-profile", "dormouse-protocol", TESTKIT]),
    ("dormouse-sys", &[]),
    ("dormouse-api", &[]),
    ("dormouse-encode", &[]),
    ("dormouse-statistics", &[]),
    ("dormouse-protocol", &["dormouse-encode", "dormouse-metrics", "dormouse-statistics"]),
    ("dormouse-keys", &["dormouse-sys", "dormouse-maps"]),
    ("dormouse-clock", &["dormouse-sys"]),
    ("dormouse-events", &["dormouse-sys", "dormouse-keys", "dormouse-clock"]),
    ("dormouse-maps", &[]),
    ("dormouse-unwind", &["dormouse-sys", "dormouse-maps"]),
    ("dormouse-breakpoints", &["dormouse-sys", "dormouse-unwind"]),
    (
        "dormouse-profile",
        &[
            "dormouse-sys",
            "dormouse-clock",
            "dormouse-encode",
            "dormouse-maps",
            "dormouse-protocol",
            "dormouse-unwind",
        ],
    ),
    // The profile, for its tests: it finds the names of functions.
    (
        "dormouse-waits",
        &[
            "dormouse-sys",
            "dormouse-keys",
            "dormouse-clock",
            "dormouse-encode",
            "dormouse-profile",
            "dormouse-protocol",
            "dormouse-statistics",
            "dormouse-unwind",
        ],
    ),
    ("dormouse-locks", &["dormouse-sys", "dormouse-keys", "dormouse-clock", "dormouse-statistics"]),
    ("dormouse-macros", &[]),
    ("dormouse-metrics", &["dormouse-encode"]),
    (
        "dormouse",
        &[
            "dormouse-sys",
            "dormouse-api",
            "dormouse-breakpoints",
            "dormouse-keys",
            "dormouse-clock",
            "dormouse-encode",
            "dormouse-events",
            "dormouse-locks",
            "dormouse-macros",
            "dormouse-maps",
            "dormouse-metrics",
            "dormouse-profile",
            "dormouse-protocol",
            "dormouse-unwind",
            "dormouse-waits",
        ],
    ),
    ("dormouse-capi", &["dormouse", "dormouse-sys"]),
    ("dormouse-teaparty", &["dormouse"]),
    ("dormouse-timeline", &["dormouse", "dormouse-encode", "dormouse-profile", "dormouse-protocol"]),
    ("dormouse-lab", &["dormouse-sys", "dormouse-clock"]),
    (
        "dormouse-bench",
        &[
            "dormouse",
            "dormouse-sys",
            "dormouse-lab",
            "dormouse-breakpoints",
            "dormouse-clock",
            "dormouse-events",
            "dormouse-keys",
            "dormouse-locks",
            "dormouse-maps",
            "dormouse-profile",
            "dormouse-protocol",
            "dormouse-statistics",
            "dormouse-unwind",
            "dormouse-waits",
        ],
    ),
    (
        "dormouse-cli",
        &[
            "dormouse",
            "dormouse-sys",
            "dormouse-breakpoints",
            "dormouse-encode",
            "dormouse-maps",
            "dormouse-metrics",
            "dormouse-profile",
            "dormouse-protocol",
            "dormouse-statistics",
            "dormouse-teaparty",
            "dormouse-timeline",
            "dormouse-unwind",
        ],
    ),
];

/// A lock that a fork does not wait for is held for ever in a child that comes at the wrong moment.
#[test]
fn every_lock_has_a_phase_of_forks() {
    let crates = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut looked_at = 0;
    for library in ["sys", "keys", "clock", "events", "unwind", "profile", "dormouse", "capi", "lab"] {
        for path in sources(&crates.join(library).join("src")) {
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text.split("mod tests {").next().unwrap_or_default();
            let text = text.split("mod fake {").next().unwrap_or_default();
            let statics =
                text.split("static ").skip(1).filter(|it| it.starts_with(|c: char| c.is_ascii_uppercase()));
            for declared in statics {
                let declared = declared.split(';').next().unwrap_or_default();
                let (name, rest) = declared.split_once(':').unwrap_or((declared, ""));
                let has =
                    |word: &str| rest.contains(&format!("{word}<")) || rest.contains(&format!("{word} "));
                let waits = ["RwLock", "OnceLock", "LazyLock", "Once"].into_iter().any(has);
                let is_apart = has("Mutex") && !rest.contains("Phase::");
                assert!(
                    !waits && !is_apart,
                    "{name} in {}: use dormouse_sys::process::fork::Mutex",
                    path.display()
                );
                looked_at += usize::from(has("Mutex"));
            }
        }
    }
    assert!(looked_at > 5, "{looked_at} mutexes");
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let (directories, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let rust = files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    // Models and tests in files of their own.
    let is_test = |path: &PathBuf| {
        ["tests.rs", "interleavings.rs", "balance.rs"].iter().any(|name| path.ends_with(name))
    };
    rust.filter(|path| !is_test(path)).chain(directories.iter().flat_map(|path| sources(path))).collect()
}

/// The crates of the workspace, as their manifests describe them.
fn packages() -> Vec<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let serde_json::Value::Array(packages) = metadata["packages"].take() else { panic!("no packages") };
    packages
}

fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let packages = packages();
    let name = |value: &serde_json::Value| value["name"].as_str().unwrap().to_owned();
    let is_for_tests = |d: &&serde_json::Value| d["name"] == TESTKIT && d["kind"] == "dev";
    let ours: BTreeSet<String> = packages.iter().map(name).collect();
    packages
        .iter()
        .map(|package| {
            let all = package["dependencies"].as_array().unwrap().iter();
            let (all, package) = (all.filter(|d| !is_for_tests(d)).map(name), name(package));
            // A crate depends on itself where its tests turn a feature of it on.
            let others = all.filter(|d| ours.contains(d) && *d != package).collect();
            (package, others)
        })
        .collect()
}

/// A stranger finds each package by words, and has its licences in it.
#[test]
fn published_crates_describe_themselves() {
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        if [TESTKIT, XTASK, "dormouse-bench", "dormouse-lab", "dormouse-others"].contains(&name) {
            assert_eq!(package["publish"], serde_json::json!([]), "{name} is for the project alone");
            continue;
        }
        assert!(package["publish"].is_null(), "{name} cannot be published, but others need it");
        for said in ["description", "license", "readme", "rust_version"] {
            assert!(package[said].as_str().is_some_and(|it| !it.is_empty()), "{name} has no {said}");
        }
        for listed in ["keywords", "categories"] {
            let count = package[listed].as_array().unwrap().len();
            assert!((1..=5).contains(&count), "{name} has {count} {listed}");
        }
        let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            assert!(folder.join(licence).is_file(), "{name}: ln -s ../../{licence} {}", folder.display());
        }
    }
}

#[test]
fn crates_depend_as_planned() {
    let plan: BTreeMap<&str, &[&str]> = PLAN.into_iter().collect();
    let found = dependencies();
    assert_eq!(
        found.keys().map(String::as_str).collect::<Vec<_>>(),
        plan.keys().copied().collect::<Vec<_>>()
    );
    for (package, dependencies) in found {
        for dependency in dependencies {
            assert!(plan[&*package].contains(&&*dependency), "{package} must not depend on {dependency}");
        }
    }
}

/// A host may change its environment on any thread, and `getenv` beside that is a race; so the
/// libraries read it once, in one place.
#[test]
fn the_environment_is_read_in_one_place() {
    let crates = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    for library in
        ["sys", "keys", "clock", "events", "maps", "breakpoints", "unwind", "profile", "dormouse", "capi"]
    {
        for path in sources(&crates.join(library).join("src")) {
            let text = std::fs::read_to_string(&path).unwrap();
            let production = text.split("mod tests {").next().unwrap_or_default();
            let code = production.lines().filter(|line| !line.trim_start().starts_with("//"));
            let reads = code.filter(|line| line.contains("env::var") || line.contains("getenv(")).count();
            let is_the_place = path.ends_with("sys/src/environment.rs");
            assert_eq!(reads, usize::from(is_the_place), "{}", path.display());
        }
    }
}
