//! A word has one meaning: the name of a public type stands for one type in the workspace.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Item, Visibility};

use crate::source::{crates, files, is_for_tests, short, workspace};

/// Names that crates have for the same idea. The facade's task of a group is the task of a context,
/// its watch the breakpoints' watch, counted per group; the API of libraries has the facade's
/// words. A lock has the name of the one whose face it has: std's, `parking_lot`'s, tokio's.
const SHARED: [&str; 17] = [
    "Error",
    "Entry",
    "Task",
    "Watch",
    "Entered",
    "Group",
    "Key",
    "Probe",
    "StaticKey",
    "Condvar",
    "Mutex",
    "MutexGuard",
    "RwLock",
    "RwLockReadGuard",
    "RwLockWriteGuard",
    "Semaphore",
    "SemaphorePermit",
];

fn types(items: &[Item], of: &mut Vec<String>) {
    for item in items {
        let (attributes, visibility, name) = match item {
            Item::Enum(it) => (&it.attrs, &it.vis, &it.ident),
            Item::Struct(it) => (&it.attrs, &it.vis, &it.ident),
            Item::Trait(it) => (&it.attrs, &it.vis, &it.ident),
            Item::Type(it) => (&it.attrs, &it.vis, &it.ident),
            Item::Union(it) => (&it.attrs, &it.vis, &it.ident),
            Item::Mod(it) => {
                if let Some((_, items)) = it.content.as_ref().filter(|_| !is_for_tests(&it.attrs)) {
                    types(items, of);
                }
                continue;
            }
            _ => continue,
        };
        if matches!(visibility, Visibility::Public(_)) && !is_for_tests(attributes) {
            of.push(name.to_string());
        }
    }
}

#[test]
fn public_types_have_names_to_themselves() {
    let mut places = BTreeMap::<String, Vec<String>>::new();
    for one in crates() {
        for file in files(one.root.parent().unwrap(), "rs") {
            let mut names = Vec::new();
            types(&syn::parse_file(&std::fs::read_to_string(&file).unwrap()).unwrap().items, &mut names);
            for name in names {
                places.entry(name).or_default().push(short(&file));
            }
        }
    }
    places.retain(|name, places| places.len() > 1 && !SHARED.contains(&&**name));
    assert!(places.is_empty(), "one name, several types: {places:#?}");
}

#[test]
fn the_glossary_has_few_words_once_each() {
    let page = std::fs::read_to_string(workspace().join("docs/glossary.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| **"));
    let cells: Vec<_> = rows.filter_map(|row| row.split(" | ").next()).collect();
    let words: Vec<_> = cells
        .iter()
        .flat_map(|cell| cell.split(", "))
        .map(|word| word.trim_matches('*').to_owned())
        .collect();
    let distinct: BTreeSet<_> = words.iter().collect();
    assert_eq!(words.len(), distinct.len(), "{words:?}");
    assert!((20..=40).contains(&words.len()), "{} words: {words:?}", words.len());
}
