//! Every view shows what its process does.

use dormouse_testkit::Browser;
use rustix::process::Signal;

use super::stand::{Host, Server, Visit};
use crate::locks::LockingService;
use crate::support::{Service, skip};

fn busy() -> (Service, Server) {
    let service = Service::visited();
    let server = Server::of(service.runtime(), service.pid());
    (service, server)
}

#[test]
fn groups_show_what_the_service_does() {
    let Some(browser) = Browser::start() else { return };
    let (service, server) = busy();
    let mut visit = Visit::start(browser, &server, "");
    visit.shows(".sizer", &[&service.target(), "teaparty"]);
    visit.browser.picture("processes");
    visit.click(".sizer a");
    visit.shows(".sizer", &["GET /menu", "POST /orders", "connections"]);
    visit.shows("#status", &["live"]);
    visit.shows("#coverage", &["of it in groups", "threads", "keys on", "no record dropped"]);
    visit.until(
        "page.live.rows(10).some((row) => row.name === 'GET /menu' && row.requests_per_s > 0 && \
         row.cpu_percent > 0 && row['latency.p50'] > 0 && row['latency.p99'] >= row['latency.p50'])",
    );
    visit.until(
        "page.live.rows(10).find(({ name }) => name === 'GET /menu').spent.every((part) => part >= 0)",
    );
    visit.browser.picture("groups");
    visit.go(&format!("p={}&v=groups&group=GET+/menu", service.pid()));
    visit.shows(".detail", &["GET /menu", "requests ended", "Latency", "Await"]);
    visit.until("document.querySelectorAll('.detail .uplot canvas').length === 2");
    visit.until("page.view.detail.heat.columns?.filter(({ counts }) => counts.size).length > 2");
    visit.until("Number(document.querySelector('.waits tbody td').textContent.replace(/,/g, '')) > 0");
    visit.browser.picture("group");
    // One step back is the table alone.
    visit.browser.value("void history.back()");
    visit.until("document.querySelector('.detail').hidden");
    visit.browser.value("void history.forward()");
    visit.shows(".detail", &["GET /menu"]);
    visit.assert_calm();
}

#[test]
fn a_process_that_answers_late_is_one_row() {
    let Some(browser) = Browser::start() else { return };
    let (_service, server) = busy();
    let mut visit = Visit::start(browser, &server, "");
    visit.until("page.view?.grid.answered");
    let ended = visit.browser.value(
        "(({ view }) => { view.poll.close(); const row = { pid: 7, start_ticks: 9, name: 'tea', uid: 0 }; \
         view.take([{ ...row, refused: { kind: 'failed', message: 'no answer yet' } }]); \
         view.take([{ ...row, agent: { start_ticks: 9 } }]); \
         return [...view.seen.values()].filter(({ pid }) => pid === 7).map(({ ended }) => ended); })(page)",
    );
    assert_eq!(ended, serde_json::json!([false]));
}

#[test]
fn large_numbers_keep_their_digits() {
    let Some(browser) = Browser::start() else { return };
    let (service, server) = busy();
    let mut visit = Visit::start(browser, &server, &format!("p={}&v=trace&glob=menu.*", service.pid()));
    visit.until("page.name === 'trace'");
    let record =
        r#"{"type":"record","probe":"pot","tid":7,"thread":"main","time_unix_ns":1764460800123456789"#;
    let fields = r#""fields":{"tea":18446744073709551615,"cups":-2}}"#;
    visit.browser.value(&format!(
        "void ((real, end) => (window.fetch = (path, ...rest) => String(path).includes('/trace') \
         ? Promise.resolve(new Response('data: {record},{fields}' + end + end)) \
         : real(path, ...rest)))(window.fetch, String.fromCharCode(10))"
    ));
    visit.browser.value("void page.view.start()");
    visit.shows(".sizer", &["pot", "tea=18446744073709551615", "cups=-2"]);
    let row = r#"JSON.parse('{"old":1,"new":18446744073709551615}', exact)"#;
    assert_eq!(visit.browser.value(&format!("values({row})")), "1 → 0xffffffffffffffff");
}

