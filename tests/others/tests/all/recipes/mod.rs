//! The code of the guide's page of recipes. It runs, and the page shows what is here.

mod pools;
mod runtimes;
mod sockets;

use std::path::Path;

use dormouse::Group;

/// The name of the current group.
fn here() -> String {
    Group::current().map_or("none", Group::name).to_owned()
}

/// Code without its indentation.
fn lines(code: &str) -> String {
    code.lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

/// All sources of this package.
fn sources(folder: &Path, into: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(lines(&std::fs::read_to_string(path).expect("a source")));
        }
    }
}

#[test]
fn the_guide_shows_code_that_runs() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    sources(&package.join("src"), &mut all);
    sources(&package.join("tests"), &mut all);
    let page = std::fs::read_to_string(package.join("../../docs/guide/recipes.md")).expect("the guide");
    let parts = page.split("\n```").skip(1).step_by(2);
    let blocks: Vec<_> = parts.filter_map(|block| block.strip_prefix("rust\n")).collect();
    assert!(blocks.len() >= 10, "{}", blocks.len());
    for block in blocks {
        // Paragraphs, because a file has its imports at its head.
        let is_in = |source: &String| block.split("\n\n").all(|part| source.contains(&lines(part.trim())));
        assert!(all.iter().any(is_in), "no source has this:\n{block}");
    }
}
