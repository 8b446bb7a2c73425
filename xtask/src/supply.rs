//! The packages of others: their licences, sources and versions, the advisories about them, and the
//! list of components that comes with the archive.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use crate::process::{Result, cargo, output, program, run, tool, write};
use crate::suite::Suite;

/// The packages that others embed or install.
pub(crate) const SHIPPED: [&str; 3] = ["dormouse", "dormouse-capi", "dormouse-cli"];

/// Licences that allow what ours allow, with at most a notice.
const LICENCES: [&str; 12] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    // Mozilla's list of roots, in the command.
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// Packages that are linked in two versions, because two of their users do not agree yet: of
/// features that few services have together, of other systems, or of the command alone.
const TWICE: [&str; 10] = [
    "base64",
    "foldhash",
    "getrandom",
    "gimli",
    "hashbrown",
    "http",
    "r-efi",
    "rand_core",
    "syn",
    "windows-sys",
];
const DENY: &str = "0.20.2";

/// All packages, as `cargo metadata` lists them.
pub(crate) struct Packages {
    all: BTreeMap<String, Value>,
    links: BTreeMap<String, Vec<Value>>,
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

impl Packages {
    /// On Linux with this processor.
    pub(crate) fn of(processor: &str) -> Result<Self> {
        Self::read(&format!("--filter-platform {processor}-unknown-linux-gnu"))
    }

    /// With the features that are chosen by `arguments`.
    fn read(arguments: &str) -> Result<Self> {
        let metadata = output(&mut cargo(&format!("metadata --format-version 1 --locked {arguments}")))?;
        let metadata: Value =
            serde_json::from_str(&metadata).map_err(|why| format!("cargo metadata: {why}"))?;
        let by_id = |package: &Value| (text(&package["id"]).to_owned(), package.clone());
        let links = |node: &Value| (text(&node["id"]).to_owned(), list(&node["deps"]).to_vec());
        Ok(Self {
            all: list(&metadata["packages"]).iter().map(by_id).collect(),
            links: list(&metadata["resolve"]["nodes"]).iter().map(links).collect(),
        })
    }

