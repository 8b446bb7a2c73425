//! The guides' lines and files, as they stand: tools that are not ours accept the files, and the
//! lines of the shell answer.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{DORMOUSE, HANG, Service, skip};
use dormouse_protocol::figures::{EVENT_FAMILIES, OTHER_EVENTS};
use tempfile::TempDir;

/// The blocks of a guide in this language.
fn blocks(guide: &str, language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide").join(guide);
    let page = std::fs::read_to_string(path).expect("a guide");
    let parts = page.split("```").skip(1).step_by(2);
    parts.filter_map(|block| block.strip_prefix(&format!("{language}\n"))).map(str::to_owned).collect()
}

/// Whether `promtool` accepts a file with this text.
fn promtool_accepts(check: &str, text: &str) -> Option<()> {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("prometheus.yml");
    std::fs::write(&file, text).expect("a file");
    let Ok(output) = Command::new("promtool").args(["check", check]).arg(&file).output() else {
        skip("promtool is not installed");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{}{said}", String::from_utf8_lossy(&output.stdout));
    Some(())
}

#[test]
fn promtool_accepts_rules_and_questions() {
    let all = blocks("metrics.md", "yaml");
    let rules: Vec<_> = all.iter().filter(|block| block.contains("- alert:")).collect();
    let [rules] = rules[..] else { panic!("the alerts") };
    if promtool_accepts("rules", rules).is_none() {
        return;
    }
    let questions = blocks("metrics.md", "promql");
    assert!(questions.len() >= 5);
    let record = |(n, question): (usize, &String)| {
        let expression: Vec<_> = question.lines().map(|line| format!("          {line}\n")).collect();
        format!("      - record: question:{n}\n        expr: |\n{}", expression.concat())
    };
    let all: String = questions.iter().enumerate().map(record).collect();
    promtool_accepts("rules", &format!("groups:\n  - name: questions\n    rules:\n{all}"));
}

#[test]
fn promtool_accepts_the_configurations() {
    for guide in ["serve.md", "production.md"] {
        let all = blocks(guide, "yaml");
        let scrapes: Vec<_> = all.iter().filter(|block| block.contains("scrape_configs:")).collect();
        assert_eq!(scrapes.len(), 1, "{guide}");
        // The file with the token is on another machine, and Debian's build knows no Kubernetes.
        let here = scrapes[0].replace("/etc/prometheus/dormouse-token", "/dev/null");
        let here = here.replace("kubernetes_sd_configs: [{ role: pod }]", "static_configs: []");
        if promtool_accepts("config", &here).is_none() {
            return;
        }
    }
}

#[test]
fn systemd_accepts_the_units() {
    let units = blocks("production.md", "ini");
    assert_eq!(units.len(), 2);
    for unit in units {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let name = unit.lines().next().and_then(|line| line.rsplit('/').next()).expect("the unit's path");
        // Programs and users that are here.
        let here =
            unit.replace("/usr/local/bin/dormouse", "/bin/true").replace("User=my-service", "User=root");
        let here = here.replace("/usr/bin/my-service", "/bin/true");
        std::fs::write(folder.path().join(name), here).expect("a file");
        let mut verify = Command::new("systemd-analyze");
        let Ok(output) = verify.args(["verify", "--man=no"]).arg(folder.path().join(name)).output() else {
            return skip("systemd-analyze is not installed");
        };
        // A word that it does not know is a warning, and no failure.
        assert!(output.status.success() && output.stderr.is_empty(), "{name}: {output:?}");
    }
}

/// The guide's first page, on a tea house instead of its own service.
#[test]
fn lines_of_the_first_guide_answer() {
    let service = Service::visited();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let block = blocks("start.md", "sh").into_iter().find(|block| block.starts_with("dormouse doctor"));
    let mut asked = 0;
    for line in block.expect("the lines that look in").lines() {
        let line = line.split(" #").next().unwrap_or_default().replace('\'', "");
        let here = line.replace("CUPS:8", "TALLY:8").replace("flags.*", "menu.*");
        let words = here.split_whitespace().skip(1);
        let words = words.map(|word| if word == "tea" { service.target() } else { word.to_owned() });
        let mut command = crate::support::command(words);
        command.current_dir(folder.path());
        let run = crate::support::finish(command);
        // Where there are no debug registers, the command says so, and what to do.
        let is_refused = line.contains("dormouse watch") && run.code == Some(5);
        assert!(run.code == Some(0) || is_refused, "{line}: {run:?}");
        assert!(is_refused || !run.stdout.is_empty() || !run.stderr.is_empty(), "{line}");
        asked += 1;
    }
    assert!(asked >= 13, "{asked} lines");
    assert!(folder.path().join("tea.html").is_file());
}

/// The lines of a block of the shell, each with those that go on with it.
fn lines(block: &str) -> Vec<String> {
    block.replace("\\\n", " ").lines().map(str::to_owned).collect()
}

#[test]
fn lines_of_the_serve_guide_answer() {
    if Command::new("curl").arg("--version").output().is_err() {
        return skip("curl is not installed");
    }
    let service = Service::visited();
    let server = Served::of(&service);
    let block = blocks("serve.md", "sh").into_iter().find(|block| block.contains("api()"));
    let lines = lines(&block.expect("the lines by hand"));
    let function = lines.iter().find(|line| line.starts_with("api()")).expect("a function");
    let mut asked = 0;
    for line in &lines {
        let is_pprof = line.starts_with("go tool pprof");
        if is_pprof && Command::new("go").arg("version").output().is_err() {
            skip("go is not installed");
            continue;
        }
        if !is_pprof && !line.starts_with("api ") {
            continue;
        }
        let here = line.replace("127.0.0.1:9464", &server.address).replace("my-service", &service.target());
        // A key of this service's.
        let here = here.replace("flags.*", "menu.*");
        // It gives up after six seconds, in which this build may not have found all names.
        let here = here.replace("go tool pprof", "go tool pprof -timeout 60");
        let output = Command::new("sh")
            .args(["-c", &format!("{function}\n{here}")])
            .env("TOKEN", TOKEN)
            .env("PPROF_TMPDIR", server.folder.path())
            .output()
            .expect("a shell");
        let said = String::from_utf8_lossy(&output.stdout);
        // A stream ends by curl's own patience: 28.
        let ends = [Some(if line.contains("-m 3") { 28 } else { 0 })];
        assert!(ends.contains(&output.status.code()), "{line}: {output:?}");
        let word = match line {
            it if it.contains("/metrics") => "\ndormouse_requests_total{",
            it if it.contains("/live") => "event: sample\n",
            it if is_pprof && it.contains("tagroot") => "flat%",
            _ => "\"schema\"",
        };
        assert!(said.contains(word), "{line}: {said}");
        asked += 1;
    }
    assert!(asked >= 7, "{lines:?}");
}

#[test]
fn every_metric_of_the_guide_is_exposed() {
    let service = Service::visited();
    let server = Served::of(&service);
    // The one format that has them all.
    let accept = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
    let guide = blocks_left_out("metrics.md");
    let mut names = BTreeSet::new();
    for (start, _) in guide.match_indices("`dormouse_") {
        let rest = &guide[start + 1..];
        names.insert(&rest[..rest.find('`').expect("the end of a name")]);
    }
    assert!(names.len() > 15, "{names:?}");
    // The server has CPU time counted, and no other event.
    let of_events: Vec<_> = EVENT_FAMILIES.iter().map(|(_, family)| family).chain([&OTHER_EVENTS]).collect();
    names.retain(|name| !of_events.iter().any(|family| family.prometheus_name() == *name));
    // Only where a control group has a limit.
    let of_limits = ["process_cpu_limit", "process_cpu_periods", "process_cpu_throttled", "process_pressure"];
    names.retain(|name| !of_limits.iter().any(|part| name.contains(part)));
    // Its locks are not those of `dormouse::sync`.
    names.retain(|name| !name.starts_with("dormouse_lock_"));
    // Its polls need not stall.
    names.retain(|name| !name.starts_with("dormouse_stalled_"));
    // The demo has no streams.
    names.retain(|name| !name.starts_with("dormouse_stream_"));
    // There is room for all of one service.
    names.retain(|name| !name.ends_with("_left_out"));
    // This service is built without `tokio_unstable`: without hooks around polls, and without these
    // figures of its runtime.
    let unstable = [
        "process_polls",
        "poll_coverage",
        "runtime_own_queues",
        "runtime_polls",
        "runtime_steals",
        "runtime_blocking",
    ];
    let is_unstable = |name: &str| unstable.iter().any(|part| name.contains(part));
    // Times begin with the first scrape.
    let begun = Instant::now();
    loop {
        let body = server.get("/metrics", accept);
        let is_there = |name: &str| body.windows(name.len()).any(|part| part == name.as_bytes());
        let wrong: Vec<_> = names.iter().filter(|name| is_there(name) == is_unstable(name)).collect();
        if wrong.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        assert!(begun.elapsed() < HANG, "absent, or exposed where it should not be: {wrong:?}");
    }
}

/// A guide without its blocks.
fn blocks_left_out(guide: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide").join(guide);
    let page = std::fs::read_to_string(path).expect("a guide");
    page.split("```").step_by(2).collect()
}

/// The token of the test's server.
const TOKEN: &str = "the-token-of-the-guides";

/// `dormouse serve` for one service, until this is dropped.
struct Served {
    process: Child,
    address: String,
    folder: TempDir,
}

impl Served {
    fn of(service: &Service) -> Served {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let token = folder.path().join("token");
        std::fs::write(&token, TOKEN).expect("a file");
        let mut process = Command::new(DORMOUSE)
            .args(["serve", "--listen", "127.0.0.1:0", "--event", "alloc-count"])
            .args(["--objective", "GET *: 99% < 250ms", "--token-file"])
            .arg(token)
            .arg(service.target())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("dormouse serve");
        let mut said = BufReader::new(process.stderr.take().expect("its standard error"));
        let mut address = None;
        while address.is_none() {
            let mut line = String::new();
            assert!(said.read_line(&mut line).expect("a line") > 0, "it has ended");
            address =
                line.split_once("http://").and_then(|(_, rest)| rest.split('/').next().map(str::to_owned));
        }
        std::thread::spawn(move || said.read_to_end(&mut Vec::new()));
        Served { process, address: address.expect("an address"), folder }
    }

    /// The body of an answer.
    fn get(&self, path: &str, accept: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(&self.address).expect("a server that accepts");
        stream.set_read_timeout(Some(HANG)).expect("a timeout");
        let head = format!("host: {}\r\nauthorization: Bearer {TOKEN}\r\naccept: {accept}", self.address);
        write!(stream, "GET {path} HTTP/1.1\r\n{head}\r\nconnection: close\r\n\r\n").expect("a request");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        let end = answer.windows(4).position(|part| part == b"\r\n\r\n").expect("a head");
        answer.split_off(end + 4)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
