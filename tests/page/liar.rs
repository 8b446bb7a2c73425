//! An agent that lies to the server: each string that it sends is markup, each number is one that
//! no service has.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use dormouse_testkit::Browser;
use serde_json::{Value, json};

use super::stand::{Host, Server, Visit};

/// A string that runs where a page takes it for markup.
const MARKUP: &str = "<img src=x onerror=window.hit=1>\"'`${window.hit=1}</script><script>window.hit=1</script>\u{202e}\n\0\u{1b}[31m";
const MOST: u64 = u64::MAX;

/// The service, which ends with its standard input.
#[test]
#[ignore = "the service of other tests"]
fn liar() {
    let runtime = std::env::var("DORMOUSE_RUNTIME_DIR").expect("a directory");
    let directory = Path::new(&runtime).join("dormouse");
    std::fs::create_dir(&directory).expect("a directory");
    let path = directory.join(format!("{}.sock", std::process::id()));
    let listener = UnixListener::bind(path).expect("a socket");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(|| converse(&mut BufReader::new(stream)));
        }
    });
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
    std::process::exit(0);
}

fn converse(stream: &mut BufReader<UnixStream>) {
    let (mut line, mut asked) = (String::new(), 0);
    while stream.read_line(&mut line).is_ok_and(|length| length > 0) {
        let request: Value = serde_json::from_str(&line).expect("a request");
        line.clear();
        asked += 1;
        let (id, said) = (&request["id"], answer(request["op"].as_str().unwrap_or_default(), asked));
        let answer = match said {
            Some(answer) => json!({"v": 1, "id": id, "ok": answer}),
            None => json!({"v": 1, "id": id, "error": {"code": "bad-request", "message": MARKUP}}),
        };
        if stream.get_mut().write_all(format!("{answer}\n").as_bytes()).is_err() {
            return;
        }
    }
}

/// `None`: an error, whose message is markup.
fn answer(op: &str, asked: u64) -> Option<Value> {
    Some(match op {
        "hello" => json!({
            "protocol": 1, "version": MARKUP, "pid": 1, "start_ticks": MOST, "name": MARKUP, "exe": MARKUP,
            "uid": 0, "keys": MOST, "sites": MOST,
            "ops": ["count", "doctor", "events", "keys", "notices", "off", "on", "places", "profile", "slots",
                    "stat", "tasks", "trace", "triggers", "waits", "watch", MARKUP],
        }),
        "stat" => stat(asked),
        "events" => json!({"events": [{"name": "task-clock", "unit": "ns", "pmu": "clock"},
                                      {"name": MARKUP, "unit": MARKUP, "pmu": MARKUP}]}),
        "count" => json!({"counted": [{"name": MARKUP, "unit": MARKUP, "pmu": MARKUP}]}),
        "waits" => json!({"places": true, "cpu": true}),
        "keys" => json!({"keys": [{
            "name": MARKUP, "kind": "probe", "on": true, "baseline": true, "initial": false, "leases": u32::MAX,
            "held": [{"leases": u32::MAX, "by": "client", "uid": 1, "pid": 1, "left_ms": MOST}],
            "off_in_ms": MOST, "sites": 1, "file": MARKUP, "line": 1, "object": MARKUP, "fields": [MARKUP],
        }]}),
        _ => return None,
    })
}

fn stat(asked: u64) -> Value {
    let times = json!({
        "scale": 4, "unit_ns": 1, "zero_threshold_ns": 1, "zero_count": MOST,
        "buckets": [[5, MOST], [4, 3], [4, 3], [i32::MAX, 1]], "max_ns": MOST, "sum_ns": MOST,
        "exemplars": [{"index": 5, "task": MOST, "duration_ns": MOST, "unix_ns": MOST,
                       "trace_id": MARKUP, "span_id": MARKUP}],
    });
    let group = |id: u64, name: &str, value: u64| {
        json!({
            "id": id, "name": name, "cpu_ns": value, "entries": value, "alive": value, "started": value,
            "finished": value, "requests": value, "polls": value,
            "counts": [{"event": MARKUP, "value": value, "enabled_ns": 1, "running_ns": 0}],
            "waits": {"poll_ns": value, "runnable_ns": value, "await_ns": value, "polls": times,
                      "delays": times, "awaits": times, "requests": times},
        })
    };
    let swings = if asked.is_multiple_of(2) { MOST } else { 0 };
    json!({
        "mono_ns": asked * 1_000_000_000, "took_ns": MOST, "process_cpu_ns": swings,
        "unattributed_cpu_ns": swings, "keys_on": MOST, "dropped": MOST,
        "groups": [group(1, MARKUP, swings), group(2, "", 3), group(3, MARKUP, 7), group(3, "twice", asked)],
        "threads": [{"tid": u32::MAX, "name": MARKUP, "cpu_ns": MOST}],
        "clock": {"tier": MARKUP, "error_bound_ns": MOST},
    })
}

#[test]
fn what_an_agent_says_stays_text() {
    let Some(browser) = Browser::start() else { return };
    let host = Host::start("page::liar::liar", "liar");
    let server = Server::of(host.runtime(), host.pid());
    let mut visit = Visit::start(browser, &server, "");
    let pid = host.pid();
    visit.shows(".sizer", &[&pid.to_string()]);
    visit.go(&format!("p={pid}&v=groups"));
    visit.shows(".sizer", &["<img src=x", "twice"]);
    let name = Value::from(MARKUP);
    visit.browser.value(&format!("void route.go({{ p: '{pid}', v: 'groups', group: {name} }})"));
    visit.until("document.querySelector('.detail h2')");
    visit.until("page.live?.ticks.length > 2");
    visit.go(&format!("p={pid}&v=keys"));
    visit.shows(".sizer", &["<img src=x"]);
    for (view, begin) in [
        ("tasks", None),
        ("flame&s=1", Some("page.view.record()")),
        ("watches&what=%3Cb%3E", Some("void page.view.start()")),
        ("trace&glob=*", Some("void page.view.start()")),
        ("doctor", None),
    ] {
        visit.go(&format!("p={pid}&v={view}"));
        let name = view.split('&').next().expect("a view");
        visit.until(&format!("page.name === '{name}'"));
        if let Some(begin) = begin {
            visit.browser.value(begin);
        }
        // The refusal that the agent has written, as far as it is shown.
        visit.shows("body", &["<img src=x"]);
        visit.browser.picture(&format!("liar-{name}"));
    }
    let foreign = "document.querySelectorAll('main img, main svg, main script, body > img').length";
    assert_eq!(visit.browser.value(foreign), 0);
    visit.assert_calm();
}
