//! The house's plan: crates depend on one another one way only.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// What each crate may depend on, of ours. A crate that is not here has no place in the plan yet.
const PLAN: [(&str, &[&str]); 12] = [
    ("dormouse-sys", &[]),
    ("dormouse-keys", &["dormouse-sys"]),
    ("dormouse-clock", &["dormouse-sys"]),
    ("dormouse-events", &["dormouse-sys", "dormouse-keys", "dormouse-clock"]),
    ("dormouse-breakpoints", &["dormouse-sys"]),
    ("dormouse-maps", &[]),
    ("dormouse-macros", &[]),
    ("dormouse", &["dormouse-sys", "dormouse-keys", "dormouse-clock", "dormouse-events", "dormouse-macros"]),
    ("dormouse-capi", &["dormouse"]),
    ("dormouse-teaparty", &["dormouse"]),
    (
        "dormouse-bench",
        &[
            "dormouse",
            "dormouse-sys",
            "dormouse-breakpoints",
            "dormouse-clock",
            "dormouse-events",
            "dormouse-keys",
            "dormouse-maps",
        ],
    ),
    ("dormouse-cli", &["dormouse", "dormouse-sys", "dormouse-maps", "dormouse-teaparty", "dormouse-bench"]),
];

fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let name = |value: &serde_json::Value| value["name"].as_str().unwrap().to_owned();
    let ours: BTreeSet<String> = packages.iter().map(name).collect();
    packages
        .iter()
        .map(|package| {
            let all = package["dependencies"].as_array().unwrap().iter().map(name);
            (name(package), all.filter(|d| ours.contains(d)).collect())
        })
        .collect()
}

#[test]
fn crates_depend_on_one_another_as_planned_and_no_other_way() {
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
