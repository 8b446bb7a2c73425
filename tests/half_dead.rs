//! The command against what only looks like an agent: dead in the middle, silent, garbled, of
//! another version.
//!
//! This program listens where its own agent would and is the target itself. One such socket at a
//! time, since all of them would be the same process's: hence the lock.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{HANG, Run, run};

const HELLO: &str = concat!(
    r#"{"v":1,"id":1,"ok":{"protocol":1,"version":"0","pid":1,"start_ticks":1,"name":"hatter","exe":"/hatter","#,
    r#""uid":0,"keys":1,"sites":1}}"#,
    "\n"
);
const TRACING: &str = concat!(
    r#"{"v":1,"id":2,"ok":{"matched":["tea.time"],"probes":[{"id":7,"name":"tea.time","file":"tea.rs","line":1,"#,
    r#""fields":["cups"]}],"batch":{"keys":1,"sites":1,"pages":1,"barriers":1,"traps":0,"elapsed_ns":5},"#,
    r#""clock":{"tsc":0,"tsc_hz":1e9,"mono_ns":0,"real_ns":0}}}"#,
    "\n"
);

/// The socket of this process's agent: one at a time.
struct Place {
    path: PathBuf,
    _runtime: TempDir,
    _one: MutexGuard<'static, ()>,
}

impl Place {
    fn open() -> (Place, UnixListener) {
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let directory = runtime.path().join("dormouse");
        std::fs::create_dir(&directory).expect("a directory");
        let path = directory.join(format!("{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).expect("a socket");
        (Place { path, _runtime: runtime, _one: one }, listener)
    }
}

/// Runs the command; `{}` in `args` is this process.
fn run_on_us(args: &[&str]) -> Run {
    let target = std::process::id().to_string();
    run(args.iter().map(|&arg| if arg == "{}" { target.as_str() } else { arg }))
}

/// Runs the command on an agent that does `talk` with each connection; `{}` in `args` is the
/// target.
pub(crate) fn against(args: &[&str], talk: impl Fn(&mut BufReader<UnixStream>) + Send + 'static) -> Run {
    let (place, listener) = Place::open();
    let agent = thread::spawn(move || {
        // One connection; the end of this thread closes the socket.
        let (stream, _) = listener.accept().expect("a client");
        stream.set_read_timeout(Some(HANG)).expect("a timeout");
        talk(&mut BufReader::new(stream));
    });
    let run = run_on_us(args);
    // One that never came has let it wait.
    let _ = UnixStream::connect(&place.path);
    assert!(agent.join().is_ok(), "the agent did not meet what it expected: {run:?}");
    run
}

/// Reads a request and says `text`; that the client has gone is its right.
fn say(stream: &mut BufReader<UnixStream>, text: impl AsRef<[u8]>) {
    let mut request = String::new();
    stream.read_line(&mut request).expect("a request");
    let _ = stream.get_mut().write_all(text.as_ref());
}

/// Keeps the connection until the client closes it.
fn hold(stream: &mut BufReader<UnixStream>) {
    let _ = stream.read_to_end(&mut Vec::new());
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len() + 1).expect("a short frame");
    [&length.to_le_bytes()[..], &[kind], payload].concat()
}

/// A frame with one record of probe 7 and one unsigned value.
fn record(tsc: u64, cups: u64) -> Vec<u8> {
    let mut record = vec![48, 0, 1, 0];
    record.extend(7_u32.to_le_bytes());
    record.extend(tsc.to_le_bytes());
    record.extend(0_u64.to_le_bytes());
    record.extend(0_u32.to_le_bytes());
    record.extend([1, 0, 0, 0, 2]);
    record.extend(cups.to_le_bytes());
    record.resize(48, 0);
    frame(2, &[&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), &record].concat())
}

