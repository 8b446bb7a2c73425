//! The page: one answer with its own script and style, which asks nobody but its own server.
//!
//! The page holds no data. Its scripts ask for what they show, with the token of the person who
//! looks, and hold on to the rules of the page with the flame graph
//! ([`dormouse_profile::encode::html()`]): a name that a service, a program or a user has given
//! becomes text and nothing else.

use dormouse_profile::encode::FLAME_SCRIPTS;

const PAGE: &str = include_str!("page.html");
const STYLES: [&str; 2] = [include_str!("uplot/uPlot.min.css"), include_str!("page.css")];
/// The licence of uPlot, which goes where uPlot goes.
const LICENCE: &str = include_str!("uplot/LICENSE");
/// In this order, behind those of the flame graph: each uses those before it.
const SCRIPTS: [&str; 15] = [
    include_str!("uplot/uPlot.iife.min.js"),
    include_str!("dom.js"),
    include_str!("net.js"),
    include_str!("route.js"),
    include_str!("live.js"),
    include_str!("grid.js"),
    include_str!("processes.js"),
    include_str!("detail.js"),
    include_str!("groups.js"),
    include_str!("keys.js"),
    include_str!("trace.js"),
    include_str!("tasks.js"),
    include_str!("flames.js"),
    include_str!("watches.js"),
    include_str!("doctor.js"),
];
/// It begins what the others have.
const SHELL: &str = include_str!("shell.js");

/// The page, whose script and style carry `nonce`: base64 or hexadecimal.
pub(crate) fn html(nonce: &str) -> String {
    let scripts = || FLAME_SCRIPTS.iter().chain(&SCRIPTS).chain([&SHELL]);
    let mut page = String::with_capacity(200 << 10);
    let mut pieces = PAGE.split("{{");
    page.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").unwrap_or(("", piece));
        match name {
            "nonce" => page.push_str(nonce),
            "style" => STYLES.iter().for_each(|style| page.push_str(style)),
            "licence" => page.push_str(LICENCE.trim_end()),
            "script" => scripts().for_each(|script| page.push_str(script)),
            _ => {}
        }
        page.push_str(rest);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_small_and_whole() {
        let page = html("4e6f6e6365");
        assert!(!page.contains("{{"), "a place is left");
        assert!(page.len() < 200 << 10, "{} bytes", page.len());
        assert_eq!(page.matches("nonce=\"4e6f6e6365\"").count(), 2, "style and script");
        // Nothing in a script ends it, or begins one of the states that hide its end.
        assert_eq!(page.matches("</script").count(), 1);
        assert_eq!(page.matches("<script").count(), 1);
        assert!(!page.contains("<!--"));
    }

    #[test]
    fn scripts_show_names_as_text_alone() {
        let own = FLAME_SCRIPTS.iter().chain(&SCRIPTS[1..]).chain([&SHELL]);
        for script in own.chain(&STYLES) {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacent",
                "document.write",
                "eval(",
                "Function(",
                "@import",
                "url(",
                "http:",
                "https:",
                "srcdoc",
                "javascript:",
            ] {
                assert!(!script.contains(word), "{word}: {}", script.lines().nth(1).unwrap_or_default());
            }
        }
    }
}
