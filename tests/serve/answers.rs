//! The answers of every verb over HTTP: statuses, the fields of documents, the words of refusals.

use dormouse_testkit::eventually;
use serde_json::Value;

use super::asking::{Answer, Serving};
use crate::support::{Service, run};

const STAT: &str = "clock,coverage_percent,elapsed_ns,ended,groups,name,other_threads_cpu_ns,pid,process,runtimes,\
                    schema,threads,type,unattributed_counts,unattributed_cpu_ns";
const TASKS: &str = "cancelled,known,noted_ns,pid,places,schema,taken_ns,tasks,took_ns,unlisted,unplaced";
const LOCKS: &str = "deadlocks,for_ns,futexes,holders,locks,lost_holders,lost_lines,lost_waits,omitted,pid,process,\
                     queues,schema,unplaced,waiters,waiters_omitted";
const PROFILE: &str =
    "coverage,duration_ns,ended_because,groups,kind,period,pid,program,schema,stack_ends,unit,value";

/// Verbs that read, and the fields of their documents.
const DOCUMENTS: [(&str, &str); 19] = [
    ("keys", "keys,schema"),
    ("keys?glob=menu.*", "keys,schema"),
    ("stat?for=20ms", STAT),
    ("stat?for=20ms&waits=1&event=page-faults,task-clock", STAT),
    ("list", "events,pid,schema"),
    ("clients", "clients,pid,schema"),
    ("slots", "pid,schema,threads,watches"),
    ("doctor", "checks,pid,schema,subject"),
    ("triggers", "budget_bytes,directory,pid,schema,triggers,used_bytes"),
    ("tasks?for=10ms", TASKS),
    ("tasks?leaks=1&for=10ms", "judged_ns,pid,places,proven,schema,suspected,taken_ns,watched_ns"),
    ("tasks?for=10ms&state=awaiting,polled&sort=age&limit=2", TASKS),
    ("tasks?for=10ms&tree=1", "known,noted_ns,pid,schema,taken_ns,took_ns,tree,unlisted,unplaced"),
    ("locks?for=10ms&all=1", LOCKS),
    ("profile?for=50ms", PROFILE),
    ("profile?for=50ms&kind=alloc&live=1&top=1", PROFILE),
    ("maps", "mappings,name,pid,schema"),
    ("maps?addr=1", "addr,frames,mapping,pid,schema"),
    (
        "profile.json?seconds=1&kind=faults",
        "columns,coverage,ends,file,files,functions,groups,inlined,libraries,\
      library,line,main,measure,nodes,old,pid,program,rows,seconds,threads,unix_ms",
    ),
];

/// Requests that are refused, and a part of what is said.
const REFUSED: [(&str, u16, &str); 29] = [
    ("keys?glob=no.such", 404, "no key matches `no.such`"),
    ("keys?glob=%7B", 400, "malformed glob `{`"),
    ("keys?x=1", 400, "\"x\" means nothing to keys: glob do"),
    ("keys?glob=a&glob=b", 400, ""),
    ("list?x=1", 400, "\"x\" means nothing to list: nothing does"),
    ("stat?for=20ms&waits=maybe", 400, "\"waits\" is 1 or 0"),
    ("stat?for=banana", 400, "no number before \"banana\"; write a number and ms, s, m, h or d"),
    ("stat?for=0s", 400, "it must be more than nothing"),
    ("stat?event=nonsense", 400, "no event is called \"nonsense\""),
    ("stat?interval=1ms", 400, "it must be at least 10ms"),
    ("top?count=0", 400, "zero"),
    ("top?count=x", 400, "invalid digit found in string"),
    ("top?interval=1ms", 400, "it must be at least 50ms"),
    ("top?event=,", 400, "a name is missing; write names with single commas"),
    ("tasks?tree=1&limit=2", 400, "cannot be used with"),
    ("tasks?leaks=1&tree=1", 400, "leaks cannot be used with tree"),
    ("tasks?state=gone", 400, "awaiting"),
    ("tasks?sort=cpu", 400, "CPU time is sorted by where it is taken: add cpu"),
    ("tasks?group=a%7B", 400, "group: malformed glob `a{`"),
    ("tasks?long_poll=1s&tree=1", 400, "cannot be used with"),
    ("profile?kind=waits", 400, "wall"),
    ("profile?hz=1001", 400, "1000"),
    ("profile?kind=faults&hz=9", 400, "hz is for kind cpu and wall"),
    ("profile?for=50ms&group=no-such", 404, "no group matches `no-such`"),
    ("profile.json?kind=heap", 400, "and must be cpu, alloc, faults or wall"),
    ("maps?addr=x", 400, "it is no address in hex"),
    ("maps?addr=-", 400, "\"addr\""),
    ("nothing", 404, "nothing is at this address"),
    ("on", 404, "nothing is at this address"),
];

