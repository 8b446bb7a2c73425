//! The sources of the workspace: its crates, the files of each, and what of a file is production
//! code.

use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::Attribute;

/// A crate of the workspace: the name of its directory, and its root file.
pub(crate) struct Crate {
    pub name: String,
    pub root: PathBuf,
}

pub(crate) fn workspace() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).canonicalize().unwrap()
}

/// The crates of the workspace in the order of their names.
pub(crate) fn crates() -> Vec<Crate> {
    let wanted = std::env::var("HOUSE").ok();
    let is_wanted = |name: &str| wanted.as_ref().is_none_or(|list| list.split(',').any(|one| one == name));
    let mut directories = list(&workspace().join("crates"));
    directories.sort();
    let found: Vec<_> = directories
        .into_iter()
        .filter_map(|directory| {
            let name = directory.file_name()?.to_str()?.to_owned();
            let root = ["lib.rs", "main.rs"].map(|file| directory.join("src").join(file));
            let root = root.into_iter().find(|root| root.exists())?;
            is_wanted(&name).then_some(Crate { name, root })
        })
        .collect();
    assert!(!found.is_empty(), "no crate is looked at");
    found
}

fn list(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Every file below `directory` whose name ends in `extension`, without what a build left there.
pub(crate) fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let (directories, files): (Vec<_>, Vec<_>) = list(directory).into_iter().partition(|path| path.is_dir());
    // A module may have that name; a build leaves its own beside a manifest.
    let is_built = |path: &PathBuf| path.ends_with("target") && path.with_file_name("Cargo.toml").exists();
    let is_source = |path: &PathBuf| !is_built(path) && !path.ends_with(".git");
    let below =
        directories.iter().filter(|path| is_source(path)).flat_map(|path| self::files(path, extension));
    let mut all: Vec<_> = files
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .chain(below)
        .collect();
    all.sort();
    all
}

/// Every Rust file of the workspace that `HOUSE` asks for.
pub(crate) fn rust_files() -> Vec<PathBuf> {
    let mut all: Vec<_> =
        crates().iter().flat_map(|one| files(one.root.parent().unwrap().parent().unwrap(), "rs")).collect();
    if std::env::var_os("HOUSE").is_none() {
        all.extend(
            ["tests", "fuzz", "xtask"].iter().flat_map(|directory| files(&workspace().join(directory), "rs")),
        );
    }
    all
}

/// A path as people read it.
pub(crate) fn short(path: &Path) -> String {
    path.strip_prefix(workspace()).unwrap_or(path).display().to_string()
}

/// Whether an item is compiled for tests or models alone.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        asks_for_tests(list.tokens.clone())
    })
}

/// Whether a condition names `test` or `loom` outside of a `not`.
pub(crate) fn asks_for_tests(condition: TokenStream) -> bool {
    let mut tokens = condition.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(name) if name == "not" => drop(tokens.next()),
            TokenTree::Ident(name) if name == "test" || name == "loom" => return true,
            TokenTree::Group(group)
                if group.delimiter() == Delimiter::Parenthesis && asks_for_tests(group.stream()) =>
            {
                return true;
            }
            _ => {}
        }
    }
    false
}
