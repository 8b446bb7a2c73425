//! The page of unsafe code: where it is, why it is sound, and what checks it.
//!
//! A site is a block, a function, an implementation or an attribute with the word `unsafe`, outside
//! of tests. The reason is the section `# Safety` at the head of its file. The page's own table has
//! the checks of each file, by the beginning of its path.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use dormouse_testkit::assert_committed;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::source::{asks_for_tests, crates, files, short, workspace};

const PAGE: &str = "docs/unsafe.md";
const BEGIN: &str = "<!-- generated from the sources: DORMOUSE_BLESS=1 -->\n";

/// When a service has the code of a crate. The demo, the bench and the tests embed nothing.
const EMBEDDED: [(&str, &str); 14] = [
    ("api", "always, and libraries without dormouse"),
    ("breakpoints", "always"),
    ("capi", "the C library"),
    ("cli", "the command alone"),
    ("clock", "always"),
    ("dormouse", "always"),
    ("events", "always"),
    ("keys", "always"),
    ("locks", "always; `parking_lot`'s faces with `locks`, tokio's with `tokio`"),
    ("maps", "always; the readers of files with `symbols`"),
    ("profile", "always"),
    ("sys", "always"),
    ("unwind", "always"),
    ("waits", "always"),
];
const OTHERS: [&str; 3] = ["bench", "lab", "testkit"];

/// The sites among these tokens, without items that are compiled for tests alone.
fn sites(tokens: TokenStream) -> usize {
    let mut tokens = tokens.into_iter().peekable();
    let mut found = 0;
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '#' => {
                let Some(TokenTree::Group(attribute)) = tokens.peek() else { continue };
                if is_for_tests(attribute.stream()) {
                    let is_last = |token: &TokenTree| match token {
                        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                        TokenTree::Punct(mark) => mark.as_char() == ';',
                        _ => false,
                    };
                    tokens.find(is_last);
                }
            }
            TokenTree::Ident(word) if word == "unsafe" => {
                let is_site = match tokens.peek() {
                    Some(TokenTree::Group(_)) => true,
                    Some(TokenTree::Ident(next)) if next == "impl" || next == "trait" => true,
                    // Else a pointer to a function: it has no name.
                    Some(TokenTree::Ident(_)) => is_named(tokens.clone()),
                    _ => false,
                };
                found += usize::from(is_site);
            }
            TokenTree::Group(group) => found += sites(group.stream()),
            _ => {}
        }
    }
    found
}

/// Whether an attribute has its item compiled for tests or models alone.
fn is_for_tests(attribute: TokenStream) -> bool {
    let mut tokens = attribute.into_iter();
    matches!(tokens.next(), Some(TokenTree::Ident(name)) if name == "cfg")
        && matches!(tokens.next(), Some(TokenTree::Group(condition)) if asks_for_tests(condition.stream()))
}

/// Whether these tokens are the rest of a function with a name, or of a foreign block.
fn is_named(tokens: impl Iterator<Item = TokenTree>) -> bool {
    let mut tokens = tokens.skip_while(|token| match token {
        TokenTree::Ident(word) => word == "extern" || word == "const",
        TokenTree::Literal(_) => true,
        _ => false,
    });
    match tokens.next() {
        Some(TokenTree::Group(_)) => true,
        Some(TokenTree::Ident(_)) => !matches!(tokens.next(), Some(TokenTree::Group(_))),
        _ => false,
    }
}

/// The files of a crate with their sites and reasons.
fn unsafe_files(root: &Path) -> Vec<(String, usize, String)> {
    let all = files(root.parent().unwrap(), "rs");
    let is_test = |path: &Path| {
        let mut parts = path.iter().map(|part| part.to_string_lossy());
        parts.any(|part| part == "tests" || part.ends_with("tests.rs"))
    };
    let with_sites = all.into_iter().filter(|path| !is_test(path)).filter_map(|path| {
        let text = std::fs::read_to_string(&path).unwrap();
        let sites = if text.contains("unsafe") { sites(text.parse().unwrap()) } else { 0 };
        let reason = || {
            let section = text.split_once("//! # Safety\n//!\n").map_or("", |(_, rest)| rest);
            let lines = section.lines().map_while(|line| line.strip_prefix("//! "));
            without_links(&lines.collect::<Vec<_>>().join(" ").replace('|', "\\|"))
        };
        (sites > 0).then(|| (short(&path).replacen("crates/", "", 1), sites, reason()))
    });
    with_sites.collect()
}

/// Links to items lead nowhere from the page: their text stays.
fn without_links(text: &str) -> String {
    let mut parts = text.split('[');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(']').unwrap_or((part, ""));
        let rest =
            rest.strip_prefix('(').map_or(rest, |link| link.split_once(')').map_or("", |(_, rest)| rest));
        plain.extend([name, rest]);
    }
    plain
}

