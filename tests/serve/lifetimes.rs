//! Services that come, go, stop and get stuck while they are served.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dormouse_testkit::eventually;
use rustix::process::Signal;
use serde_json::Value;

use super::asking::Serving;
use super::odd::Odd;
use crate::support::{DORMOUSE, HANG, Service, command, signal_to};

#[test]
fn a_stopped_service_costs_a_second_once() {
    let (stopped, fine) = (Service::visited(), Service::visited());
    let serving = Serving::of([stopped.pid(), fine.pid()]);
    let up = |serving: &Serving, service: &Service, value: u8| {
        let wanted = format!("dormouse_up{{process=\"teaparty\",pid=\"{}\"}} {value}", service.pid());
        serving.get("/metrics").text().contains(&wanted)
    };
    assert!(up(&serving, &stopped, 1) && up(&serving, &fine, 1));
    let mut live = serving.stream(&format!("/api/processes/{}/live", stopped.pid()));
    assert_eq!(live.await_event("sample")["full"], true);
    stopped.signal(Signal::STOP);
    live.await_event("silent");
    // It has been waited for: nobody waits for it again.
    let start = Instant::now();
    for _ in 0..20 {
        assert!(up(&serving, &stopped, 0) && up(&serving, &fine, 1));
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?} for 40 scrapes", start.elapsed());
    stopped.signal(Signal::CONT);
    assert_eq!(live.await_event("sample")["full"], false, "the conversation goes on");
    assert!(up(&serving, &stopped, 1));
}

