//! The page: one answer with its own script and style, which asks nobody but its own server.
//!
//! The page holds no data. Its scripts ask for what they show, with the token of the person who
//! looks, and hold on to the rules of the page with the flame graph
//! ([`dormouse_profile::encode::html()`]): a name that a service, a program or a user has given
//! becomes text and nothing else.

use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dormouse_profile::encode::FLAME_SCRIPTS;
use dormouse_protocol::figures::{FigurePart, FigureUnit};
use dormouse_statistics::buckets::{EXPORTED_SCALE, UNIT_NS};
use ring::digest::{SHA256, digest};
use serde::Serialize;

use super::packed::Packed;
use super::windows;
use crate::output::as_document;

const PAGE: &str = include_str!("page.html");
const STYLES: [&str; 2] = [include_str!("uplot/uPlot.min.css"), include_str!("page.css")];
/// The licence of uPlot, which goes where uPlot goes.
const LICENCE: &str = include_str!("uplot/LICENSE");
/// In this order, behind those of the flame graph: each uses those before it.
const SCRIPTS: [&str; 18] = [
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
    include_str!("asked.js"),
    include_str!("leaks.js"),
    include_str!("locks.js"),
    include_str!("tasks.js"),
    include_str!("flames.js"),
    include_str!("watches.js"),
    include_str!("doctor.js"),
];
/// It begins what the others have.
const SHELL: &str = include_str!("shell.js");

/// The page with its policy.
#[derive(Debug)]
pub(super) struct PageFile {
    page: Packed,
    policy: String,
}

impl PageFile {
    pub(super) fn new() -> PageFile {
        let (style, script) = (STYLES.concat(), script());
        let kind = HeaderValue::from_static("text/html; charset=utf-8");
        PageFile {
            page: Packed::new(kind, html(&style, &script).into_bytes()),
            policy: policy(&style, &script),
        }
    }

    pub(super) fn answer(&self, headers: &HeaderMap) -> Response {
        let mut response = self.page.answer(headers);
        // Without one the policy of all answers holds, under which nothing runs.
        if let Ok(policy) = HeaderValue::from_str(&self.policy) {
            response.headers_mut().insert("content-security-policy", policy);
        }
        response
    }
}

fn script() -> String {
    let scripts = FLAME_SCRIPTS.iter().chain(&SCRIPTS).chain([&SHELL]).copied();
    format!("/* uPlot:\n{} */\n{}{}", LICENCE.trim_end(), figures(), scripts.collect::<String>())
}

/// The data about figures that the scripts use.
#[derive(Serialize)]
struct Figures {
    columns: Vec<ColumnData>,
    times: Vec<TimesData>,
    calls: Vec<CallData>,
    windows: [u64; 4],
    buckets: Buckets,
}

/// A column of groups.
#[derive(Serialize)]
struct ColumnData {
    id: String,
    label: &'static str,
    help: &'static str,
    unit: FigureUnit,
    leaves: u8,
    sorts: bool,
}

/// A histogram of groups.
#[derive(Serialize)]
struct TimesData {
    label: String,
    help: &'static str,
}

/// A column of a group's outgoing calls.
#[derive(Serialize)]
struct CallData {
    label: &'static str,
    help: &'static str,
    unit: FigureUnit,
}

/// The buckets of latencies over time.
#[derive(Serialize)]
struct Buckets {
    scale: i32,
    unit_ns: u64,
}

fn figures() -> String {
    let id = |key: &str, part: FigurePart| match part {
        FigurePart::All => key.to_owned(),
        part => format!("{key}.{part:?}").to_lowercase(),
    };
    let columns = windows::columns().into_iter().map(|(figure, column)| ColumnData {
        id: id(figure.key, column.part),
        label: column.title,
        help: figure.sentence(),
        unit: column.unit,
        leaves: column.leaves,
        sorts: column.sorts,
    });
    let times = windows::histograms().map(|figure| TimesData {
        label: figure.key[..1].to_uppercase() + &figure.key[1..],
        help: figure.sentence(),
    });
    let calls = windows::call_columns().map(|(figure, column)| CallData {
        label: column.title,
        help: figure.sentence(),
        unit: column.unit,
    });
    let figures = Figures {
        calls: calls.collect(),
        columns: columns.collect(),
        times: times.collect(),
        windows: windows::WINDOWS,
        buckets: Buckets { scale: EXPORTED_SCALE, unit_ns: UNIT_NS },
    };
    format!("const FIGURES = {};\n", as_document(&figures))
}

fn html(style: &str, script: &str) -> String {
    let mut page = String::with_capacity(PAGE.len() + style.len() + script.len());
    let mut pieces = PAGE.split("{{");
    page.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").unwrap_or(("", piece));
        match name {
            "style" => page.push_str(style),
            "script" => page.push_str(script),
            _ => {}
        }
        page.push_str(rest);
    }
    page
}

/// All pages are the same, so the policy names the script and the style by their hashes: what
/// somebody else brings into the page has another, and does not run.
fn policy(style: &str, script: &str) -> String {
    let hash = |text: &str| STANDARD.encode(digest(&SHA256, text.as_bytes()));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
         img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(script),
        hash(style)
    )
}

/// The scripts that show groups, without those of others and of the other views.
#[cfg(test)]
pub(super) fn scripts_of_groups() -> String {
    let own = ["dom", "route", "live", "detail", "groups", "shell"]
        .map(|name| std::fs::read_to_string(format!("src/serve/page/{name}.js")).unwrap_or_default());
    figures() + &FLAME_SCRIPTS[..1].concat() + &own.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_small_and_whole() {
        // Packed, as browsers take it, 60 KB: a third of a second on a line of 1.5 Mbit/s. A
        // quarter of it draws plots (uPlot); a dozen views are the rest.
        let page = html(&STYLES.concat(), &script());
        assert!(!page.contains("{{"), "a place is left");
        assert!(page.len() < 220_000, "{} bytes", page.len());
        assert!(page.contains(&format!("<style>{}</style>", STYLES.concat())));
        assert!(page.contains(&format!("<script>{}</script>", script())));
        // Nothing in a script ends it, or begins one of the states that hide its end.
        assert_eq!(page.matches("</script").count(), 1);
        assert_eq!(page.matches("<script").count(), 1);
        assert!(!page.contains("<!--"));
    }

    #[test]
    fn empty_cells_come_before_text() {
        let script = include_str!("grid.js").to_owned()
            + "function setText() {}
               const table = Object.assign(Object.create(Grid.prototype), {
                   columns: [{ id: 'version', value: (row) => row }],
                   sort: 'version', down: false, none: {}, body: { setAttribute() {} }, layout() {},
               });
               table.show(['b', null, 'a']);
               console.log(table.rows.join());";
        let Ok(node) = std::process::Command::new("node").args(["-e", &script]).output() else {
            return dormouse_testkit::skip("node is not installed");
        };
        assert_eq!(dormouse_testkit::viewers::printed(node), ",a,b\n");
    }

    #[test]
    fn the_policy_has_hashes() {
        let policy = policy("", "abc");
        // Those of nothing and of these letters, as FIPS 180 has them.
        assert!(
            policy.contains("script-src 'sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0='"),
            "{policy}"
        );
        assert!(
            policy.contains("style-src 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"),
            "{policy}"
        );
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