/// The generated part of the page.
fn table() -> (String, BTreeSet<String>) {
    let (mut text, mut paths, mut sums, mut unexplained) = (String::new(), BTreeSet::new(), vec![], vec![]);
    for one in crates().into_iter().filter(|one| !OTHERS.contains(&one.name.as_str())) {
        let found = unsafe_files(&one.root);
        if found.is_empty() {
            continue;
        }
        let when = EMBEDDED.iter().find(|(name, _)| *name == one.name);
        let when = when.unwrap_or_else(|| panic!("{} has unsafe code: name it in EMBEDDED", one.name)).1;
        sums.push((one.name.clone(), when, found.iter().map(|(_, sites, _)| sites).sum::<usize>()));
        writeln!(text, "\n### {}\n\n| file | sites | why it is sound |\n|---|---|---|", one.name).unwrap();
        for (path, sites, reason) in found {
            if reason.is_empty() {
                unexplained.push(path.clone());
            }
            writeln!(text, "| `{path}` | {sites} | {reason} |").unwrap();
            paths.insert(path);
        }
    }
    assert!(unexplained.is_empty(), "no section `# Safety` at the head of {unexplained:?}");
    let mut head = "\n| crate | sites | a service has it |\n|---|---|---|\n".to_owned();
    for (name, when, sites) in &sums {
        writeln!(head, "| {name} | {sites} | {when} |").unwrap();
    }
    writeln!(head, "| all | {} | |", sums.iter().map(|(.., sites)| sites).sum::<usize>()).unwrap();
    (head + &text, paths)
}

#[test]
fn the_page_of_unsafe_code_is_current() {
    if std::env::var_os("HOUSE").is_some() {
        return;
    }
    let page = std::fs::read_to_string(workspace().join(PAGE)).unwrap();
    let written = page.split_once(BEGIN).unwrap_or_else(|| panic!("{PAGE} has no line {BEGIN}")).0;
    let (table, paths) = table();
    assert_committed(PAGE, &format!("{written}{BEGIN}{table}"));

    // Each row of the page's own table begins with the beginnings of paths.
    let rows = written.lines().filter(|line| line.starts_with("| `"));
    let mut checked: BTreeMap<&str, bool> = rows
        .flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2))
        .map(|beginning| (beginning, false))
        .collect();
    for path in paths {
        let of_it = checked.iter_mut().filter(|(beginning, _)| path.starts_with(**beginning));
        let longest = of_it.max_by_key(|(beginning, _)| beginning.len());
        *longest.unwrap_or_else(|| panic!("{PAGE} does not say what checks {path}")).1 = true;
    }
    let unused: Vec<_> = checked.iter().filter(|(_, is_used)| !**is_used).collect();
    assert!(unused.is_empty(), "{PAGE} names no file with unsafe code by {unused:?}");
}

/// The tests that a page names in its code, as `test module::name`.
fn named_tests(page: &str) -> BTreeSet<String> {
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_' || b.is_ascii_digit())
    };
    let page = page.replace('\n', " ");
    let codes = page.split('`').skip(1).step_by(2);
    codes
        .filter_map(|code| code.strip_prefix("test "))
        .inspect(|name| assert!(name.split("::").all(is_word), "`test {name}` is no name of a test"))
        .map(str::to_owned)
        .collect()
}

/// Pages whose claims name the tests that show them.
#[test]
fn tests_that_pages_name_exist() {
    let mut functions = BTreeMap::<String, Vec<String>>::new();
    for directory in ["crates", "tests"] {
        for path in files(&workspace().join(directory), "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            // The `main` of a test without a harness.
            let is_in = |folder| path.parent().is_some_and(|parent| parent.ends_with(folder));
            let is_program = is_in("tests/programs") || is_in("tests") && text.contains("\nfn main() {");
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                    is_test = true;
                } else if let Some((_, rest)) = line.split_once("fn ") {
                    let name = rest.split(['(', '<']).next().unwrap_or_default();
                    if is_test || is_program && name == "main" {
                        functions.entry(name.to_owned()).or_default().push(short(&path));
                    }
                    is_test = false;
                }
            }
        }
    }
    for (page, least) in [(PAGE, 5), ("docs/embedding.md", 20), ("SECURITY.md", 10)] {
        let named = named_tests(&std::fs::read_to_string(workspace().join(page)).unwrap());
        assert!(named.len() >= least, "{page} names {} tests", named.len());
        let is_there = |name: &&String| {
            let (place, function) = name.rsplit_once("::").unwrap_or(("", name));
            let parts: Vec<_> = place.split("::").filter(|part| !part.is_empty()).collect();
            let is_in = |path: &String| parts.iter().all(|part| path.split(['/', '.']).any(|it| it == *part));
            !functions.get(function).is_some_and(|paths| paths.iter().any(is_in))
        };
        let missing: Vec<_> = named.iter().filter(is_there).collect();
        assert!(missing.is_empty(), "{page} names tests that do not exist: {missing:?}");
    }
}
