//! Keys are switched by people who know what they do, and revert.

use dormouse_testkit::Browser;

use super::stand::{Server, Visit};
use crate::support::Service;

#[test]
fn a_key_is_switched_and_reverts() {
    let Some(browser) = Browser::start() else { return };
    let service = Service::visited();
    let server = Server::of(service.runtime(), service.pid());
    let place = format!("p={}&v=keys&find=menu.read&glob=menu.read", service.pid());
    let mut visit = Visit::start(browser, &server, &place);
    visit.shows(".sizer", &["menu.read", "off"]);
    // To follow a link switches nothing, and neither does a question that is answered by no.
    visit.click("form.bar button");
    visit.shows(
        "#confirm",
        &[
            "Switch on for 10 s?",
            "You switch by the token",
            "uid ",
            "menu.read",
            "1 key with 1 site in teaparty",
            "off by itself 10 s later, at ",
        ],
    );
    visit.browser.picture("confirm");
    visit.browser.press("Escape");
    visit.until("!document.querySelector('dialog[open]')");
    assert_eq!(service.keys_on("menu.read"), 0);
    visit.click("form.bar button");
    visit.shows("#confirm", &["Switch on for 10 s?"]);
    visit.click("#confirm-yes");
    service.await_keys_on("menu.read", |on| on == 1);
    visit.shows(".held", &["menu.read", "on, goes off in"]);
    visit.shows(".sizer", &["on, off in", "user "]);
    visit.browser.picture("switched");
    service.await_keys_on("menu.read", |on| on == 0);
    visit.until("!document.querySelector('.held li')");
    visit.until("document.querySelector('.sizer [data-column=state]').textContent === 'off'");
    visit.assert_calm();
}

#[test]
fn a_switched_key_goes_off_at_once() {
    let Some(browser) = Browser::start() else { return };
    let service = Service::visited();
    let server = Server::of(service.runtime(), service.pid());
    let place = format!("p={}&v=keys&find=menu.read&glob=menu.read", service.pid());
    let mut visit = Visit::start(browser, &server, &place);
    visit.shows(".sizer", &["menu.read", "off"]);
    visit.click("form.bar button:nth-of-type(3)");
    visit.shows("#confirm", &["Switch on for 5 min?"]);
    visit.click("#confirm-yes");
    service.await_keys_on("menu.read", |on| on == 1);
    visit.shows(".held", &["menu.read"]);
    visit.click(".held button");
    visit.shows("#confirm", &["Switch off?", "before their time"]);
    visit.click("#confirm-yes");
    service.await_keys_on("menu.read", |on| on == 0);
    visit.assert_calm();
}

#[test]
fn a_glob_without_keys_is_told() {
    let Some(browser) = Browser::start() else { return };
    let service = Service::idle();
    let server = Server::of(service.runtime(), service.pid());
    let place = format!("p={}&v=keys&glob=no.such.*", service.pid());
    let mut visit = Visit::start(browser, &server, &place);
    visit.until("page.view?.keys?.length > 0");
    visit.click("form.bar button");
    visit.shows("#notice", &["no key"]);
    // It stays when the list has come anew.
    visit.browser.value("void (page.view.keys = [])");
    visit.until("page.view.keys?.length > 0");
    visit.shows("#notice", &["no key"]);
    assert_eq!(visit.browser.value("document.getElementById('confirm').open"), false);
}