#[test]
fn locks_show_who_holds_them() {
    let Some(browser) = Browser::start() else { return };
    let service = LockingService::start(&[]);
    let server = Server::of(service.runtime(), service.pid());
    let mut visit = Visit::start(browser, &server, &format!("p={}&v=tasks", service.pid()));
    visit.until("page.view?.parts[1].button.offsetWidth > 0");
    visit.browser.value("void page.view.parts[1].button.click()");
    visit.until(
        "page.view.parts[1].grid.rows.some((row) => row.lock === 'Index' && row.held.includes('GET /blend') \
         && row.by.includes('POST /orders') && row.waited > 0 && row.wait_p99_ns > 0 && \
         row.blamed.includes(' at locks.rs:'))",
    );
    visit.shows("main", &["Locks were noted for ", "Index", "locks.rs:", "GET /blend", "POST /orders"]);
    visit.browser.picture("locks");
    visit.assert_calm();
}

#[test]
fn a_deadlock_shows_its_stacks() {
    let Some(browser) = Browser::start() else { return };
    let service = LockingService::start(&[("DORMOUSE_LOCKS", "1"), ("DEADLOCK", "threads")]);
    let server = Server::of(service.runtime(), service.pid());
    let mut visit = Visit::start(browser, &server, &format!("p={}&v=tasks", service.pid()));
    visit.until("page.view?.parts[1].button.offsetWidth > 0");
    visit.browser.value("void page.view.parts[1].button.click()");
    visit.until(
        "['left', 'right'].every((side) => page.view.parts[1].grid.rows.some((row) => \
         row.lock.startsWith('deadlock') && row.by === `GET /${side}` && \
         row.stack.some((line) => line.includes(`locks::${side}`))))",
    );
    visit.shows("main", &["1 deadlock.", "GET /left", "GET /right"]);
    visit.assert_calm();
}

/// The page's figures are those of the command.
#[test]
fn totals_agree_with_the_service() {
    let Some(browser) = Browser::start() else { return };
    let (service, server) = busy();
    let mut visit = Visit::start(browser, &server, &format!("p={}", service.pid()));
    visit.until("page.live?.ticks.length > 4");
    let agree = "(() => {
        const { live } = page;
        const { cpu_percent: cpu, in_groups_percent: share } = live.windows.at(-1);
        const parts = live.rows(600).reduce((all, row) => all + row.cpu_percent, 0);
        return { sum: (cpu * share) / 100, parts };
    })()";
    let seen = visit.browser.value(agree);
    let [sum, parts] = ["sum", "parts"].map(|name| seen[name].as_f64().unwrap());
    assert!(sum > 0.0 && (parts - sum).abs() < 0.1 * sum, "{seen}");
    visit.assert_calm();
}

#[test]
fn trace_shows_records_while_it_runs() {
    let Some(browser) = Browser::start() else { return };
    let (service, server) = busy();
    let place = format!("p={}&v=trace&glob=menu.read", service.pid());
    let mut visit = Visit::start(browser, &server, &place);
    // A link alone traces nothing.
    visit.shows("main", &["A trace switches its probes on"]);
    assert_eq!(service.keys_on("menu.read"), 0);
    visit.click("button.main");
    visit.shows(".sizer", &["menu.read", "GET /menu", "items="]);
    visit.shows("main .facts", &["1 key on"]);
    visit.browser.press("Escape");
    visit.browser.picture("trace");
    visit.go(&format!("p={}&v=groups", service.pid()));
    visit.until("page.name === 'groups'");
    service.await_keys_on("menu.read", |on| on == 0);
    visit.assert_calm();
}

#[test]
fn other_views_show_their_documents() {
    let Some(browser) = Browser::start() else { return };
    let (service, server) = busy();
    let pid = service.pid();
    let mut visit = Visit::start(browser, &server, &format!("p={pid}&v=tasks"));
    visit.shows(".sizer", &["connections", "awaiting"]);
    visit.shows("main .facts", &["tasks known", "costs the service a stack at each wait"]);
    visit.browser.picture("tasks");
    visit.go(&format!("p={pid}&v=flame&s=1"));
    visit.until("page.name === 'flame'");
    visit.click("button.main");
    visit.until("page.view.graph?.tree.whole > 0");
    visit.shows("main .facts", &["samples in"]);
    visit.until("[...page.view.group.options].some(({ text }) => text === 'GET /blend')");
    visit.browser.picture("flame");
    visit.go(&format!("p={pid}&v=watches"));
    visit.shows(".slots", &["debug register"]);
    visit.browser.picture("watches");
    visit.go(&format!("p={pid}&v=doctor"));
    visit.shows(".checks", &["keys.sites", "sites of"]);
    visit.browser.picture("doctor");
    visit.assert_calm();
}

