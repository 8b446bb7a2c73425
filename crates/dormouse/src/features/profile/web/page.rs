//! The page with links that people expect at `/debug/pprof/`.

use std::fmt::Write as _;

use crate::core::group::Group;

/// Groups that the page names; there may be a thousand.
const MAX_GROUPS: usize = 100;

const PROFILES: [(&str, &str, &str); 5] = [
    ("profile", "profile?seconds=10", "CPU time"),
    ("allocs", "allocs?seconds=10", "allocations, if dormouse::Alloc is the global allocator"),
    ("heap", "heap?seconds=10", "the same, and which of them are still there"),
    ("faults", "faults?seconds=10", "page faults"),
    ("wall", "wall?seconds=10", "wall time of tasks: running, runnable, awaiting"),
];

/// The page.
pub(super) fn page() -> String {
    let mut html = String::from(
        "<!DOCTYPE html>\n<html lang=en>\n<meta charset=utf-8>\n<title>profiles</title>\n\
         <style>body{font:1rem/1.5 system-ui,sans-serif;margin:2rem;max-width:50rem;color-scheme:light dark}\
         td{padding-right:1.5rem;vertical-align:top}code{font-size:.9rem}</style>\n\
         <h1>profiles</h1>\n<table>\n",
    );
    for (name, link, what) in PROFILES {
        let _ = writeln!(html, "<tr><td><a href=\"{link}\">{name}</a><td>{what}");
    }
    html.push_str(
        "</table>\n<p>In the query: <code>seconds</code> (1 to 300), <code>hz</code> (1 to 1000), \
         <code>bytes</code> between two samples of allocations, <code>group</code> (globs), \
         <code>unwind=1</code>, <code>symbols=1</code>. The answers have the format of pprof: \
         <code>go tool pprof -http=: 'http://…/debug/pprof/profile?seconds=10'</code></p>\n",
    );
    let groups = Group::all();
    if !groups.is_empty() {
        html.push_str("<h2>CPU time of one group</h2>\n<ul>\n");
        for group in groups.iter().take(MAX_GROUPS) {
            let name = group.name();
            let _ = writeln!(
                html,
                "<li><a href=\"profile?seconds=10&amp;group={}\">{}</a>",
                encoded(name),
                escaped(name)
            );
        }
        html.push_str("</ul>\n");
        if let Some(more @ 1..) = groups.len().checked_sub(MAX_GROUPS) {
            let _ = writeln!(html, "<p>and {more} more</p>");
        }
    }
    html
}

/// A name as a list of globs that selects it alone, in a query.
fn encoded(name: &str) -> String {
    let mut query = String::with_capacity(name.len());
    for c in name.chars() {
        if "*?[]{},\\!".contains(c) {
            query.push_str("%5C");
        }
        let mut utf8 = [0; 4];
        for &byte in c.encode_utf8(&mut utf8).as_bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
                query.push(char::from(byte));
            } else {
                let _ = write!(query, "%{byte:02X}");
            }
        }
    }
    query
}

/// A name as text for HTML, because it may come from what a client has sent.
fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '"' => text.push_str("&quot;"),
            c if c.is_control() => text.push('\u{fffd}'),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use dormouse_keys::Selector;

    use super::*;

    #[test]
    fn a_link_selects_its_group_alone() {
        for name in ["GET /a*", "GET /a{b,c}", "!x", "a,b", "ä [1]", "100% \\o/"] {
            let link = encoded(name);
            let decoded: Vec<u8> = {
                let mut bytes = Vec::new();
                let mut rest = link.as_bytes();
                while let [first, tail @ ..] = rest {
                    if *first == b'%' {
                        let digits = std::str::from_utf8(&tail[..2]).unwrap();
                        bytes.push(u8::from_str_radix(digits, 16).unwrap());
                        rest = &tail[2..];
                    } else {
                        bytes.push(*first);
                        rest = tail;
                    }
                }
                bytes
            };
            let selector = Selector::parse(std::str::from_utf8(&decoded).unwrap()).unwrap();
            assert!(selector.matches_at(name, "", 0), "{name}: {link}");
            assert!(!selector.matches_at("GET /ab", "", 0), "{name}: {link}");
        }
    }

    #[test]
    fn names_are_no_markup() {
        let name = "<script>\"&\n";
        Group::new(name);
        let page = page();
        assert!(!page.contains("<script>"), "{page}");
        assert!(page.contains("&lt;script&gt;&quot;&amp;\u{fffd}"), "{page}");
    }
}
