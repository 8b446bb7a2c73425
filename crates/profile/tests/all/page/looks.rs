//! How the page looks: themes, contrast, phones, paper, and a hundred thousand frames.

use dormouse_profile::ProfileKind;
use serde_json::json;

use super::sample::{large, service};
use super::{click, is_page, open, page};

/// The least contrast of text with what it stands on, by the rules of WCAG: over all fills of the
/// picture, and over the elements of the page.
const LEAST_CONTRAST: &str = "(() => {
  const one = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const light = (colour) => {
    one.fillStyle = colour;
    one.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...one.getImageData(0, 0, 1, 1).data].map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const contrast = (a, b) => Math.max(light(a), light(b)) / Math.min(light(a), light(b));
  const { palette } = flame.graph;
  const fills = [palette.plain, palette.group, palette.match];
  for (let library = 0; library < data.libraries.length; library++) fills.push(palette.of(library));
  for (let now = 0; now <= 400; now += 5) fills.push(palette.change(now, 100, 100));
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  const pairs = [['--text', '--back'], ['--quiet', '--back'], ['--quiet', '--raised'], ['--quiet', '--hover'],
    ['--accent', '--accent-back'], ['--accent', '--back'], ['--bad', '--back'], ['--good', '--back'],
    ['--text', '--bar'], ['--quiet', '--bar']];
  return Math.min(...fills.map((fill) => contrast(fill, palette.text)),
    ...pairs.map(([text, back]) => contrast(value(text), value(back))));
})()";

#[test]
fn both_themes_can_be_read() {
    let profile = service(ProfileKind::Cpu, 3, [100; 3]);
    let Some(mut browser) = open(&page(&profile, None), "") else { return };
    let back = "getComputedStyle(document.body).backgroundColor";
    let mut backs = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        assert_eq!(browser.value("flame.dark"), json!(scheme == "dark"));
        backs.push(browser.text(back));
        let least = browser.value(LEAST_CONTRAST).as_f64().unwrap();
        assert!(least >= 4.5, "{scheme}: {least}");
        browser.picture(scheme);
    }
    assert_ne!(backs[0], backs[1]);
    browser.value("$('theme').click()");
    assert_eq!(browser.text(back), backs[0], "by hand");
}

#[test]
fn phones_have_all_of_it() {
    let profile = service(ProfileKind::Cpu, 3, [100; 3]);
    let Some(mut browser) = open(&page(&profile, None), "") else { return };
    browser.prefer("light");
    browser.size(390, 844, 3.0, true);
    let fits = "document.documentElement.scrollWidth <= innerWidth && $('canvas').getBoundingClientRect().right <= innerWidth";
    assert_eq!(browser.value(&format!("[{fits}, innerWidth]")), json!([true, 390]));
    assert_eq!(
        browser.value("$('canvas').width"),
        browser.value("Math.round(flame.graph.width * 3)"),
        "sharp"
    );
    let high = browser.value("$('flame').clientHeight").as_f64().unwrap();
    assert!(high >= 300.0, "{high} pixels are left for the picture");
    click(&mut browser, "box.label === 'GET /orders'");
    assert_eq!(browser.text("flame.zoomed"), "GET /orders");
    browser.picture("phone");
    browser.value("set({ view: 'table' })");
    assert_eq!(browser.value(fits), json!(true));
    browser.picture("phone-table");
    browser.value("set({ view: 'flame' })");
    browser.size(844, 390, 3.0, true);
    assert_eq!(browser.value(&format!("[{fits}, innerWidth]")), json!([true, 844]));
}

#[test]
fn paper_has_every_row() {
    let profile = service(ProfileKind::Cpu, 3, [100; 3]);
    let Some(mut browser) = open(&page(&profile, None), "") else { return };
    browser.prefer("dark");
    browser.size(1000, 420, 1.0, false);
    let high = "$('canvas').height";
    let shown = browser.value(high);
    let rows = "flame.graph.rows.length * ROW";
    assert!(shown.as_f64() < browser.value(rows).as_f64(), "there is more than fits");
    // The last rows come into sight by keys.
    for _ in 0..30 {
        browser.press("ArrowDown");
    }
    assert!(browser.value("flame.graph.scroller.scrollTop").as_f64().unwrap() > 0.0);
    browser.value("dispatchEvent(new Event('beforeprint'))");
    assert!(browser.value(high).as_f64().unwrap() >= browser.value(rows).as_f64().unwrap());
    assert_eq!(browser.value("flame.graph.palette.dark"), json!(false), "paper is white");
    browser.value("dispatchEvent(new Event('afterprint'))");
    assert_eq!(browser.value(high), shown);
    assert_eq!(browser.value("flame.graph.palette.dark"), json!(true));
    assert!(browser.ask("Page.printToPDF", &json!({}))["data"].as_str().unwrap().len() > 1000);
}

#[test]
fn large_profiles_are_drawn_in_part() {
    let profile = large(100_000);
    let text = page(&profile, None);
    assert!(text.len() < 4 << 20, "{} bytes", text.len());
    let Some(mut browser) = open(&text, "") else { return };
    assert!(browser.value("data.nodes.length / 2").as_f64().unwrap() >= 100_000.0);
    // Every third group, or so, is wide enough for its frames to be seen.
    let (drawn, boxes) = (browser.value("flame.graph.drawn"), browser.value("flame.boxes.length"));
    assert!((1000.0..100_000.0).contains(&boxes.as_f64().unwrap()), "{boxes}");
    let small = "flame.graph.rows.flat().filter((one) => (one.box || one).width * flame.graph.scale < SMALLEST).length";
    assert_eq!(browser.value(small), 0);
    browser.picture("large");
    eprintln!(
        "{} bytes; drawn after {} ms: {drawn} pieces of {boxes} boxes",
        text.len(),
        browser.value("flame.painted")
    );
    let change = |what: &str| {
        format!("(() => {{ const from = performance.now(); {what}; return performance.now() - from; }})()")
    };
    for what in
        ["set({ show: 'all' })", "set({ inverted: true })", "look('function_12')", "set({ view: 'table' })"]
    {
        eprintln!("{what}: {} ms", browser.value(&change(what)));
    }
    assert_eq!(browser.errors(is_page), Vec::<String>::new());
}
