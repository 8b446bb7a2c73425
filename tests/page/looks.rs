//! The page on small screens, by day and by night.

use dormouse_testkit::Browser;

use super::stand::{Server, Visit};
use crate::support::Service;

const VIEWS: [&str; 7] = ["groups", "keys", "trace", "tasks", "flame", "watches", "doctor"];

#[test]
fn a_phone_scrolls_down_alone() {
    let Some(browser) = Browser::start() else { return };
    let service = Service::visited();
    let server = Server::of(service.runtime(), service.pid());
    let mut visit = Visit::start(browser, &server, "");
    visit.browser.size(360, 740, 2.0, true);
    visit.shows(".sizer", &["teaparty"]);
    let fits =
        "document.documentElement.scrollWidth <= 360 && document.querySelector('main').scrollWidth <= 360";
    assert_eq!(visit.browser.value(fits), true);
    for view in VIEWS {
        visit.go(&format!("p={}&v={view}", service.pid()));
        visit.until(&format!("page.name === '{view}'"));
        if view == "groups" {
            visit.shows(".sizer", &["GET /menu"]);
        }
        visit.until(fits);
        visit.browser.picture(&format!("phone-{view}"));
    }
    visit.go(&format!("p={}&v=groups&group=GET+/menu", service.pid()));
    visit.shows(".detail", &["requests ended"]);
    visit.until(fits);
    visit.browser.picture("phone-group");
    visit.assert_calm();
}

#[test]
fn colours_follow_the_scheme_and_can_be_read() {
    let Some(browser) = Browser::start() else { return };
    let service = Service::visited();
    let server = Server::of(service.runtime(), service.pid());
    let mut visit = Visit::start(browser, &server, &format!("p={}&group=GET+/menu", service.pid()));
    visit.shows(".detail", &["requests ended"]);
    // The least contrast of text with what lies behind it, as WCAG reckons it.
    let least = "(() => {
        const context = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
        const rgb = (colour, over) => {
            context.fillStyle = over;
            context.fillRect(0, 0, 1, 1);
            context.fillStyle = colour;
            context.fillRect(0, 0, 1, 1);
            return context.getImageData(0, 0, 1, 1).data;
        };
        const light = ([...of]) => of.slice(0, 3).reduce((sum, one, at) => {
            const part = one / 255;
            const linear = part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
            return sum + [0.2126, 0.7152, 0.0722][at] * linear;
        }, 0);
        let worst = [99, ''];
        for (const element of document.querySelectorAll('body *')) {
            const isText = (node) => node.nodeType === 3 && node.data.trim();
            if (!element.offsetParent || ![...element.childNodes].some(isText)) continue;
            let behind = 'white';
            for (let up = element; up; up = up.parentElement) {
                const colour = getComputedStyle(up).backgroundColor;
                if (colour !== 'rgba(0, 0, 0, 0)') { behind = colour; break; }
            }
            const [a, b] = [light(rgb(getComputedStyle(element).color, behind)), light(rgb(behind, 'white'))];
            const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            const who = element.className + ' ' + element.textContent.slice(0, 40);
            if (contrast < worst[0]) worst = [contrast, who];
        }
        return worst;
    })()";
    for scheme in ["light", "dark"] {
        visit.browser.prefer(scheme);
        visit.until(&format!("document.documentElement.dataset.theme === '{scheme}'"));
        // Colours fade from the one to the other.
        visit.until(&format!("{least}[0] >= 4.5"));
        visit.browser.picture(&format!("group-{scheme}"));
    }
    visit.browser.press("d");
    assert_eq!(visit.browser.text("document.documentElement.dataset.theme"), "light");
    visit.assert_calm();
}