/// Refusals of requests that change something.
const REFUSED_CHANGES: [(&str, &str, u16, &str); 16] = [
    ("keys", r#"{"glob":"no.such","on":false}"#, 404, "no key matches `no.such`"),
    (
        "keys",
        r#"{"glob":"a","on":true}"#,
        400,
        "`for_ms` is the time until they go off again: from 1 to 3600000",
    ),
    ("keys", r#"{"glob":"a","on":true,"for_ms":0}"#, 400, "`for_ms` is the time until they go off again"),
    ("keys", r#"{"glob":"a","on":true,"for_ms":1,"keep":true}"#, 400, "glob"),
    ("keys", r#"{"glob":["a"],"on":false}"#, 400, ""),
    ("keys", r#"{"on":true,"for_ms":1}"#, 400, "glob"),
    ("keys", r#"{"glob":"a"}"#, 400, "`on` is missing: true or false"),
    ("keys", "[]", 400, "the body is no JSON object: "),
    ("trace", "{}", 400, "no keys are named"),
    ("trace", r#"{"glob":"menu.*","count":0}"#, 400, "zero"),
    ("trace", r#"{"glob":["*"]}"#, 400, "\"glob\" is a text, a number, true or false"),
    ("watch", "{}", 400, ""),
    ("watch", r#"{"what":"no_such_variable"}"#, 502, "no static variable is named `no_such_variable`"),
    ("watch", r#"{"what":"0x1","plain":true}"#, 400, "\"plain\" means nothing to watch: "),
    ("watch", r#"{"what":"0x1","equals":"x"}"#, 400, "write 42 or 0x2a"),
    ("watch", r#"{"what":7}"#, 400, "write an address in hex, with 0x in front: 0x7"),
];

fn fields(document: &Value) -> String {
    let object = document.as_object().expect("an object");
    object.keys().map(String::as_str).collect::<Vec<_>>().join(",")
}

#[track_caller]
fn assert_refused(of: &str, answer: &Answer, status: u16, part: &str) {
    let said = answer.json()["error"]["message"].as_str().map(str::to_owned);
    assert_eq!(answer.status, status, "{of}: {answer:?}");
    assert!(said.as_ref().is_some_and(|said| said.contains(part)), "{of}: {said:?}");
}

#[test]
fn each_verb_answers_with_its_fields() {
    let service = Service::visited();
    let serving = Serving::of([service.pid()]);
    let path = |of: &str| format!("/api/processes/{}/{of}", service.pid());
    for (of, expected) in DOCUMENTS {
        let answer = serving.get(&path(of));
        assert_eq!((answer.status, fields(&answer.json()).as_str()), (200, expected), "{of}");
    }
    for (body, expected) in [
        (
            r#"{"glob":"menu.*","on":true,"for_ms":700}"#,
            "batch,by,changed,matched,mode,names,off_at_unix_ms,off_in_ms,pid,schema,state",
        ),
        (r#"{"glob":"menu.*","on":false}"#, "batch,by,changed,matched,mode,names,pid,schema,state"),
    ] {
        let answer = serving.post(&path("keys"), body);
        assert_eq!((answer.status, fields(&answer.json()).as_str()), (200, expected), "{body}");
    }
    // Asleep, a service can be woken, and nothing else.
    for (of, expected) in [("sleep", "asleep,clients,keys,schema"), ("wake", "keys,schema,was")] {
        let answer = serving.post(&path(of), "{}");
        assert_eq!((answer.status, fields(&answer.json()).as_str()), (200, expected), "{of}");
        let status = serving.get(&path("keys")).status;
        assert_eq!(status, if of == "sleep" { 503 } else { 200 }, "{of}");
    }
}

#[test]
fn each_stream_begins_and_ends() {
    let service = Service::visited();
    let serving = Serving::of([service.pid()]);
    let path = |of: &str| format!("/api/processes/{}/{of}", service.pid());
    for (of, kinds) in [
        ("stat?interval=20ms&for=300ms", &["interval", "total"][..]),
        ("top?count=1&interval=50ms", &["snapshot"]),
        ("tasks?long_poll=1h&for=10ms", &[]),
        ("tasks?long-poll=1h&for=10ms", &[]),
    ] {
        assert_stream(of, &mut serving.stream(&path(of)), kinds);
    }
    for (of, body, kinds) in [
        ("trace", r#"{"glob":"menu.*","for":"500ms"}"#, &["start", "end"][..]),
        ("watch", r#"{"what":"0x1:8","equals":-1,"for":"10ms"}"#, &["start", "report"]),
        ("watch", r#"{"what":"0x1:8","changed":true,"max":3,"rate":9,"for":"10ms"}"#, &["start", "report"]),
    ] {
        assert_stream(body, &mut serving.posted_stream(&path(of), body), kinds);
    }
}

/// It has lines of each of these kinds, and an end.
#[track_caller]
fn assert_stream(of: &str, events: &mut super::asking::Events, kinds: &[&str]) {
    assert_eq!(events.status, 200, "{of}");
    let (mut seen, mut ended) = (Vec::new(), false);
    // The connection stays open behind the end.
    while let Some((name, data)) = events.next() {
        ended = name == "end" && data["exit"].is_u64();
        seen.extend(data["type"].as_str().map(str::to_owned));
        if ended {
            break;
        }
    }
    assert!(ended && kinds.iter().all(|kind| seen.iter().any(|seen| seen == kind)), "{of}: {seen:?}");
}

#[test]
fn refusals_say_what_is_wrong() {
    let service = Service::idle();
    let serving = Serving::of([service.pid()]);
    let path = |of: &str| format!("/api/processes/{}/{of}", service.pid());
    for (of, status, part) in REFUSED {
        assert_refused(of, &serving.get(&path(of)), status, part);
    }
    for (of, body, status, part) in REFUSED_CHANGES {
        assert_refused(body, &serving.post(&path(of), body), status, part);
    }
}

#[test]
fn every_refusal_is_a_document() {
    let service = Service::idle();
    let serving = Serving::of([service.pid()]);
    let pid = service.pid();
    for (path, part) in [
        ("/api/processes/%ff/keys".to_owned(), "UTF-8"),
        (format!("/api/processes/{pid}/stat?for=10h"), "5m"),
        (format!("/api/processes/{pid}/tasks?tree=true&sort=age"), "sort"),
    ] {
        let answer = serving.get(&path);
        assert_eq!(answer.status, 400, "{path}: {answer:?}");
        let message = answer.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert!(message.contains(part) && !message.contains("--"), "{message}");
    }
    let unknown =
        serving.post(&format!("/api/processes/{pid}/keys"), r#"{"glob":"no.such","on":true,"for_ms":9}"#);
    assert_eq!(unknown.json()["error"]["hint"], "/api/processes/PID/keys lists the keys");
}

#[test]
fn methods_that_are_announced_are_answered() {
    let service = Service::idle();
    let serving = Serving::of([service.pid()]);
    for path in ["/metrics".to_owned(), "/api/me".into(), format!("/api/processes/{}/keys", service.pid())] {
        let allowed = |method| {
            let answer =
                serving.ask(serving.head(method, &path, "Connection: close\r\n")).expect("an answer");
            (answer.status, answer.header("allow").unwrap_or_default().contains("HEAD"))
        };
        let (status, is_announced) = allowed("OPTIONS");
        assert_eq!(status, 204, "{path}");
        assert_eq!(allowed("HEAD").0 == 200, is_announced, "{path}");
    }
}

#[test]
fn classic_buckets_end_where_they_are_chosen() {
    let service = Service::visited();
    let serving = Serving::with(&["--buckets", "100ms,250ms,2s"], [service.pid()]);
    let mut ends = Vec::new();
    eventually(|| {
        let text = serving.get("/metrics").text();
        let buckets =
            text.lines().filter(|line| line.starts_with("dormouse_request_duration_seconds_bucket"));
        let blends = buckets.filter(|line| line.contains(r#"group="GET /blend""#));
        let end = |line: &str| line.split_once("le=\"")?.1.split_once('"').map(|(end, _)| end.to_owned());
        ends = blends.filter_map(end).collect();
        !ends.is_empty()
    });
    assert!(ends[0].starts_with("0.10511"), "the nearest one at which counts are exact: {ends:?}");
    assert_eq!(ends[1..], ["0.25", "2", "+Inf"]);
    let refused = run(["serve", "--buckets", "250ms,100ms"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("100ms comes after 250ms"), "{refused:?}");
}
