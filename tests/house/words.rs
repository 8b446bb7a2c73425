//! Words: an idea has the field's word for it, and no private one.

use crate::source::{rust_files, short};
use crate::text::{comments, none, pages, prose, sentences, text, words};

/// Private words that types had, and the words that took their places.
const TYPES: [(&str, &str); 14] = [
    ("Complaint", "Error, Warning"),
    ("Eyes", "Readers"),
    ("Gallery", "LiveStreams"),
    ("Look", "Reading, Scan, Sample, Snapshot, Check"),
    ("Looker", "Scanner"),
    ("Looks", "Readings"),
    ("Scene", "Readings"),
    ("Seat", "Session, Registration"),
    ("Sight", "Condition"),
    ("Sighting", "Finding"),
    ("Standing", "SessionPhase"),
    ("Telling", "Scope"),
    ("Told", "Subscription"),
    ("Wish", "Request"),
];

/// Private words in sentences.
const NOUNS: [&str; 7] = ["complaint", "complaints", "seat", "seats", "sighting", "wish", "wishes"];

/// The words after which `look` is a noun: a reading, a scan, a sample, a snapshot or a check.
const BEFORE_LOOK: [&str; 12] =
    ["a", "another", "between", "each", "every", "first", "last", "next", "no", "the", "these", "two"];

/// The words of a name in camel case.
fn parts(name: &str) -> impl Iterator<Item = &str> {
    let mut starts: Vec<usize> = name.match_indices(char::is_uppercase).map(|(at, _)| at).collect();
    starts.push(name.len());
    (1..starts.len()).map(move |at| &name[starts[at - 1]..starts[at]])
}

/// The types that a line of code defines.
fn defined(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    let mut tokens = code.split_whitespace();
    std::iter::from_fn(move || {
        let _kind = tokens.find(|token| ["struct", "enum", "trait", "type", "union"].contains(token))?;
        Some(tokens.next()?.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default())
    })
}

/// The private word in a sentence, if there is one.
fn private_word(sentence: &str) -> Option<&str> {
    let words: Vec<_> = words(sentence).into_iter().map(|(word, _)| word).collect();
    let noun = words.iter().find(|word| NOUNS.contains(&&*word.to_lowercase())).copied();
    let look = words
        .windows(2)
        .find(|pair| ["look", "looks"].contains(&pair[1]) && BEFORE_LOOK.contains(&&*pair[0].to_lowercase()));
    noun.or_else(|| look.map(|pair| pair[1]))
}

#[test]
fn types_have_words_of_the_field() {
    let mut found = Vec::new();
    for path in rust_files() {
        for (number, line) in text(&path).lines().enumerate() {
            for name in defined(line) {
                if let Some((_, better)) =
                    TYPES.iter().find(|(word, _)| parts(name).any(|part| part == *word))
                {
                    found.push(format!("{}:{}: {name}: write {better}", short(&path), number + 1));
                }
            }
        }
    }
    none("types have private words", &found);
}

#[test]
fn sentences_have_words_of_the_field() {
    let mut found = Vec::new();
    let mut add = |path: &std::path::Path, sentences: Vec<(usize, String)>| {
        let wrong = sentences.iter().filter_map(|(number, it)| Some((number, it, private_word(it)?)));
        found.extend(wrong.map(|(number, it, word)| format!("{}:{number}: \"{word}\": {it}", short(path))));
    };
    // Statistics call an interim analysis of a trial so.
    let is_of_trials = |path: &std::path::Path| path.display().to_string().contains("experiment");
    for path in rust_files().into_iter().filter(|path| !is_of_trials(path)) {
        add(&path, sentences(comments(&text(&path))));
    }
    for path in pages().into_iter().filter(|path| !is_of_trials(path)) {
        add(&path, sentences(prose(&text(&path))));
    }
    none("sentences have private words", &found);
}

#[test]
fn private_words_are_found() {
    assert_eq!(parts("LongPollSight").collect::<Vec<_>>(), ["Long", "Poll", "Sight"]);
    assert_eq!(defined("pub(crate) struct Row<'a> {").collect::<Vec<_>>(), ["Row"]);
    assert_eq!(defined("let of = 1; // struct Row").count(), 0);
    for wrong in ["The time between two looks.", "A seat is free.", "At the last look, it was on."] {
        assert!(private_word(wrong).is_some(), "{wrong}");
    }
    for right in ["The thread looks for it.", "A look-up in a table.", "Threads that look at it."] {
        assert_eq!(private_word(right), None, "{right}");
    }
}