#[test]
fn flames_mark_where_a_stack_is_cut() {
    let Some(browser) = Browser::start() else { return };
    let host = Host::start("page::strange::strange", "deep");
    let server = Server::of(host.runtime(), host.pid());
    let mut visit = Visit::start(browser, &server, &format!("p={}&v=flame&s=1", host.pid()));
    visit.until("page.name === 'flame'");
    visit.click("button.main");
    visit.until("page.view.graph?.tree.whole > 0");
    visit.shows("main .facts", &["stacks cut"]);
    let mark = "(deeper than 512 frames)";
    visit.until(&format!("page.view.graph.rows.flat().some(({{ box }}) => box?.label === '{mark}')"));
    visit.browser.picture("flame-cut");
    visit.assert_calm();
}

#[test]
fn watch_shows_hits_and_their_places() {
    let Some(browser) = Browser::start() else { return };
    let (service, server) = busy();
    let place = format!("p={}&v=watches&what=dormouse_teaparty::tally::TALLY:8", service.pid());
    let mut visit = Visit::start(browser, &server, &place);
    visit.shows(".slots", &["debug register"]);
    visit.click("button.main");
    visit.until("page.view.seen > 3 || !page.view.stream.running");
    if visit.browser.value("page.view.seen") == 0 {
        return skip(visit.browser.text("page.view.told.textContent"));
    }
    visit.shows(".halves", &["POST /orders", "→", "atomic"]);
    visit.shows("main .facts", &["is watched"]);
    visit.browser.picture("watch");
    visit.click("button.main");
    visit.shows("main .facts", &["Stopped"]);
    visit.shows(".slots", &["debug register"]);
    visit.assert_calm();
}

#[test]
fn ended_process_is_marked_and_kept() {
    let Some(browser) = Browser::start() else { return };
    let (mut service, server) = busy();
    let mut visit = Visit::start(browser, &server, &format!("p={}", service.pid()));
    visit.shows(".sizer", &["GET /menu"]);
    visit.until("page.live.ticks.length > 1");
    service.kill();
    visit.shows("#status", &["ended"]);
    visit.shows("#notice", &["the last that came"]);
    visit.shows(".sizer", &["GET /menu"]);
    visit.browser.picture("ended");
    visit.browser.press("Escape");
    visit.until("page.name === 'processes'");
}

#[test]
fn stopped_process_is_told_and_found_again() {
    let Some(browser) = Browser::start() else { return };
    let (service, server) = busy();
    let mut visit = Visit::start(browser, &server, &format!("p={}", service.pid()));
    visit.until("page.live?.ticks.length > 1");
    service.signal(Signal::STOP);
    visit.shows("#status", &["silent"]);
    visit.shows("#notice", &["does not answer"]);
    service.signal(Signal::CONT);
    visit.shows("#status", &["live"]);
    visit.until("document.getElementById('notice').hidden");
    visit.assert_calm();
}

#[test]
fn page_finds_its_server_again() {
    let Some(browser) = Browser::start() else { return };
    let (service, mut server) = busy();
    let mut visit = Visit::start(browser, &server, &format!("p={}", service.pid()));
    visit.until("page.live?.ticks.length > 1");
    server.end();
    visit.shows("#status", &["disconnected"]);
    visit.shows(".sizer", &["GET /menu"]);
    let again = Server::at(service.runtime(), service.pid(), server.address());
    visit.shows("#status", &["live"]);
    visit.until("document.getElementById('notice').hidden");
    drop(again);
}

#[test]
fn hidden_page_asks_for_nothing() {
    let Some(browser) = Browser::start() else { return };
    let (service, server) = busy();
    let mut visit = Visit::start(browser, &server, &format!("p={}", service.pid()));
    visit.until("page.live?.ticks.length > 1");
    let hide = |hidden: bool| {
        format!(
            "void (Object.defineProperty(document, 'hidden', {{ value: {hidden}, configurable: true }}), \
             document.dispatchEvent(new Event('visibilitychange')))"
        )
    };
    visit.browser.value(&hide(true));
    assert_eq!(visit.browser.value("page.live.controller.signal.aborted"), true);
    let before = visit.browser.value("page.live.ticks.length");
    visit.browser.value(&hide(false));
    visit.until(&format!("page.live.ticks.length > {before}"));
    visit.assert_calm();
}
