//! The form of files: how long they are, how wide their text is, which sentences need a second
//! reading, what tests are called.

use std::path::Path;

use syn::Item;

use crate::source::{files, rust_files, short, workspace};

const LINES: usize = 500;
const COLUMNS: usize = 100;
const WORDS: usize = 8;

pub(crate) fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn none(what: &str, found: &[String]) {
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
pub(crate) fn comments(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter_map(|(number, line)| {
        let line = line.trim_start();
        line.starts_with("//").then(|| (number + 1, line.trim_start_matches(['/', '!']).trim()))
    })
}

/// The lines of prose of a page: no code, table, link or heading.
pub(crate) fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    page.lines().enumerate().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        let apart =
            in_code || fence || line.trim_start().starts_with(['|', '[', '<']) || line.starts_with("    ");
        (!apart).then_some((number + 1, line))
    })
}

pub(crate) fn pages() -> Vec<std::path::PathBuf> {
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
pub(crate) fn sentences<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<(usize, String)> {
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

/// Whether a doc comment begins with a fragment that needs the item before it: "As of [`read`]."
fn is_fragment(start: &str) -> bool {
    const STARTS: [&str; 16] = [
        "As [`",
        "As `",
        "As a ",
        "As an ",
        "As by ",
        "As for ",
        "As if ",
        "As in ",
        "As of ",
        "As on ",
        "As the ",
        "Of ",
        "That of ",
        "Those of ",
        "The same.",
        "The same,",
    ];
    let is_clause = start.strip_prefix("That ").is_some_and(|rest| {
        let subjects = ["a ", "an ", "as ", "each ", "it ", "no ", "the ", "there ", "this "];
        subjects.iter().any(|subject| rest.starts_with(subject))
    });
    let is_same = start.strip_prefix("The same ").is_some_and(|rest| {
        ["for ", "from ", "in ", "of ", "to ", "where ", "with "].iter().any(|word| rest.starts_with(word))
    });
    is_clause || is_same || STARTS.iter().any(|begin| start.starts_with(begin))
}

/// The words of a sentence, without the signs around them, and whether a sign follows.
pub(crate) fn words(sentence: &str) -> Vec<(&str, bool)> {
    sentence
        .split_whitespace()
        .map(|word| (word.trim_matches([',', '.', '(', ')']), word.ends_with(',')))
        .collect()
}

/// Whether a sentence has a *who* in place of a noun: "Sent to `who` asks".
fn has_headless_who(sentence: &str) -> bool {
    const BEFORE: [&str; 34] = [
        "about", "after", "all", "and", "are", "as", "ask", "asks", "at", "before", "beside", "but", "by",
        "for", "from", "if", "in", "into", "is", "of", "on", "only", "or", "over", "say", "says", "tell",
        "tells", "than", "to", "told", "with", "without", "names",
    ];
    let words = words(sentence);
    words.windows(2).any(|pair| {
        let ((before, is_cut), (who, _)) = (pair[0], pair[1]);
        ["who", "whoever"].contains(&who) && !is_cut && BEFORE.contains(&before)
    })
}

/// Whether a sentence has a quantity without a number or a name: "waits for so `many` seconds".
fn is_vague(sentence: &str) -> bool {
    let words: Vec<_> = words(sentence).into_iter().map(|(word, _)| word).collect();
    let vague = words.windows(2).position(|pair| {
        pair[0].eq_ignore_ascii_case("so") && ["many", "much", "long", "often"].contains(&pair[1])
    });
    vague.is_some_and(|at| !words[at..].contains(&"that"))
}

/// Doc comments by their first lines: those whose line before is no doc comment.
fn doc_starts(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let doc = |line: &'_ str| ["///", "//!"].iter().any(|start| line.trim_start().starts_with(start));
    let mut was_doc = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let is_start = doc(line) && !was_doc;
        was_doc = doc(line);
        is_start.then(|| (number + 1, line.trim_start().trim_start_matches(['/', '!']).trim()))
    })
}

#[test]
fn comments_read_at_once() {
    let mut found = Vec::new();
    for path in rust_files() {
        let text = text(&path);
        let mut tell = |number: usize, what: &str, sentence: &str| {
            found.push(format!("{}:{number}: {what}: {sentence}", short(&path)));
        };
        doc_starts(&text)
            .filter(|(_, start)| is_fragment(start))
            .for_each(|(number, start)| tell(number, "a fragment", start));
        for (number, sentence) in sentences(comments(&text)) {
            if has_headless_who(&sentence) {
                tell(number, "who without a noun", &sentence);
            }
            if is_vague(&sentence) {
                tell(number, "so many, without a number", &sentence);
            }
        }
    }
    none("sentences need a second reading", &found);
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

#[test]
fn sentences_for_a_second_reading_are_found() {
    for fragment in ["As of [`read`].", "Of the group.", "That the key is on.", "The same, of a thread."] {
        assert!(is_fragment(fragment), "{fragment}");
    }
    for whole in ["Of-course", "Office hours.", "That is all.", "The same as [`read`].", "Assembles."] {
        assert!(!is_fragment(whole), "{whole}");
    }
    for headless in ["It is told to who asks.", "Sent by whoever asked."] {
        assert!(has_headless_who(headless), "{headless}");
    }
    for whole in ["The user, who waits, sees it.", "A thread for whom it waits.", "Who is it?"] {
        assert!(!has_headless_who(whole), "{whole}");
    }
    for vague in ["Waits for so long.", "One of so many threads,"] {
        assert!(is_vague(vague), "{vague}");
    }
    for clear in ["There are so many that it waits.", "It does so for many."] {
        assert!(!is_vague(clear), "{clear}");
    }
    let text = "//! Head.\n//! As of.\nfn a() {}\n/// As of.\n/// b\n";
    assert_eq!(doc_starts(text).collect::<Vec<_>>(), [(1, "Head."), (4, "As of.")]);
}
