//! The page of `bench all`: one file that asks the network for nothing and has no script.
//!
//! It is drawn from the reports alone, by one function, anew after each workload: a run that is
//! interrupted has the page of what it finished.
//!
//! Colours and letters are those of the page with the flame graph
//! ([`dormouse_profile::encode::FLAME_COLOURS`]), by day and by night as the reader's system has
//! it, and by day on paper. A policy in the head allows the page's own style and nothing else; what
//! is not of this program becomes text ([`write`]).

#[cfg(test)]
mod browser;
mod chapters;
mod picture;
mod scale;
mod sections;
mod write;

use std::hash::{DefaultHasher, Hash, Hasher};

use dormouse_profile::encode::FLAME_COLOURS;

use crate::output::PAGE;
use crate::report::BenchReport;
use write::Html;

const STYLE: &str = include_str!("report.css");

/// A workload of a run of all.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) name: &'static str,
    /// The tables of its origin, as a text.
    pub(crate) origin: &'static str,
    /// Whether it has run.
    pub(crate) is_over: bool,
    pub(crate) report: Option<BenchReport>,
    pub(crate) failure: Option<String>,
}

impl Outcome {
    /// That of a workload that has not run yet.
    pub(crate) fn of(name: &'static str, origin: &'static str) -> Self {
        Self { name, origin, is_over: false, report: None, failure: None }
    }
}

/// The page.
pub(crate) fn html(outcomes: &[Outcome]) -> String {
    let mut body = Html::default();
    chapters::body(&mut body, outcomes);
    let body = body.finish();
    let mut hash = DefaultHasher::new();
    body.hash(&mut hash);
    let nonce = format!("{:016x}", hash.finish());
    let [light, dark] = FLAME_COLOURS;
    let title = outcomes.iter().find_map(|outcome| outcome.report.as_ref()).map(|report| &report.machine);
    let mut title_text = Html::default();
    title_text.text(title.map_or_else(String::new, |machine| {
        format!("{} × {}", machine.cpus, machine.cpu.as_deref().unwrap_or(&machine.arch))
    }));
    let title = title_text.finish();
    format!(
        "{PAGE}<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>dormouse bench: {title}</title>\n\
         <style nonce=\"{nonce}\">\n:root {{\n{light}}}\n\
         @media screen and (prefers-color-scheme: dark) {{ :root {{\n{dark}}} }}\n{STYLE}</style>\n\
         </head>\n<body>\n{body}</body>\n</html>\n"
    )
}

/// The rows of this workload that the page names and that the report does not have.
pub(crate) fn unknown(report: &BenchReport) -> Vec<String> {
    let of_pictures =
        sections::SECTIONS.iter().filter(|of| of.workload == report.bench).flat_map(sections::names);
    let needed = sections::NEEDS.iter().filter(|need| need[1] == report.bench).map(|need| need[2].to_owned());
    of_pictures.chain(needed).filter(|name| report.rows.iter().all(|row| row.name != *name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::SCHEMA;
    use crate::row::{Params, Row, Spec};
    use crate::workloads::keys;

    fn keys_report(rows: Vec<Row>, notes: &[&str]) -> Outcome {
        let mut params = Params::new();
        params.insert("quick".to_owned(), true.into());
        params.insert("seed".to_owned(), 1.into());
        let machine = Machine { cpu: Some("<b>EPYC</b>".to_owned()), ..Machine::here() };
        let notes = notes.iter().map(|&note| note.to_owned()).collect();
        Outcome {
            name: "keys",
            origin: keys::ORIGIN,
            is_over: true,
            report: Some(BenchReport {
                schema: SCHEMA,
                bench: "keys".to_owned(),
                machine,
                params,
                rows,
                notes,
            }),
            failure: None,
        }
    }

    fn row(name: &str, values: Result<Vec<f64>, String>) -> Row {
        Row::new(&Spec::new(name, "us"), values)
    }

    fn absent(name: &'static str, is_over: bool, failure: Option<&str>) -> Outcome {
        Outcome { name, origin: "", is_over, report: None, failure: failure.map(str::to_owned) }
    }

    fn page_of_keys() -> String {
        let rows = vec![
            row("update/one-by-one-flip", Ok(vec![835.0, 840.0])),
            row("update/batch-flip", Ok(vec![11.0, 12.0])),
            row("ipis/batch-flip/cal", Err("no row <CAL> in \"/proc/interrupts\"".to_owned())),
        ];
        let notes = [
            "goal, batch at least 40 times: met; update/batch: median 71.0 times",
            "goal, a <i>second</i>: missed; x: median 2.0 %",
            "goal, a third: not decided, y is unavailable: no clock",
            "in a virtual machine",
        ];
        let outcomes = [
            keys_report(rows, &notes),
            absent("maps", true, Some("signal: 11 (SIGSEGV): <img src=x>")),
            absent("pound", false, None),
        ];
        html(&outcomes)
    }

    #[test]
    fn the_origins_figures_stand_beside_ours() {
        let page = page_of_keys();
        for words in ["838 µs → 11.5 µs", "57.0 ms → 1.40 ms"] {
            assert!(page.contains(words), "{words}");
        }
        assert!(page.contains("origin, update") && page.contains("unavailable"), "its table");
        assert!(page.contains("<title id=\"keys-1-t\">") && page.contains("<desc id=\"keys-1-d\">"));
    }

    #[test]
    fn failures_and_what_never_ran_are_named() {
        let page = page_of_keys();
        assert!(page.contains("signal: 11 (SIGSEGV): &lt;img src=x&gt;"));
        assert!(page.contains("pound") && page.contains("did not run"));
        assert!(page.contains("1 met, 1 missed, 1 not decided"), "{page}");
    }

    #[test]
    fn nothing_of_others_is_markup() {
        let page = page_of_keys();
        for markup in ["<b>EPYC", "<i>second", "<CAL>", "<img", "<script", " style=\"", "http:", "https:"] {
            assert!(!page.contains(markup), "{markup}");
        }
        assert!(page.contains("&lt;b&gt;EPYC&lt;/b&gt;</title>"));
        assert!(page.starts_with(PAGE));
    }

    #[test]
    fn a_run_without_reports_has_a_page() {
        let page = html(&[absent("keys", true, Some("cannot start it")), absent("maps", false, None)]);
        assert!(page.contains("cannot start it") && page.ends_with("</html>\n"));
    }
}