#[test]
fn the_end_of_a_service_ends_its_streams() {
    let mut service = Service::visited();
    let serving = Serving::of([service.pid()]);
    let mut live = serving.stream(&format!("/api/processes/{}/live", service.pid()));
    let mut trace =
        serving.posted_stream(&format!("/api/processes/{}/trace", service.pid()), r#"{"glob":"menu.*"}"#);
    live.await_event("sample");
    trace.next().expect("a start");
    service.kill();
    live.await_event("end");
    assert!(live.next().is_none());
    assert_eq!(trace.await_event("error")["error"]["kind"], "failed");
    let start = Instant::now();
    while serving.get(&format!("/api/processes/{}/keys", service.pid())).status != 404 {
        assert!(start.elapsed() < HANG);
    }
    assert!(!serving.get("/metrics").text().contains(&format!("pid=\"{}\"", service.pid())));
}

#[test]
fn the_end_of_the_server_ends_its_streams() {
    let service = Service::visited();
    let mut serving = Serving::of([service.pid()]);
    let mut live = serving.stream(&format!("/api/processes/{}/live", service.pid()));
    let mut trace =
        serving.posted_stream(&format!("/api/processes/{}/trace", service.pid()), r#"{"glob":"menu.*"}"#);
    live.await_event("sample");
    trace.next().expect("a start");
    let end = std::thread::scope(|scope| {
        let end = scope.spawn(|| serving.end());
        assert_eq!(live.await_event("end")["ended"], false);
        trace.await_event("end");
        end.join().expect("its end")
    });
    assert_eq!(end, Some(0));
}

#[test]
fn services_that_come_later_are_found() {
    let program = tempfile::Builder::new().prefix("later").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
    let path = program.as_ref().expect("a place").path().join("latecomer");
    std::fs::hard_link(DORMOUSE, &path).expect("a second name for the command");
    let serving = Serving::of(["latecomer"]);
    assert_eq!(serving.get("/api/processes").json()["processes"].as_array().map(Vec::len), Some(0));
    for _ in 0..2 {
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let service = Service::start_as(path.as_os_str(), runtime, |_| {}).expect("a service");
        let start = Instant::now();
        while serving.get("/api/processes").json()["processes"][0]["agent"]["pid"] != service.pid() {
            assert!(start.elapsed() < HANG, "{}", serving.get("/api/processes").text());
        }
        let row = &serving.get("/api/processes").json()["processes"][0];
        assert_eq!(row["start_ticks"], row["agent"]["start_ticks"]);
        assert_eq!(serving.get("/api/processes/latecomer/keys").status, 200);
        drop(service);
    }
}

/// The service, which ends with its standard input.
#[test]
#[ignore = "a service for another test"]
fn stuck() {
    let _agent = dormouse::init().expect("an agent");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let (blocked, blocks) = std::sync::mpsc::channel();
    for _ in 0..2 {
        let blocked = blocked.clone();
        runtime.spawn(async move {
            blocked.send(()).expect("somebody who waits");
            loop {
                std::thread::park();
            }
        });
        blocks.recv().expect("a worker that is blocked");
    }
    println!("ready");
    let _ = std::io::stdin().lines().count();
    std::process::exit(0);
}

#[test]
fn a_service_whose_runtime_is_stuck_is_served() {
    let stuck = Odd::start("serve::lifetimes::stuck");
    let pid = stuck.pid();
    let serving = Serving::of([pid]);
    assert!(serving.get("/metrics").text().contains(&format!("pid=\"{pid}\"}} 1")));
    for path in ["keys", "stat?for=10ms", "tasks?for=10ms", "profile?for=10ms"] {
        assert_eq!(serving.get(&format!("/api/processes/{pid}/{path}")).status, 200, "{path}");
    }
}

#[test]
fn a_name_without_a_service_is_told() {
    let mut serving = command(["serve", "--listen", "127.0.0.1:0", "no-such-service"]);
    let mut serving = serving.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a server");
    let lines = BufReader::new(serving.stderr.take().expect("its messages")).lines();
    let mut lines = lines.map(|line| line.expect("a line"));
    assert!(lines.any(|line| line.contains("no service is no-such-service now")));
    signal_to(serving.id(), Signal::TERM);
    assert!(serving.wait().expect("its end").success());
}

/// The variable that a program has which has executed itself.
const AGAIN: &str = "AGAIN";

/// A service that executes itself at each line of its standard input.
#[test]
#[ignore = "a service for another test"]
fn renamed() {
    let _agent = dormouse::init().expect("an agent");
    let again = std::env::var_os(AGAIN).is_some();
    let _group = dormouse::Group::new(if again { "after" } else { "before" });
    println!("ready");
    if std::io::stdin().read_line(&mut String::new()).is_ok_and(|length| length > 0) {
        // The one who read its output may have gone.
        let mut same = Command::new(std::env::current_exe().expect("this program"));
        panic!("{}", same.args(std::env::args().skip(1)).env(AGAIN, "1").stdout(Stdio::null()).exec());
    }
    std::process::exit(0);
}

#[test]
fn an_agent_under_another_name_is_found_again() {
    let mut renamed = Odd::without_directory("serve::lifetimes::renamed");
    let serving = Serving::of([renamed.pid()]);
    let start = Instant::now();
    let has = |group: &str| {
        let text = serving.get("/metrics").text();
        assert!(start.elapsed() < HANG, "{text}");
        text.contains(&format!("group=\"{group}\""))
    };
    assert!(has("before"));
    let of_process = format!("/{}.", renamed.pid());
    let socket = || {
        let table = std::fs::read_to_string("/proc/net/unix").expect("the table of sockets");
        let mut names = table.split_whitespace().filter(|name| name.starts_with("@dormouse-"));
        names.find(|name| name.contains(&of_process)).map(str::to_owned)
    };
    let before = socket().expect("an abstract name");
    renamed.tell();
    // The server does not see the process without an agent: that would be a new service.
    eventually(|| socket().is_some_and(|now| now != before));
    while !has("after") {}
}

/// An agent that says wild things: names with everything in them, numbers without a limit.
#[test]
#[ignore = "a service for another test"]
fn wild() {
    let runtime = std::env::var("DORMOUSE_RUNTIME_DIR").expect("a directory");
    let directory = std::path::Path::new(&runtime).join("dormouse");
    std::fs::create_dir(&directory).expect("a directory");
    let pid = std::process::id();
    let listener = UnixListener::bind(directory.join(format!("{pid}.sock"))).expect("a socket");
    println!("ready");
    // Too long for each line of a scrape.
    let name = format!(r#"a\u0000b\"\\\n</script>\u2028{}"#, "a".repeat(100_000));
    for stream in listener.incoming() {
        let mut stream = BufReader::new(stream.expect("a client"));
        let mut line = String::new();
        while stream.read_line(&mut line).is_ok_and(|length| length > 0) {
            let asked: Value = serde_json::from_str(&line).expect("a request");
            line.clear();
            let most = u64::MAX;
            let wild = format!(
                r#"{{"scale":99,"unit_ns":0,"zero_threshold_ns":{most},"zero_count":{most},
                "buckets":[[2147483647,{most}],[-2147483648,{most}],[3,{most}],[3,1]],"max_ns":{most}}}"#
            );
            let waits = format!(
                r#"{{"poll_ns":{most},"runnable_ns":{most},"await_ns":{most},"polls":{wild},"delays":{wild},
                "awaits":{wild},"requests":{wild}}}"#
            );
            let group = format!(
                r#"{{"id":1,"name":"{name}","cpu_ns":{most},"entries":{most},"alive":{most},"started":{most},
                "finished":{most},"requests":{most},"polls":{most},"waits":{waits},
                "counts":[{{"event":"{name}","value":{most},"enabled_ns":0,"running_ns":0}}]}}"#
            );
            let answer = match asked["op"].as_str().expect("an operation") {
                "hello" => format!(
                    r#"{{"protocol":1,"version":"{name}","pid":{pid},"start_ticks":{most},"name":"{name}",
                    "exe":"/x","uid":0,"keys":1,"sites":1,"ops":["count","events","waits","stat"]}}"#
                ),
                "events" => r#"{"events":[{"name":"task-clock","unit":"ns","pmu":"clock"}]}"#.into(),
                "count" => r#"{"counted":[]}"#.into(),
                "waits" => "{}".into(),
                _ => format!(
                    r#"{{"mono_ns":{most},"took_ns":{most},"process_cpu_ns":{most},"unattributed_cpu_ns":0,
                    "groups":[{group},{group}],"threads":[],"keys_on":1,"dropped":{most}}}"#
                ),
            };
            let answer = format!(r#"{{"v":1,"id":{},"ok":{answer}}}"#, asked["id"]).replace('\n', "") + "\n";
            let _ = stream.get_mut().write_all(answer.as_bytes());
        }
    }
}

