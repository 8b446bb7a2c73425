//! Names do nothing, and the page asks the network for nothing.

use dormouse_profile::encode::{HtmlOptions, html};
use dormouse_profile::{Profile, ProfileKind, Symbols};
use serde_json::json;

use super::sample::{Maker, service};
use super::{is_page, open, page};

const HOSTILE: [&str; 10] = [
    "</script><script>window.hit = 1</script>",
    "<img src=x onerror=\"window.hit = 2\">",
    "<!--<script>",
    "\u{2028}window.hit = 3;\u{2029}",
    "{{script}} {{nonce}} ${window.hit = 4}",
    "\"};window.hit = 5;//",
    "a\\u003c/script\\",
    "\u{202e}txet\u{202c} \u{1f375}\u{fe0f} e\u{301}",
    "__proto__",
    "nul\0tab\tline\nend",
];

#[test]
fn hostile_names_stay_text() {
    let mut maker = Maker::new(ProfileKind::Cpu);
    for (at, name) in HOSTILE.into_iter().enumerate() {
        let (group, thread) = (maker.group(name), maker.thread(name));
        let size = 1_000_000 * u64::try_from(HOSTILE.len() - at).unwrap();
        maker.add(group, thread, &["main", name], [1, size, 0, 0]);
    }
    let (mut profile, symbols) = maker.done();
    profile.program = format!("/srv/{}", HOSTILE[1]);
    profile.coverage.notes = HOSTILE.map(str::to_owned).to_vec();
    for mapping in &mut profile.mappings {
        HOSTILE[0].clone_into(&mut mapping.path);
    }
    let text = html(&profile, &symbols, &HtmlOptions { title: HOSTILE[..2].concat() }, None);
    let Some(mut browser) = open(&text, "") else { return };
    let labels = browser.value("flame.boxes.filter((box) => box.depth === 3).map((box) => box.label)");
    assert_eq!(labels, json!(HOSTILE));
    let groups = browser.value("flame.boxes.filter((box) => box.depth === 1).map((box) => box.label)");
    assert_eq!(groups, json!(HOSTILE));
    // Everywhere that a name is shown.
    for box_ in browser.value("flame.boxes").as_array().unwrap() {
        browser.mouse(box_["x"].as_f64().unwrap(), box_["y"].as_f64().unwrap(), false);
    }
    for name in HOSTILE {
        browser.value(&format!("look({})", json!(name)));
        browser.press("n");
        browser.value("look('')");
    }
    browser.value("set({ inverted: true }), set({ view: 'table' })");
    assert_eq!(browser.value("document.querySelectorAll('tbody tr').length"), HOSTILE.len() + 1);
    assert_eq!(browser.text("document.querySelector('h1').textContent"), HOSTILE[..2].concat());
    assert_eq!(browser.value("document.querySelectorAll('img, iframe, object, script').length"), 2);
    assert_eq!(
        browser.value("[typeof window.hit, flame.data.coverage.notes]"),
        json!(["undefined", HOSTILE])
    );
    assert_eq!(browser.errors(is_page), Vec::<String>::new());
}

#[test]
fn nothing_leaves_or_enters_the_page() {
    let profile = service(ProfileKind::Cpu, 3, [100; 3]);
    let Some(mut browser) = open(&page(&profile, None), "") else { return };
    for view in ["set({ view: 'table' })", "set({ view: 'flame' })", "theme(true)", "look('e')"] {
        browser.value(view);
    }
    assert_eq!(browser.errors(is_page), Vec::<String>::new());
    // The policy holds, and what breaks it is noticed here.
    let refused = browser.value("fetch('file:///etc/hostname').then(() => 'read', () => 'refused')");
    assert_eq!(refused, "refused");
    let script = "document.body.append(Object.assign(document.createElement('script'), { textContent: 'window.hit = 1' }))";
    browser.value(&format!("{script}, 0"));
    browser
        .value("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hit = 2\">'), 0");
    assert_eq!(browser.value("typeof window.hit"), "undefined");
    let errors = browser.errors(is_page);
    assert!(errors.len() >= 3, "{errors:?}");
}

#[test]
fn coverage_is_said_at_the_top() {
    let mut profile = service(ProfileKind::Cpu, 3, [100; 3]);
    let seen = &mut profile.0.coverage;
    (seen.total, seen.in_groups, seen.samples, seen.ended) = (40_000_000_000, 10_000_000_000, 4000, 2000);
    (seen.dropped, seen.threads, seen.armed, seen.refused) = (17, 9, 8, 1);
    let Some(mut browser) = open(&page(&profile, None), "") else { return };
    let said = browser.text("$('coverage').textContent");
    for part in [
        "in 10\u{202f}s",
        "4,000 samples",
        "25.0\u{202f}% in groups",
        "50.0\u{202f}% of stacks",
        "17 dropped",
        "8 of 9 threads",
        "1 threads refused",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let bad = browser.value("[...document.querySelectorAll('#coverage .bad')].map((one) => one.textContent)");
    assert_eq!(bad.as_array().unwrap().len(), 4, "{bad}");
    assert!(browser.text("$('notes').textContent").contains(&profile.0.coverage.notes[0]));
}

#[test]
fn empty_profiles_are_pages_too() {
    let empty = (Profile::default(), Symbols::default());
    let Some(mut browser) = open(&page(&empty, Some(&empty)), "") else { return };
    assert_eq!(browser.value("$('empty').hidden"), json!(false));
    for key in ["ArrowDown", "Enter", "i", "t", "ArrowDown", "Enter", "t", "o", "v", "+", "0", "Escape", "n"]
    {
        browser.press(key);
    }
    browser.value("look('x')");
    assert_eq!(browser.errors(is_page), Vec::<String>::new());
}
