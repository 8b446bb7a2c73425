//! The page with a keyboard alone.

use dormouse_testkit::Browser;

use super::stand::{Server, Visit};
use crate::support::Service;

#[test]
fn keys_reach_every_view_and_switch() {
    let Some(browser) = Browser::start() else { return };
    let service = Service::visited();
    let server = Server::of(service.runtime(), service.pid());
    let mut visit = Visit::start(browser, &server, "");
    visit.shows(".sizer", &["teaparty"]);
    visit.browser.press("j");
    visit.browser.press("Enter");
    visit.until("page.name === 'groups'");
    for (letter, name) in [
        ("k", "keys"),
        ("r", "trace"),
        ("t", "tasks"),
        ("f", "flame"),
        ("w", "watches"),
        ("d", "doctor"),
        ("g", "groups"),
    ] {
        visit.browser.press("g");
        visit.browser.press(letter);
        visit.until(&format!("page.name === '{name}'"));
    }
    // The tabs, as other pages have them.
    visit.browser.value("void document.querySelector('[aria-selected=true]').focus()");
    visit.browser.press("ArrowRight");
    visit.until("page.name === 'keys' && document.activeElement.id === 'tab-keys'");
    visit.until("page.view.keys.length > 0");
    visit.browser.press("/");
    visit.browser.write("menu.read");
    visit.until("page.view.grid.rows.length === 1");
    visit.browser.press("Enter");
    visit.until("document.activeElement.classList.contains('rows')");
    visit.browser.press("Enter");
    visit.shows("#confirm", &["Switch on for 30 s?", "menu.read"]);
    visit.browser.press("Tab");
    visit.until("document.activeElement.id === 'confirm-yes'");
    visit.browser.press("Enter");
    service.await_keys_on("menu.read", |on| on == 1);
    visit.browser.press("?");
    visit.shows("#help", &["Keys"]);
    visit.browser.press("Escape");
    visit.until("!document.querySelector('dialog[open]')");
    visit.browser.press("g");
    visit.browser.press("p");
    visit.until("page.name === 'processes'");
    visit.assert_calm();
}

#[test]
fn tab_reaches_all_controls() {
    let Some(browser) = Browser::start() else { return };
    let service = Service::idle();
    let server = Server::of(service.runtime(), service.pid());
    let mut visit = Visit::start(browser, &server, &format!("p={}&v=keys", service.pid()));
    visit.until("page.view?.keys?.length > 0");
    let mut seen = Vec::new();
    for _ in 0..24 {
        visit.browser.press("Tab");
        let at = "(() => { const at = document.activeElement; \
                  return at.id || at.className || at.textContent.slice(0, 20); })()";
        seen.push(visit.browser.text(at));
        let outlined = "getComputedStyle(document.activeElement).outlineStyle !== 'none' \
            || document.activeElement.closest('.grid') || document.activeElement === document.body";
        assert_eq!(visit.browser.value(&format!("Boolean({outlined})")), true, "{seen:?}");
    }
    for wanted in ["home", "theme", "show-help", "tab-keys", "glob", "filter", "rows"] {
        assert!(seen.iter().any(|at| at == wanted), "{wanted}: {seen:?}");
    }
}

#[test]
fn rows_move_sort_and_open() {
    let Some(browser) = Browser::start() else { return };
    let service = Service::visited();
    let server = Server::of(service.runtime(), service.pid());
    let mut visit = Visit::start(browser, &server, &format!("p={}", service.pid()));
    visit.shows(".sizer", &["GET /menu"]);
    visit.browser.press("j");
    visit.browser.press("j");
    visit.browser.press("ArrowUp");
    visit.until("document.querySelectorAll('.sizer [aria-selected=true]').length === 1");
    let sort = "(() => { const head = document.querySelector('[aria-sort]'); \
                return head.dataset.column + head.getAttribute('aria-sort'); })()";
    assert_eq!(visit.browser.text(sort), "cpu_percentdescending");
    visit.browser.press("S");
    assert_eq!(visit.browser.text(sort), "cpu_percentascending");
    visit.browser.press("s");
    assert_eq!(visit.browser.text(sort), "cpu_ns_per_requestdescending");
    assert!(visit.browser.text("location.hash").contains("sort=-cpu_ns_per_request"));
    visit.browser.press(" ");
    visit.until("page.view.paused");
    visit.browser.press("Enter");
    visit.until("!document.querySelector('.detail').hidden");
    visit.browser.press("Escape");
    visit.until("document.querySelector('.detail').hidden && page.name === 'groups'");
    visit.assert_calm();
}