    /// These packages of ours, and the packages that are linked into them.
    pub(crate) fn linked(&self, roots: &[&str]) -> Vec<&Value> {
        let is_root = |package: &Value| roots.contains(&text(&package["name"]));
        let mut left: Vec<_> =
            self.all.iter().filter(|(_, package)| is_root(package)).map(|(id, _)| id.as_str()).collect();
        let mut linked = BTreeSet::new();
        while let Some(id) = left.pop() {
            if linked.insert(id) {
                let is_linked =
                    |link: &&Value| list(&link["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
                left.extend(self.links[id].iter().filter(is_linked).map(|link| text(&link["pkg"])));
            }
        }
        linked.into_iter().map(|id| &self.all[id]).collect()
    }
}

/// A package with its version.
pub(crate) fn named(package: &Value) -> String {
    format!("{}-{}", text(&package["name"]), text(&package["version"]))
}

/// Each package of the lock file comes from the registry under a licence of the list, and what
/// others link is there once.
pub(crate) fn check() -> Result {
    let packages = Packages::read("--all-features")?;
    let mut faults = Vec::new();
    for package in packages.all.values().filter(|package| !package["source"].is_null()) {
        if text(&package["source"]) != REGISTRY {
            faults.push(format!("{} comes from {}", named(package), package["source"]));
        }
        if !is_allowed(text(&package["license"])) {
            faults.push(format!("{} has the licence {}", named(package), package["license"]));
        }
    }
    let linked = packages.linked(&SHIPPED);
    let mut versions = BTreeMap::<&str, Vec<&str>>::new();
    for package in &linked {
        versions.entry(text(&package["name"])).or_default().push(text(&package["version"]));
    }
    let is_twice = |(name, of): &(&&str, &Vec<&str>)| of.len() > 1 && !TWICE.contains(*name);
    let twice = versions.iter().filter(is_twice);
    faults.extend(twice.map(|(name, of)| format!("{name} is linked as {}", of.join(" and "))));
    if !faults.is_empty() {
        return Err(format!("the lists in xtask/src/supply.rs do not have:\n{}", faults.join("\n")));
    }
    println!("{} packages, {} of them linked into what others get", packages.all.len(), linked.len());
    Ok(())
}

/// Whether one of the choices that an expression offers is on the list. Of `A OR B AND C` it
/// demands `C`, too, as no package has written it.
fn is_allowed(expression: &str) -> bool {
    let is_known = |licence: &str| LICENCES.contains(&licence.trim_matches(['(', ')', ' ']));
    expression.split(" AND ").all(|part| part.replace('/', " OR ").split(" OR ").any(is_known))
}

/// Asks the database of advisories about the packages of the lock file. Without a network there is
/// no such database.
pub(crate) fn advisories(suite: &mut Suite) -> Result {
    let deny = |deny: &Path, line: &str| run(program(&deny.display().to_string()).args(line.split(' ')));
    match tool("cargo-deny", DENY).and_then(|file| deny(&file, "fetch db").map(|()| file)) {
        Ok(file) => deny(&file, "--all-features --offline check advisories"),
        Err(why) => {
            suite.skip(&format!("advisories: {why}"));
            Ok(())
        }
    }
}

/// Writes the list of what is linked into the packages that others get, in the form of SPDX 2.3.
pub(crate) fn components(file: &Path, version: &str, processor: &str) -> Result {
    let packages = Packages::of(processor)?;
    let commit = output(&mut program("git rev-parse HEAD"))?;
    let mut time = program("git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ");
    let time = output(time.env("TZ", "UTC"))?;
    let linked = packages.linked(&SHIPPED[1..]);
    let id = |package: &Value| format!("SPDXRef-{}", named(package).replace(['_', '+'], "-"));
    let described = |package: &&Value| {
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        json!({
            "SPDXID": id(package),
            "name": name,
            "versionInfo": version,
            "downloadLocation": package["repository"].as_str().unwrap_or("NOASSERTION"),
            "filesAnalyzed": false,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": text(&package["license"]).replace('/', " OR "),
            "externalRefs": [{
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": format!("pkg:cargo/{name}@{version}"),
            }],
        })
    };
    let links = linked.iter().flat_map(|package| {
        let of = list_of_links(&packages, package);
        of.into_iter().filter(|other| linked.iter().any(|it| text(&it["id"]) == text(&other["id"]))).map(
            |other| {
                json!({ "spdxElementId": id(package), "relationshipType": "DEPENDS_ON", "relatedSpdxElement": id(other) })
            },
        )
    });
    let is_shipped = |package: &&&Value| SHIPPED[1..].contains(&text(&package["name"]));
    let document = json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("dormouse-{version}"),
        "documentNamespace": format!("https://spdx.org/spdxdocs/dormouse-{version}-{commit}"),
        "creationInfo": { "created": time, "creators": ["Tool: cargo xtask package"] },
        "documentDescribes": linked.iter().filter(is_shipped).map(|it| id(it)).collect::<Vec<_>>(),
        "packages": linked.iter().map(described).collect::<Vec<_>>(),
        "relationships": links.collect::<Vec<_>>(),
    });
    let document = serde_json::to_string_pretty(&document).map_err(|why| why.to_string())?;
    write(file, document + "\n")
}

fn list_of_links<'a>(packages: &'a Packages, package: &Value) -> Vec<&'a Value> {
    let is_linked = |link: &&Value| list(&link["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
    packages.links[text(&package["id"])]
        .iter()
        .filter(is_linked)
        .map(|link| &packages.all[text(&link["pkg"])])
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{components, is_allowed, list, text};
    use crate::process::read;

    #[test]
    fn components_refer_to_listed_packages() {
        let file = std::env::temp_dir().join(format!("components-{}.json", std::process::id()));
        components(&file, "0.0.0", "x86_64").unwrap();
        let document: serde_json::Value = serde_json::from_str(&read(&file).unwrap()).unwrap();
        std::fs::remove_file(file).unwrap();
        let packages = list(&document["packages"]);
        let ids: BTreeSet<&str> = packages.iter().map(|package| text(&package["SPDXID"])).collect();
        assert_eq!(ids.len(), packages.len(), "an id stands for one package");
        assert!(ids.iter().any(|id| id.starts_with("SPDXRef-dormouse-cli-")), "{ids:?}");
        let relationships = list(&document["relationships"]);
        assert!(relationships.len() > packages.len());
        for relationship in relationships {
            for end in ["spdxElementId", "relatedSpdxElement"] {
                assert!(ids.contains(text(&relationship[end])), "{relationship}");
            }
        }
    }

    #[test]
    fn one_choice_of_a_licence_is_enough() {
        for allowed in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
            assert!(is_allowed(allowed), "{allowed}");
        }
        for refused in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Apache-2.0) AND MPL-2.0"] {
            assert!(!is_allowed(refused), "{refused}");
        }
    }
}
