//! A page with a flame graph and a table of functions: one file that makes no network request.
//!
//! The page holds the stacks as one tree of names ([`data`]), and scripts that draw the visible
//! part of it. Names come from the program, which anyone may have built, so they are treated
//! strictly as data:
//!
//! 1. They are in a block of JSON that contains no `<`, so that nothing ends the block early.
//! 2. The scripts show them as text on a canvas or as the text of an element.
//! 3. A policy in the page's head allows the page's own script and style, which carry a number that
//!    depends on all names, and forbids every other script, style, picture and connection.

mod data;

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{Profile, Symbols};

const PAGE: &str = include_str!("flame.html");
const STYLE: &str = concat!(
    ":root {\n",
    include_str!("light.css"),
    "}\n:root[data-theme=\"dark\"] {\n",
    include_str!("dark.css"),
    "}\n",
    include_str!("flame.css"),
);
/// The scripts of the flame graph itself, for pages that contain one among other things: numbers,
/// names and colours, the model of the data, and the drawing on a canvas. Each uses those before
/// it.
pub const FLAME_SCRIPTS: [&str; 3] =
    [include_str!("words.js"), include_str!("model.js"), include_str!("flame.js")];
/// The scripts that this page alone has. Each uses those before it.
const SCRIPTS: [&str; 3] = [include_str!("table.js"), include_str!("page.js"), include_str!("shell.js")];

/// Words of the page that [`html`] makes.
#[derive(Debug, Clone, Default)]
pub struct HtmlOptions {
    /// The heading; if empty, the name of the program.
    pub title: String,
}

/// A page with a flame graph of a profile; with an `old` one, of the changes since.
///
/// Two profiles are compared by use per second; groups, threads and functions are the same if they
/// have the same name.
pub fn html(
    profile: &Profile,
    symbols: &Symbols,
    options: &HtmlOptions,
    old: Option<(&Profile, &Symbols)>,
) -> String {
    let data = as_text(&data::of(profile, symbols, old));
    let program = profile.program.rsplit('/').next().unwrap_or_default();
    let title = [&*options.title, program, "profile"].into_iter().find(|title| !title.is_empty());
    let title = escaped(title.unwrap_or_default());
    let mut hash = DefaultHasher::new();
    (&data, &title).hash(&mut hash);
    let nonce = format!("{:016x}", hash.finish());
    let script = [FLAME_SCRIPTS, SCRIPTS].concat().concat();
    fill(PAGE, |name| match name {
        "title" => &title,
        "nonce" => &nonce,
        "style" => STYLE,
        "script" => &script,
        "data" => &data,
        _ => "",
    })
}

/// Only the data of [`html`]'s page, as JSON that can be put between tags: for a page with scripts
/// of its own.
pub fn html_data(profile: &Profile, symbols: &Symbols) -> String {
    as_text(&data::of(profile, symbols, None))
}

/// JSON that can stand between tags.
fn as_text(data: &data::Data) -> String {
    let text = serde_json::to_string(data).expect("maps with names as keys, numbers and strings only");
    // `<` occurs only in strings, where it can be escaped. So do the two line ends that older
    // scripts do not accept in strings.
    text.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            _ => safe.push(letter),
        }
    }
    safe
}

/// Puts values in the place of `{{names}}`. A value is not looked at again.
fn fill<'a>(page: &str, value: impl Fn(&str) -> &'a str) -> String {
    let mut pieces = page.split("{{");
    let mut filled = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").unwrap_or(("", piece));
        filled.push_str(value(name));
        filled.push_str(rest);
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_filled_again() {
        let page = fill("a{{x}}b{{y}}c", |name| if name == "x" { "{{y}}" } else { "2" });
        assert_eq!(page, "a{{y}}b2c");
    }

    #[test]
    fn every_place_of_the_page_is_filled() {
        let profile = Profile { program: "/usr/bin/tea <b>".to_owned(), ..Profile::default() };
        let page = html(&profile, &Symbols::default(), &HtmlOptions::default(), None);
        assert!(!page.contains("{{"), "a place is left");
        assert!(page.contains("<title>tea &lt;b&gt;</title>"));
        assert!(page.contains("\"groups\""));
    }

    #[test]
    fn scripts_and_style_stay_short() {
        for text in [&FLAME_SCRIPTS[..], &SCRIPTS, &[PAGE, STYLE]].concat() {
            assert!(text.lines().count() <= 500, "{}", text.lines().nth(1).unwrap_or_default());
            assert!(!text.contains("</script><"), "a script that ends early");
        }
        // The page is built from its own parts: nothing is fetched.
        for text in FLAME_SCRIPTS.iter().chain(&SCRIPTS).chain([&STYLE]) {
            for word in ["fetch(", "XMLHttpRequest", "WebSocket", "innerHTML", "eval(", "@import", "url("] {
                assert!(!text.contains(word), "{word}");
            }
        }
    }
}
