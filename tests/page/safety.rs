//! Names of strangers stay text, and many tasks are few elements.

use dormouse_testkit::Browser;
use serde_json::Value;

use super::stand::{Host, Server, TOKEN, Visit};
use super::strange::{KEY, NAMES, PROBE, PROGRAM, TASKS};

fn strange() -> (Host, Server) {
    let host = Host::start("page::strange::strange", PROGRAM);
    let server = Server::of(host.runtime(), host.pid());
    (host, server)
}

/// A name as the page shows it.
fn shown(name: &str) -> String {
    name.replace('\u{202e}', "\\u{202e}")
}

#[test]
fn names_with_markup_stay_text() {
    let Some(browser) = Browser::start() else { return };
    let (host, server) = strange();
    let mut visit = Visit::start(browser, &server, "");
    let pid = host.pid();
    visit.shows(".sizer", &["<img src=x"]);
    visit.go(&format!("p={pid}&v=groups"));
    let names = NAMES.map(shown);
    visit.shows(".sizer", &names.each_ref().map(String::as_str));
    visit.shows("#process", &["<img src=x"]);
    for name in NAMES {
        let place = Value::from(name);
        visit.browser.value(&format!("void route.go({{ p: '{pid}', v: 'groups', group: {place} }})"));
        visit.shows(".detail h2", &[&shown(name)]);
        visit.browser.value(
            "document.querySelectorAll('.line .cell').forEach((cell) => \
             cell.dispatchEvent(new MouseEvent('mousemove', { bubbles: true })))",
        );
    }
    visit.go(&format!("p={pid}&v=keys"));
    visit.shows(".sizer", &[KEY, PROBE]);
    visit.browser.picture("strange-keys");
    visit.browser.value(&format!(
        "void page.view.choose(page.view.keys.find(({{ name }}) => name === {}))",
        Value::from(KEY)
    ));
    visit.shows("#confirm-text", &[KEY, "1 key with 1 site"]);
    visit.click("#confirm-no");
    visit.go(&format!("p={pid}&v=trace&glob=%3Csvg*"));
    visit.until("page.name === 'trace'");
    visit.browser.value("void page.view.start()");
    visit.shows(".sizer", &[PROBE, "text=<img src=x onerror=window.hit=1>"]);
    visit.click("button.main");
    visit.go(&format!("p={pid}&v=tasks"));
    visit.shows(".sizer", &[NAMES[0]]);
    visit.go(&format!("p={pid}&v=flame&s=1"));
    visit.until("page.name === 'flame'");
    visit.browser.value("page.view.record()");
    visit.until("page.view.data");
    visit.go(&format!("p={pid}&v=watches&what=%3Cb%3E"));
    visit.until("page.name === 'watches'");
    visit.browser.value("void page.view.start()");
    visit.until("page.view.stream && !page.view.stream.running");
    assert_eq!(
        visit
            .browser
            .value("document.querySelectorAll('main img, main svg, main b > b, main script').length"),
        0
    );
    visit.assert_calm();
    // Were one to become markup, the policy would not let it run.
    visit.browser.value(
        "for (const name of ['script', 'style']) {
            const foreign = document.createElement(name);
            foreign.textContent = name === 'script' ? 'window.hit = 1' : 'body { opacity: 0.5 }';
            document.body.append(foreign);
        }",
    );
    assert_eq!(
        visit.browser.value("[window.hit ?? 0, getComputedStyle(document.body).opacity].join()"),
        "0,1"
    );
}

#[test]
fn ten_thousand_tasks_are_few_elements() {
    let Some(browser) = Browser::start() else { return };
    let (host, server) = strange();
    let mut visit = Visit::start(browser, &server, &format!("p={}&v=tasks", host.pid()));
    visit.until(&format!("page.view?.tasks?.length >= {TASKS}"));
    visit.until("document.querySelectorAll('.sizer .line').length > 10");
    let scroll = "(async () => {
        const rows = document.querySelector('.rows');
        let most = 0;
        let slowest = 0;
        for (let step = 0; step <= 200; step++) {
            rows.scrollTop = (step / 200) * rows.scrollHeight;
            const begun = performance.now();
            page.view.grid.draw();
            slowest = Math.max(slowest, performance.now() - begun);
            most = Math.max(most, document.querySelectorAll('*').length);
        }
        const last = document.querySelector('.sizer').lastElementChild.id;
        return { most, slowest, last, high: rows.scrollHeight };
    })()";
    let seen = visit.browser.value(scroll);
    assert!(seen["most"].as_u64().unwrap() < 1500, "{seen}");
    assert!(seen["high"].as_u64().unwrap() >= 30 * TASKS as u64, "{seen}");
    // A frame has 16 ms; a machine that does much else has a few times that.
    assert!(seen["slowest"].as_f64().unwrap() < 100.0, "{seen}");
    visit.browser.value("void page.view.grid.focus()");
    visit.browser.press("End");
    visit.until(&format!(
        "document.activeElement.getAttribute('aria-activedescendant').endsWith('-{}')",
        TASKS - 1
    ));
    visit.browser.press("/");
    visit.browser.write("onmouseover");
    visit.until(&format!("page.view.grid.rows.length === {}", TASKS / NAMES.len()));
    visit.assert_calm();
}

#[test]
fn token_is_asked_for_and_not_kept() {
    let Some(browser) = Browser::start() else { return };
    let (host, server) = strange();
    let mut visit = Visit::without_token(browser, &server);
    visit.shows("main", &["This page needs the token"]);
    visit.browser.write("wrong");
    visit.browser.press("Enter");
    visit.shows("main", &["does not take this token"]);
    visit.browser.picture("token");
    visit.browser.write(TOKEN);
    visit.browser.press("Enter");
    visit.shows(".sizer", &[&host.pid().to_string()]);
    // It comes in the address, too, and leaves it at once.
    visit.go(&format!("token={TOKEN}"));
    visit.until("location.hash === '' || location.hash === '#'");
    assert_eq!(visit.browser.value("document.cookie"), "");
}
