//! The page with the flame graph, in a real browser.
//!
//! `DORMOUSE_SCREENSHOTS=directory` keeps pictures of what is tested, for people to look at.

mod looks;
mod safety;
mod sample;
mod views;

use std::collections::HashMap;

use dormouse_profile::encode::{HtmlOptions, html};
use dormouse_profile::{Profile, Symbols};
use dormouse_testkit::Browser;

type Named = (Profile, Symbols);

fn page(profile: &Named, old: Option<&Named>) -> String {
    let options = HtmlOptions { title: "teaparty, ten seconds under load".to_owned() };
    html(&profile.0, &profile.1, &options, old.map(|(profile, symbols)| (profile, symbols)))
}

fn open(page: &str, hash: &str) -> Option<Browser> {
    let mut browser = Browser::start()?;
    let url = browser.save(page);
    browser.open(&format!("{url}{hash}"));
    Some(browser)
}

/// The one request that a page makes: for itself.
fn is_page(kind: &str, url: &str) -> bool {
    kind == "Document" && url.starts_with("file://")
}

/// The functions of each sample, the innermost first, with the sample's group and main value.
fn stacks((profile, symbols): &Named) -> Vec<(u32, Vec<&str>, u64)> {
    let names = |stack| {
        let frames = profile.stack(stack).flat_map(|address| symbols.get(address));
        frames.map(|frame| &*frame.function).collect()
    };
    profile.samples.iter().map(|sample| (sample.group, names(sample.stack), sample.values[1])).collect()
}

/// Self and total of each function, reckoned the slow way.
fn functions(profile: &Named) -> HashMap<&str, (u64, u64)> {
    let mut all = HashMap::<&str, (u64, u64)>::new();
    for (_, mut names, value) in stacks(profile) {
        all.entry(names[0]).or_default().0 += value;
        names.sort_unstable();
        names.dedup();
        for name in names {
            all.entry(name).or_default().1 += value;
        }
    }
    all
}

fn total(profile: &Named) -> u64 {
    profile.0.samples.iter().map(|sample| sample.values[1]).sum()
}

/// The one box that `condition`, over `box`, says.
fn found(browser: &mut Browser, condition: &str) -> serde_json::Value {
    let found = browser.value(&format!("flame.boxes.find((box) => {condition})"));
    assert!(found.is_object(), "no box: {condition}");
    found
}

fn click(browser: &mut Browser, condition: &str) {
    let at = found(browser, condition);
    browser.mouse(at["x"].as_f64().unwrap(), at["y"].as_f64().unwrap(), true);
}