#[test]
fn a_wild_agent_harms_no_scrape_of_others() {
    let (wild, fine) = (Odd::start("serve::lifetimes::wild"), Service::visited());
    let serving = Serving::of([wild.pid(), fine.pid()]);
    for accept in ["text/plain;version=0.0.4", "application/openmetrics-text;version=1.0.0"] {
        let more = format!("Accept: {accept}\r\nConnection: close\r\n");
        let scrape = serving.ask(serving.head("GET", "/metrics", &more)).expect("an answer");
        assert_eq!(scrape.status, 200, "{scrape:?}");
        let text = String::from_utf8(scrape.body).expect("UTF-8");
        assert!(text.contains(&format!("dormouse_up{{process=\"teaparty\",pid=\"{}\"}} 1", fine.pid())));
        assert!(text.len() < 200_000, "{}", text.len());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(!line.contains('\0') && line.starts_with("dormouse_"), "{line:?}");
            let value = line.rsplit("} ").next().expect("a value").split(' ').next();
            assert!(value.is_some_and(|value| value.parse::<f64>().is_ok()), "{line:?}");
        }
    }
    let listed = serving.get("/api/processes").json();
    assert_eq!(listed["processes"].as_array().map(Vec::len), Some(2), "{listed}");
}

#[test]
fn slow_requests_are_exemplars() {
    let service = Service::visited();
    let serving = Serving::of([service.pid()]);
    let more = "Accept: application/openmetrics-text;version=1.0.0\r\nConnection: close\r\n";
    let start = Instant::now();
    loop {
        let scrape = serving.ask(serving.head("GET", "/metrics", more)).expect("an answer").text();
        if scrape.lines().any(|line| line.contains("_bucket{") && line.contains("# {")) {
            break;
        }
        assert!(start.elapsed() < HANG, "{scrape}");
    }
}
