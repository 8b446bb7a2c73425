//! The page in a real browser.

use dormouse_testkit::Browser;
use serde_json::json;

use super::sections::{NEEDS, SECTIONS, names};
use super::{Outcome, html};
use crate::entry::{ENTRIES, Entry};
use crate::machine::Machine;
use crate::report::{BenchReport, SCHEMA};
use crate::row::{Params, Row, Spec};

/// A report that has a value for each figure of the page, and a wrong answer.
fn outcome(entry: &Entry) -> Outcome {
    let names = SECTIONS.iter().filter(|section| section.workload == entry.name).flat_map(names);
    let rows = names.enumerate().map(|(number, name)| {
        let middle = 1.7_f64.powi(i32::try_from(number % 12).unwrap());
        let unit = if name.starts_with("hit-rate") { "%" } else { "us" };
        Row::new(&Spec::new(name, unit), Ok([0.8, 0.9, 1.0, 1.2, 3.0].map(|part| part * middle).to_vec()))
    });
    let absent = Row::new(&Spec::new("a-row/that/is-not-here", "ns"), Err("no <clock> here".to_owned()));
    let mut report = BenchReport {
        schema: SCHEMA,
        bench: entry.name.to_owned(),
        machine: Machine::here(),
        params: Params::new(),
        rows: rows.chain([absent]).collect(),
        notes: vec!["goal, at most 5 us: met; x: median 4.000 us".to_owned()],
    };
    if entry.name == "waits" {
        report.notes.push("WRONG ANSWER: wake/bare: 3 of 4 tasks".to_owned());
    }
    let failure = report.failure();
    Outcome { is_over: true, report: Some(report), failure, ..Outcome::of(entry.name, entry.origin) }
}

/// Texts with a contrast below 4.5 to the colour behind them, as WCAG reckons it.
const FAINT: &str = "(() => {
    const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).reduce((sum, one, at) => {
        const part = one / 255;
        const linear = part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
        return sum + [0.2126, 0.7152, 0.0722][at] * linear;
    }, 0);
    const faint = [];
    for (const element of document.querySelectorAll('body *')) {
        if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
        if (element.matches('title, desc')) continue;
        let behind = 'rgb(255, 255, 255)';
        for (let up = element; up; up = up.parentElement) {
            const colour = getComputedStyle(up).backgroundColor;
            if (colour !== 'rgba(0, 0, 0, 0)') { behind = colour; break; }
        }
        const style = getComputedStyle(element);
        const colour = element.closest('svg') ? style.fill : style.color;
        const [a, b] = [light(colour), light(behind)];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < 4.5) faint.push(contrast + ' ' + element.textContent.slice(0, 40));
    }
    return faint;
})()";

/// Texts of pictures that reach beyond the window.
const CUT: &str = "[...document.querySelectorAll('figure text')].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.width > 0 && (box.left < 0 || box.right > document.documentElement.clientWidth);
}).map((text) => text.textContent)";

/// Labels that reach into the words to their right.
const TOUCHING: &str = "[...document.querySelectorAll('text.label')].filter((label) =>
    label.getBoundingClientRect().right > label.nextElementSibling.getBoundingClientRect().left - 3
).map((label) => label.textContent)";

#[test]
fn a_browser_shows_it_calmly() {
    let outcomes: Vec<Outcome> = ENTRIES.iter().map(outcome).collect();
    let page = html(&outcomes);
    assert!(page.len() < 300_000, "{} bytes", page.len());
    let Some(mut browser) = Browser::start() else { return };
    let url = browser.save(&page);
    browser.open(&url);
    let pictures = SECTIONS.iter().map(|section| section.dots.len() + section.curves.len()).sum::<usize>();
    assert_eq!(browser.value("document.querySelectorAll('svg.picture > desc').length"), pictures);
    let nothing = json!([]);
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        assert_eq!(browser.value(FAINT), nothing, "{scheme}");
        for (width, name) in [(1100, "wide"), (360, "phone")] {
            browser.size(width, 900, 1.0, width < 500);
            assert_eq!(
                browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth"),
                0,
                "{name}"
            );
            assert_eq!(browser.value(CUT), nothing, "{name}");
            assert_eq!(browser.value(TOUCHING), nothing, "{name}");
            browser.whole_picture(&format!("report-{scheme}-{name}"));
        }
    }
    // On paper it is light, although the screen is dark.
    browser.size(800, 1100, 1.0, false);
    let paper = json!({ "media": "print",
        "features": [{ "name": "prefers-color-scheme", "value": "dark" }] });
    browser.ask("Emulation.setEmulatedMedia", &paper);
    assert_eq!(browser.text("getComputedStyle(document.documentElement).colorScheme"), "light");
    assert_eq!(browser.value(FAINT), nothing, "print");
    browser.whole_picture("report-print");
    assert_eq!(browser.complaints(|kind, asked| kind == "Document" && asked == url), Vec::<String>::new());
}

#[test]
fn every_name_of_the_page_is_promised() {
    let entries = ENTRIES.map(|entry| entry.name);
    for section in &SECTIONS {
        assert!(entries.contains(&section.workload), "{}", section.workload);
        assert_eq!(SECTIONS.iter().filter(|other| other.id == section.id).count(), 1, "{}", section.id);
    }
    assert!(NEEDS.iter().all(|[_, workload, _]| entries.contains(workload)));
    for entry in &ENTRIES {
        assert!(SECTIONS.iter().any(|section| section.workload == entry.name), "{}", entry.name);
        let told = SECTIONS.iter().any(|of| of.workload == entry.name && !of.origin.is_empty());
        assert_eq!(told, !entry.origin.is_empty(), "{}", entry.name);
    }
}