#[test]
fn an_agent_that_dies_is_named() {
    against(&["keys", "{}"], |stream| say(stream, "")).assert_fails(1, &["ended, or closed the connection"]);
    against(&["keys", "{}"], |stream| say(stream, &HELLO[..50]))
        .assert_fails(1, &["in the middle of an answer"]);
    against(&["keys", "{}"], |stream| {
        say(stream, HELLO);
        say(stream, r#"{"v":1,"id":2,"ok":{"keys":["#);
    })
    .assert_fails(1, &["in the middle of an answer"]);
}

#[test]
fn a_silent_agent_is_given_up() {
    against(&["keys", "{}", "--timeout", "200ms"], hold)
        .assert_fails(1, &["has given no answer for 200 ms", "--timeout waits longer"]);
    against(&["keys", "{}", "--timeout", "200ms"], |stream| {
        say(stream, HELLO);
        hold(stream);
    })
    .assert_fails(1, &["has given no answer for 200 ms"]);
}

#[test]
fn what_is_no_agent_is_told_as_such() {
    against(&["keys", "{}"], |stream| say(stream, "HTTP/1.1 400 Bad Request\r\n\r\n"))
        .assert_fails(1, &["does not speak dormouse's protocol", "HTTP/1.1 400"]);
    against(&["keys", "{}"], |stream| say(stream, "\x1b[2J\x1b]0;title\x07\n"))
        .assert_fails(1, &["\\u{1b}[2J"]);
    against(&["keys", "{}"], |stream| {
        say(stream, "");
        let piece = vec![b'x'; 1 << 20];
        while stream.get_mut().write_all(&piece).is_ok() {}
    })
    .assert_fails(1, &["longer than 4194304 bytes"]);
}

#[test]
fn another_protocol_version_is_exit_5() {
    against(&["keys", "{}"], |stream| say(stream, "{\"v\":2,\"id\":1,\"ok\":{}}\n"))
        .assert_fails(5, &["protocol 1", "protocol 2", "use the dormouse command of the version"]);
    let refusal = "{\"v\":2,\"id\":1,\"error\":{\"code\":\"version\",\"message\":\"speaks 2\"}}\n";
    against(&["keys", "{}"], move |stream| say(stream, refusal)).assert_fails(5, &["protocol 1"]);
}

#[test]
fn older_agents_get_no_unknown_requests() {
    let stat = |id: u32, cpu_ns: u32| {
        format!(
            concat!(
                r#"{{"v":1,"id":{},"ok":{{"mono_ns":{},"process_cpu_ns":{},"unattributed_cpu_ns":0,"groups":[],"#,
                r#""threads":[],"keys_on":0,"dropped":0}}}}"#,
                "\n"
            ),
            id,
            u64::from(id) * 1_000_000_000,
            cpu_ns
        )
    };
    // It would end the connection at an operation unknown to it: here, the answers would not fit.
    let run = against(&["--json", "top", "{}", "--once", "--interval", "50ms"], move |stream| {
        say(stream, HELLO);
        say(stream, stat(2, 0));
        say(stream, stat(3, 500_000_000));
    });
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(run.json()["process"]["cpu_percent"], 50.0);
    against(&["list", "{}"], |stream| say(stream, HELLO))
        .assert_fails(5, &["lists no events", "newer dormouse"]);
    let run = against(&["--json", "stat", "{}", "--for", "10ms", "-e", "page-faults"], move |stream| {
        say(stream, HELLO);
        say(stream, stat(2, 0));
        hold(stream);
    });
    assert!(run.stderr.contains("not counted: page-faults") && run.stderr.contains("too old"), "{run:?}");
}

/// The answer of the first build, which announced no operations; `None` to one that it did not
/// have, which ended the connection.
fn first_builds_answer(op: &str, id: u64) -> Option<String> {
    let body = match op {
        "hello" => return Some(HELLO.into()),
        "trace" => return Some(TRACING.into()),
        "keys" => r#"{"keys":[]}"#.into(),
        "on" | "off" => concat!(
            r#"{"matched":["tea.time"],"changed":1,"#,
            r#""batch":{"keys":1,"sites":1,"pages":1,"barriers":1,"traps":0,"elapsed_ns":5}}"#
        )
        .into(),
        "stat" => format!(
            concat!(
                r#"{{"mono_ns":{},"process_cpu_ns":0,"unattributed_cpu_ns":0,"groups":[],"threads":[],"#,
                r#""keys_on":0,"dropped":0}}"#
            ),
            id * 1_000_000_000
        ),
        "doctor" => r#"{"checks":[]}"#.into(),
        _ => return None,
    };
    Some(format!("{{\"v\":1,\"id\":{id},\"ok\":{body}}}\n"))
}

/// Answers a client as the first build did, and notes its operations, until one of the two ends it.
fn answer_as_the_first_build(stream: &mut BufReader<UnixStream>, asked: &mut Vec<String>) {
    let mut line = String::new();
    while stream.read_line(&mut line).is_ok_and(|read| read > 0) {
        let request: Value = serde_json::from_str(&line).expect("a request");
        line.clear();
        let op = request["op"].as_str().expect("an operation").to_owned();
        let answer = first_builds_answer(&op, request["id"].as_u64().expect("a number"));
        asked.push(op);
        let Some(answer) = answer else { return };
        let _ = stream.get_mut().write_all(answer.as_bytes());
    }
}

#[test]
fn no_verb_asks_the_first_build_for_more() {
    // Each verb, and how it ends: 0 as with a newer service, 1 with nothing found, 5 with the name
    // of a part that the service lacks. The last two go on from outside, as far as the machine
    // allows.
    let verbs: [(&[&str], Option<i32>); 35] = [
        (&["ps"], Some(0)),
        (&["keys", "{}"], Some(1)),
        (&["clients", "{}"], Some(5)),
        (&["on", "{}", "tea.*", "--for", "10ms"], Some(0)),
        (&["on", "{}", "tea.*", "--keep"], Some(0)),
        (&["off", "{}", "tea.*"], Some(0)),
        (&["reset", "{}", "tea.*"], Some(5)),
        (&["sleep", "{}"], Some(5)),
        (&["wake", "{}"], Some(5)),
        (&["trace", "{}", "tea.*", "--for", "50ms"], Some(0)),
        (&["top", "{}", "--once", "--interval", "50ms"], Some(0)),
        (&["stat", "{}", "--for", "10ms"], Some(0)),
        (&["stat", "{}", "--for", "10ms", "--waits"], Some(5)),
        (&["stat", "{}", "--for", "10ms", "-e", "task-clock"], Some(0)),
        (&["list", "{}"], Some(5)),
        (&["record", "{}", "tea.*"], Some(5)),
        (&["record", "{}"], Some(5)),
        (&["record", "{}", "--save"], Some(5)),
        (&["record", "{}", "--off"], Some(5)),
        (&["tasks", "{}", "--for", "10ms"], Some(5)),
        (&["tasks", "{}", "--leaks", "--for", "10ms"], Some(5)),
        (&["tasks", "{}", "--long-poll", "10ms", "--for", "10ms"], Some(5)),
        (&["tasks", "{}", "--tree"], Some(5)),
        (&["locks", "{}", "--for", "10ms"], Some(5)),
        (&["triggers", "{}"], Some(5)),
        (&["triggers", "{}", "--add", "panic"], Some(5)),
        (&["triggers", "{}", "--remove", "1"], Some(5)),
        (&["experiment", "{}", "tea.*", "--for", "1s"], Some(5)),
        (&["slots", "{}"], Some(0)),
        (&["maps", "{}"], Some(0)),
        (&["maps", "{}", "1000"], Some(1)),
        (&["doctor", "{}"], Some(0)),
        (&["doctor", "{}", "--json"], Some(0)),
        (&["profile", "{}", "--for", "10ms"], None),
        (&["watch", "{}", "0x1000:8", "--for", "10ms"], None),
    ];
    let listed = run(["--help"]).stdout;
    let list = listed.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a list");
    // But for those that look into nothing, or into all.
    let without = ["serve", "demo", "bench", "compare", "generate"];
    let commands = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    for command in commands.filter(|name| !name.is_empty() && !without.contains(name)) {
        assert!(verbs.iter().any(|(args, _)| args[0] == command), "{command} is not tried");
    }
    let (place, listener) = Place::open();
    let (asked, is_over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let mut wrong = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok((stream, _)) = listener.accept()
                && !is_over.load(Relaxed)
            {
                stream.set_read_timeout(Some(HANG)).expect("a timeout");
                let mut asked = asked.lock().expect("a test that goes on");
                answer_as_the_first_build(&mut BufReader::new(stream), &mut asked);
            }
        });
        for (args, code) in verbs {
            let run = run_on_us(args);
            let ops = std::mem::take(&mut *asked.lock().expect("an agent that understood all"));
            let has_unknown = ops.iter().any(|op| first_builds_answer(op, 0).is_none());
            if has_unknown || code.is_some() && run.code != code {
                wrong.push(format!("{args:?} asked for {ops:?}: {run:?}"));
            }
        }
        is_over.store(true, Relaxed);
        let _ = UnixStream::connect(&place.path);
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn stat_keeps_figures_of_silent_services() {
    let stat = concat!(
        r#"{"v":1,"id":2,"ok":{"mono_ns":1,"process_cpu_ns":1,"unattributed_cpu_ns":0,"groups":[],"threads":[],"#,
        r#""keys_on":0,"dropped":0}}"#,
        "\n"
    );
    let run = against(&["--json", "stat", "{}", "--timeout", "200ms"], move |stream| {
        say(stream, HELLO);
        say(stream, stat);
        hold(stream);
    });
    assert_eq!((run.code, &run.json()["type"]), (Some(1), &"total".into()), "{run:?}");
    assert!(run.stderr.contains("has given no answer for 200 ms"), "{run:?}");
}

#[test]
fn on_tells_that_its_service_ended() {
    let changed = concat!(
        r#"{"v":1,"id":2,"ok":{"matched":["tea.time"],"changed":1,"batch":{"keys":1,"sites":1,"pages":1,"#,
        r#""barriers":1,"traps":0,"elapsed_ns":5}}}"#,
        "\n"
    );
    let run = against(&["on", "{}", "*"], move |stream| {
        say(stream, HELLO);
        say(stream, changed);
    });
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), "on: 1 key changed, 1 site in 5 ns\n  tea.time\n"));
    assert!(run.stderr.contains("ended, or closed the connection"), "{}", run.stderr);
}

