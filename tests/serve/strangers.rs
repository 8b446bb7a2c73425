//! A server of root's beside services of a user who means harm.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Instant;

use dormouse_testkit::eventually;
use serde_json::Value;

use super::asking::Serving;
use super::odd::Odd;
use crate::support::{HANG, NOBODY, Service, skip};

/// The service, which behaves as `MANNER` has it.
#[test]
#[ignore = "a service for another test"]
fn stranger() {
    let runtime = std::env::var("DORMOUSE_RUNTIME_DIR").expect("a directory");
    let manner = std::env::var("MANNER").expect("a manner");
    // The name of the honest service.
    std::fs::write("/proc/self/comm", "teaparty").expect("a name");
    let directory = Path::new(&runtime).join("dormouse");
    std::fs::create_dir(&directory).expect("a directory");
    let path = directory.join(format!("{}.sock", std::process::id()));
    let listener = UnixListener::bind(path).expect("a socket");
    println!("ready");
    // Within the bounds of an answer, and far longer once it is parsed.
    let profile = format!(r#"{{"part":{{"stacks":[0{}]}}}}"#, ",0".repeat(4_000_000));
    let answers: [&'static str; 2] = [stat(&manner).leak(), profile.leak()];
    let manner: &'static str = manner.leak();
    for stream in listener.incoming() {
        let stream = stream.expect("a client");
        std::thread::spawn(move || converse(&mut BufReader::new(stream), manner, answers));
    }
}

/// Claims to be process 1, from the far future.
const HELLO: &str = r#"{"protocol":1,"version":"VERSION","pid":1,"start_ticks":4611686018427387904,"name":"NAME",
    "exe":"/x","uid":0,"keys":1,"sites":1,"ops":["count","events","waits","stat","profile"]}"#;

fn converse(stream: &mut BufReader<UnixStream>, manner: &str, [stat, profile]: [&str; 2]) {
    let mut line = String::new();
    while stream.read_line(&mut line).is_ok_and(|length| length > 0) {
        let asked: Value = serde_json::from_str(&line).expect("a request");
        line.clear();
        let long = if manner == "names" { "n".repeat(1 << 20) } else { "teaparty".to_owned() };
        let hello;
        let answer = match asked["op"].as_str().expect("an operation") {
            _ if manner == "mute" => continue,
            "hello" => {
                hello = HELLO.replace("NAME", &long).replace("VERSION", &long).replace('\n', "");
                &hello
            }
            "events" => r#"{"events":[{"name":"task-clock","unit":"ns","pmu":"clock"}]}"#,
            "count" => r#"{"counted":[]}"#,
            "waits" => "{}",
            "profile" => r#"{"number":1}"#,
            "profile-report" => profile,
            // A service that could answer more than this would be silent for ever.
            "stat" if manner == "long" && asked["most_bytes"].as_u64().is_none_or(|n| n > 4 << 20) => {
                continue;
            }
            _ if manner == "notices" => {
                let notice = concat!(
                    r#"{"v":1,"note":{"thread":{"tid":1,"start":1,"name":"t"}}}"#,
                    "
"
                )
                .repeat(1000);
                while stream.get_mut().write_all(notice.as_bytes()).is_ok() {}
                return;
            }
            _ => stat,
        };
        let answer = format!(r#"{{"v":1,"id":{},"ok":{answer}}}"#, asked["id"]) + "\n";
        if stream.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// An answer to `stat` of that manner.
fn stat(manner: &str) -> String {
    let left_out = if manner == "long" { r#","left_out":{"histograms":true,"calls":12}"# } else { "" };
    let (groups, threads, tail, runtimes) = match manner {
        "groups" => (5_000, 0, 0, 0),
        "threads" => (1, 20_000, 0, 0),
        "endless" => (1, 0, 60 << 20, 0),
        "runtimes" => (1, 0, 0, 1_300_000),
        _ => (1, 0, 0, 0),
    };
    let group = |n: usize| {
        format!(
            r#"{{"id":{n},"name":"{n:0128}","cpu_ns":{most},"entries":1,"alive":1,"started":1,"finished":1,
            "requests":1,"polls":1,"counts":[{{"event":"{n}","value":1,"enabled_ns":0,"running_ns":0}}]}}"#,
            most = u64::MAX
        )
    };
    let groups: Vec<String> = (0..groups).map(group).collect();
    let threads = vec![r#"{"tid":1,"name":"t","cpu_ns":1}"#; threads].join(",");
    let stat = format!(
        r#"{{"mono_ns":1,"took_ns":1,"process_cpu_ns":1,"unattributed_cpu_ns":0,"groups":[{}],
        "threads":[{threads}],"keys_on":1,"dropped":0{left_out},"runtimes":[{}]{}}}"#,
        groups.join(","),
        vec!["{}"; runtimes].join(","),
        " ".repeat(tail)
    );
    stat.replace('\n', "")
}

#[test]
fn strangers_take_bounded_memory_and_nobodys_place() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can start services of other users");
    }
    let manners = ["groups", "threads", "endless", "names", "mute", "notices", "long", "runtimes"]
        .into_iter()
        .cycle()
        .take(24);
    let start = |manner| Odd::of_user(NOBODY, "serve::strangers::stranger", manner);
    let strangers: Vec<(&str, Odd)> = manners.map(|manner| (manner, start(manner))).collect();
    let own = Service::visited();
    let pids = strangers.iter().map(|(_, odd)| odd.pid()).chain([own.pid()]);
    let serving = Serving::of(pids);
    let up = format!("dormouse_up{{process=\"teaparty\",pid=\"{}\"}} 1", own.pid());
    let of = |text: &str, manner: &str, part: &str| {
        let mut odd =
            strangers.iter().filter(|(of, _)| *of == manner).map(|(_, odd)| format!("pid=\"{}\"", odd.pid()));
        odd.all(|pid| text.lines().any(|line| line.contains(&pid) && line.contains(part)))
    };
    let (start, mut down) = (Instant::now(), 0);
    let text = loop {
        let text = serving.get("/metrics").text();
        // A scrape waits for a second at most; on a busy machine some may come too early.
        down = if text.contains(&up) { 0 } else { down + 1 };
        assert!(down < 5, "beside {} bytes", text.len());
        let is_cut =
            of(&text, "groups", "dormouse_groups_left_out{") && of(&text, "endless", "user=\"nobody\"} 0");
        // Their rows are nowhere, and their number is.
        let is_cut = is_cut && serving.get("/api/processes").text().contains("notices, and no answer");
        if down == 0 && is_cut && of(&text, "threads", "user=\"nobody\"} 20000") && of(&text, "names", "…")
        {
            break text;
        }
        assert!(
            start.elapsed() < HANG,
            "{}",
            text.lines().filter(|line| !line.contains("group=")).collect::<Vec<_>>().join("\n")
        );
    };
    let is_own = |line: &str| {
        line.contains(&format!("pid=\"{}\"", own.pid()))
            || line.contains(&format!("pid=\"{}\"", serving.pid()))
    };
    for line in text.lines().filter(|line| !line.starts_with('#') && !is_own(line)) {
        assert!(line.contains("user=\"nobody\""), "{line}");
    }
    // The start comes from the kernel.
    let starts = text.lines().filter(|line| line.starts_with("dormouse_process_start_time_seconds{"));
    for line in starts {
        let start: f64 = line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a time");
        assert!(start < 4e9, "{line}");
    }
    let listed = serving.get("/api/processes");
    assert!(listed.body.len() < 100_000, "{}", listed.body.len());
    // The names of services mean one's own first.
    assert_eq!(serving.get("/api/processes/teaparty/keys").status, 200);
    // The page names the figures that a service leaves out.
    let left_out = |pid: u32| {
        let sample = serving.stream(&format!("/api/processes/{pid}/live")).await_event("sample");
        sample["left_out"].as_str().map(str::to_owned)
    };
    let (_, long) = strangers.iter().find(|(of, _)| *of == "long").expect("one of them");
    let notice = left_out(long.pid()).expect("a notice");
    assert!(notice.ends_with("polls, delays and awaits, 12 rows of calls"), "{notice}");
    assert_eq!(left_out(own.pid()), None);
    // A verb has a connection of its own, and the same budget.
    let (_, liar) = &strangers[0];
    let answer = serving.get(&format!("/processes/{}/debug/pprof/profile?seconds=1", liar.pid()));
    let text = answer.text();
    assert!(answer.status == 502 && text.contains("at most half of 256 MiB"), "{} {text}", answer.status);
    let most = serving.most_memory();
    assert!(most < 400 * 1024, "{most} kB");
    let limited =
        Serving::with(&["--user", "root"], strangers.iter().map(|(_, odd)| odd.pid()).chain([own.pid()]));
    eventually(|| limited.get("/metrics").text().contains(&up));
    assert_eq!(limited.get("/api/processes").json()["processes"].as_array().map(Vec::len), Some(1));
}
