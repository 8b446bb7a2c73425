//! The form of files: how long they are, how wide their text is, how their sentences begin, what
//! tests are called.

use std::path::Path;

use syn::Item;

use crate::source::{files, rust_files, short, workspace};

const LINES: usize = 500;
const COLUMNS: usize = 100;
const WORDS: usize = 8;

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{} {what}:\n{}", found.len(), found.join("\n"));
}

#[test]
fn no_file_is_too_long() {
    let long = rust_files().into_iter().filter_map(|path| {
        let lines = text(&path).lines().count();
        (lines > LINES).then(|| format!("{} has {lines} lines", short(&path)))
    });
    none("files are too long", &long.collect::<Vec<_>>());
}

#[test]
fn no_crate_takes_a_file_of_another() {
    let taken = rust_files().into_iter().flat_map(|path| {
        let ups = |line: &str| line.trim_start().starts_with("#[path") && line.contains("../../..");
        text(&path)
            .lines()
            .filter(|line| ups(line))
            .map(|line| format!("{}: {line}", short(&path)))
            .collect::<Vec<_>>()
    });
    none("files are another crate's", &taken.collect::<Vec<_>>());
}

/// The comments of a Rust file: the number of the line, and what stands behind the slashes.
fn comments(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter_map(|(number, line)| {
        let line = line.trim_start();
        line.starts_with("//").then(|| (number + 1, line.trim_start_matches(['/', '!']).trim()))
    })
}

/// The lines of prose of a page: no code, table, link or heading.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    page.lines().enumerate().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        let apart =
            in_code || fence || line.trim_start().starts_with(['|', '[', '<']) || line.starts_with("    ");
        (!apart).then_some((number + 1, line))
    })
}

fn pages() -> Vec<std::path::PathBuf> {
    let of_root = std::fs::read_dir(workspace()).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> =
        of_root.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect();
    all.extend(files(&workspace().join("docs"), "md"));
    all
}

fn is_wide(line: &str) -> bool {
    line.chars().count() > COLUMNS && !line.contains("://")
}

#[test]
fn comments_are_wrapped() {
    let mut wide = Vec::new();
    for path in rust_files() {
        let text = text(&path);
        let lines = text.lines().enumerate();
        let is_comment = |line: &str| line.trim_start().starts_with("//");
        wide.extend(
            lines
                .filter(|(_, line)| {
                    is_comment(line) && is_wide(line) && !line.contains("// |") && !line.contains("//! |")
                })
                .map(|(number, _)| format!("{}:{}", short(&path), number + 1)),
        );
    }
    none("comments are too wide", &wide);
}

#[test]
fn pages_are_wrapped() {
    let mut wide = Vec::new();
    for path in pages() {
        let page = text(&path);
        wide.extend(
            prose(&page)
                .filter(|(_, line)| is_wide(line))
                .map(|(number, _)| format!("{}:{number}", short(&path))),
        );
    }
    none("lines are too wide", &wide);
}

/// Whether a sentence begins with a pronoun in place of a noun: "Who has relied on it is served".
fn is_headless(sentence: &str) -> bool {
    let begins = |word: &&str| {
        sentence.strip_prefix(*word).is_some_and(|rest| rest.starts_with(' ') || rest.starts_with("ever "))
    };
    ["Who", "What", "Whoever", "Whatever"].iter().any(begins) && !sentence.ends_with('?')
}

/// The sentences of lines that belong together, each with the line on which it begins.
fn sentences<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut last = 0;
    let mut open = false;
    for (number, line) in lines {
        if line.is_empty() || number != last + 1 {
            open = false;
        }
        last = number;
        for part in line.split_inclusive([' ']) {
            if open {
                all.last_mut().expect("a sentence is open").1.push_str(part);
            } else {
                all.push((number, part.to_owned()));
                open = true;
            }
            open &= !part.trim_end().ends_with(['.', '?', '!', ':', ';']);
        }
        if open && let Some(sentence) = all.last_mut() {
            sentence.1.push(' ');
        }
    }
    all.into_iter().map(|(number, sentence)| (number, sentence.trim().to_owned())).collect()
}

#[test]
fn sentences_have_a_noun_as_subject() {
    let mut headless = Vec::new();
    let mut look = |path: &Path, sentences: Vec<(usize, String)>| {
        let found = sentences.into_iter().filter(|(_, sentence)| is_headless(sentence));
        headless.extend(found.map(|(number, sentence)| format!("{}:{number}: {sentence}", short(path))));
    };
    // A title says what something is: "What a task uses."
    for path in rust_files() {
        let text = text(&path);
        look(&path, sentences(comments(&text)));
    }
    if std::env::var_os("HOUSE").is_none() {
        for path in pages() {
            look(&path, sentences(prose(&text(&path))));
        }
    }
    none("sentences have no noun as their subject", &headless);
}

fn tests_of(items: &[Item], names: &mut Vec<String>) {
    for item in items {
        match item {
            Item::Fn(it)
                if it.attrs.iter().any(|a| a.path().segments.last().is_some_and(|s| s.ident == "test")) =>
            {
                names.push(it.sig.ident.to_string());
            }
            Item::Mod(it) => tests_of(it.content.as_ref().map_or(&[], |(_, items)| items), names),
            _ => {}
        }
    }
}

#[test]
fn tests_have_short_names() {
    let mut long = Vec::new();
    for path in rust_files() {
        let mut names = Vec::new();
        tests_of(&syn::parse_file(&text(&path)).unwrap().items, &mut names);
        let is_long = |name: &String| name.split('_').filter(|word| !word.is_empty()).count() > WORDS;
        long.extend(names.into_iter().filter(is_long).map(|name| format!("{}: {name}", short(&path))));
    }
    none("tests have long names", &long);
}

#[test]
fn headless_sentences_are_told() {
    for headless in ["Who has relied on it is served.", "Whoever asks waits.", "What is taken back is noted."]
    {
        assert!(is_headless(headless), "{headless}");
    }
    for whole in ["Whole words.", "What is it?", "The thread that asks waits.", "Whosoever"] {
        assert!(!is_headless(whole), "{whole}");
    }
    let lines = [(1, "One sentence that goes"), (2, "on. Who is it. And"), (4, "What else.")];
    let found = sentences(lines.into_iter());
    assert_eq!(found.iter().filter(|(_, sentence)| is_headless(sentence)).count(), 2, "{found:?}");
}