#[test]
fn trace_prints_records_before_a_service_died() {
    let run = against(&["trace", "{}", "*"], |stream| {
        say(stream, HELLO);
        say(stream, TRACING);
        let stream = stream.get_mut();
        stream.write_all(&frame(1, br#"{"thread":{"tid":9,"start":1,"name":"hatter"}}"#)).expect("a client");
        // Two threads' worth, out of order.
        stream.write_all(&record(2_000_000_000, 2)).expect("a client");
        stream.write_all(&record(1_000_000_000, 1)).expect("a client");
        stream.write_all(&record(3_000_000_000, 3)[..20]).expect("a client");
    });
    assert_eq!(run.code, Some(1), "{run:?}");
    let lines: Vec<Vec<&str>> = run.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        lines,
        [
            ["00:00:01.000000000", "hatter/9", "-", "tea.time", "cups=1"],
            ["00:00:02.000000000", "hatter/9", "-", "tea.time", "cups=2"]
        ]
    );
    assert!(
        run.stderr.contains("2 records in") && run.stderr.contains("in the middle of an answer"),
        "{run:?}"
    );
}

#[test]
fn a_trace_that_falls_silent_is_given_up() {
    let run = against(&["trace", "{}", "*", "--timeout", "200ms"], |stream| {
        say(stream, HELLO);
        say(stream, TRACING);
        hold(stream);
    });
    run.assert_fails(1, &["has sent nothing for 200 ms"]);
}

#[test]
fn a_trace_of_garbage_is_told_as_such() {
    for (bytes, part) in [
        (u32::MAX.to_le_bytes().to_vec(), "a frame of 4294967295 bytes"),
        (frame(2, &[0; 3]), "a frame of records with 3 bytes"),
        (frame(2, &[1; 40]), "malformed record"),
        (frame(1, b"tea"), "a note \"tea\""),
    ] {
        let run = against(&["trace", "{}", "*"], move |stream| {
            say(stream, HELLO);
            say(stream, TRACING);
            let _ = stream.get_mut().write_all(&bytes);
            hold(stream);
        });
        run.assert_fails(1, &["does not speak dormouse's protocol", part]);
    }
}

#[test]
fn records_lost_are_counted_by_their_cause() {
    let run = against(&["trace", "{}", "*", "--count", "1"], |stream| {
        say(stream, HELLO);
        say(stream, TRACING);
        let stream = stream.get_mut();
        stream.write_all(&frame(1, br#"{"dropped":{"rings":3,"client":4}}"#)).expect("a client");
        stream.write_all(&record(1, 1)).expect("a client");
        // Newer by more than records are held back.
        stream.write_all(&record(2_000_000_000, 2)).expect("a client");
    });
    assert_eq!((run.code, run.stdout.lines().count()), (Some(0), 1), "{run:?}");
    assert!(run.stderr.contains("7 more lost: 3 in the service"), "{}", run.stderr);
}

#[test]
fn losses_beyond_counting_are_survived() {
    let run = against(&["trace", "{}", "*", "--count", "1"], |stream| {
        say(stream, HELLO);
        say(stream, TRACING);
        let stream = stream.get_mut();
        let most = format!(r#"{{"dropped":{{"rings":{0},"client":{0}}}}}"#, u64::MAX);
        for _ in 0..2 {
            stream.write_all(&frame(1, most.as_bytes())).expect("a client");
        }
        stream.write_all(&record(1, 1)).expect("a client");
        stream.write_all(&record(2_000_000_000, 2)).expect("a client");
    });
    assert_eq!((run.code, run.stdout.lines().count()), (Some(0), 1), "{run:?}");
    assert!(run.stderr.contains(&format!("{} more lost", u64::MAX)), "{}", run.stderr);
}

#[test]
fn keys_of_one_name_are_counted_each() {
    let run = against(&["trace", "{}", "*", "--count", "1"], |stream| {
        say(stream, HELLO);
        say(stream, TRACING.replace(r#""probes":["#, r#""keys":4,"probes":["#));
        let stream = stream.get_mut();
        stream.write_all(&record(1, 1)).expect("a client");
        stream.write_all(&record(2_000_000_000, 2)).expect("a client");
    });
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.stderr.contains("1 probe and 3 other keys in "), "{}", run.stderr);
}

/// The `hello` of an agent that lists tasks, and its answer to `waits`.
const LISTS: &str = concat!(
    r#"{"v":1,"id":1,"ok":{"protocol":1,"version":"0","pid":1,"start_ticks":1,"name":"hatter","exe":"/hatter","#,
    r#""uid":0,"keys":1,"sites":1,"ops":["tasks","waits"]}}"#,
    "\n"
);
const TAKES: &str = "{\"v\":1,\"id\":2,\"ok\":{}}\n";

/// A part of a list of tasks, with one task whose numbers are all `number`.
fn part_of_tasks(id: u64, number: u64, next: Option<u64>) -> String {
    let all = format!("[{number}]");
    let next = next.map_or_else(String::new, |next| format!(r#","next":{next}"#));
    format!(
        concat!(
            r#"{{"v":1,"id":{id},"ok":{{"taken_ns":{number},"tasks":{{"task":{all},"group":[7],"age_ns":[null],"#,
            r#""state":["z"],"for_ns":{all},"poll_ns":{all},"runnable_ns":{all},"await_ns":{all},"polls":{all},"#,
            r#""wakes":{all},"has_waker":[true],"places":[[4294967295]]}},"groups":[{{"id":9,"name":"\u001b[31m","alive":{number}}}]{next}}}}}"#,
            "\n"
        ),
        id = id,
        number = number,
        all = all,
        next = next
    )
}

/// Lists the tasks of an agent whose parts are `parts`, the first two of which say for how long
/// times have been taken.
fn tasks_of(args: &[&str], parts: impl Fn(u64) -> String + Send + 'static) -> Run {
    against(&[&["tasks", "{}", "--for", "0s"], args].concat(), move |stream| {
        say(stream, LISTS);
        say(stream, TAKES);
        for id in 3.. {
            let mut request = String::new();
            if stream.read_line(&mut request).is_err() || request.is_empty() {
                break;
            }
            let _ = stream.get_mut().write_all(parts(id).as_bytes());
        }
    })
}

#[test]
fn lists_of_tasks_without_an_end_are_refused() {
    tasks_of(&[], |id| part_of_tasks(id, 1, Some(5))).assert_fails(1, &["a list of tasks without an end"]);
    let uneven = |id| part_of_tasks(id, 1, None).replace(r#""polls":[1]"#, r#""polls":[]"#);
    tasks_of(&[], uneven).assert_fails(1, &["not of equal length"]);
    tasks_of(&[], |id| part_of_tasks(id, 1, None).replace("null", "-1")).assert_fails(1, &["protocol"]);
    tasks_of(&[], |id| if id < 6 { part_of_tasks(id, 1, Some(id)) } else { "{\"v\":1,\n".into() })
        .assert_fails(1, &["does not speak"]);
}

#[test]
fn the_greatest_numbers_of_tasks_are_shown() {
    for args in
        [&[][..], &["--tree"], &["--json"], &["--json", "--tree"], &["--sort", "age", "--older", "9d"]]
    {
        let run = tasks_of(args, |id| part_of_tasks(id, u64::MAX, None));
        assert_eq!(run.code, Some(0), "{run:?}");
        assert!(!run.stdout.contains('\u{1b}') && run.stdout.contains("unknown"), "{run:?}");
        assert!(run.stdout.contains("18446744073709551615") || run.stdout.contains("213503d"), "{run:?}");
    }
}

#[test]
fn services_without_lists_of_tasks_are_exit_5() {
    against(&["tasks", "{}"], |stream| say(stream, HELLO))
        .assert_fails(5, &["does not list tasks", "build the service with a newer dormouse"]);
}
