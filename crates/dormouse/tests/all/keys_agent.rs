//! Keys as a client of the agent lists them. The test is a child: it writes to its own code.
#![cfg(not(dormouse_fallback))]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;

use dormouse::{static_key, unlikely};
use dormouse_protocol::{
    CancelledRequest, HelloRequest, KeyInfo, Keys, KeysRequest, OffRequest, OnRequest, Op, PROTOCOL,
    PlacesRequest, RecordRequest, Request, Response, SlotsRequest, StatRequest, TasksRequest,
    TriggersRequest,
};
use dormouse_testkit::{HANG, in_child};

static_key! {
    static TEA: "tea.green" = false;
    static MILK: "tea.milk" = false;
}

#[inline(never)]
extern "C" fn site() -> bool {
    unlikely!(TEA)
}

/// The address of the sleeping site: arm64's `nop`, or x86-64's `test`.
fn place() -> usize {
    let code = site as *const () as usize;
    // SAFETY: the function is longer than that, or others follow it.
    let bytes = unsafe { std::slice::from_raw_parts(code as *const u8, 64) };
    let nop = bytes.chunks(4).position(|word| *word == [0x1f, 0x20, 0x03, 0xd5]).map(|word| word * 4);
    code + nop.or_else(|| bytes.iter().position(|&byte| byte == 0xa9)).unwrap()
}

/// Starts the agent and says hello to it: a request, and its answer.
fn connect() -> impl FnMut(Op) -> String {
    let directory = tempfile::tempdir().unwrap().keep();
    // SAFETY: no other thread of this child reads the environment.
    unsafe { std::env::set_var("DORMOUSE_RUNTIME_DIR", &directory) };
    let mut stream = BufReader::new(UnixStream::connect(dormouse::init().unwrap().path()).unwrap());
    stream.get_ref().set_read_timeout(Some(HANG)).unwrap();
    let mut ask = move |op: Op| {
        let request = serde_json::to_string(&Request { v: PROTOCOL, id: 1, op }).unwrap();
        writeln!(stream.get_mut(), "{request}").unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).unwrap();
        answer
    };
    ask(HelloRequest { client: "a test".into(), notices: false }.into());
    ask
}

#[test]
fn on_takes_the_patch_lock_twice() {
    in_child(|| {
        let mut ask = connect();
        let mut locks_of = |op: Op| {
            let before = dormouse::keys::patch_locks();
            let answer = ask(op);
            assert!(answer.contains("\"ok\""), "{answer}");
            dormouse::keys::patch_locks() - before
        };
        let glob = || "tea.*".to_owned();
        let on = OnRequest { glob: glob(), for_ms: None, dwell_ms: None, keep: false };
        let off = OffRequest { glob: glob(), dwell_ms: None, force: false, release: false };
        // Also the first time, when the loader is asked for the object.
        for _ in 0..2 {
            assert_eq!(locks_of(on.clone().into()), 2, "select, switch");
            assert_eq!(locks_of(off.clone().into()), 2);
        }
        assert_eq!(locks_of(KeysRequest { glob: Some(glob()) }.into()), 1, "list");
        // The first has clocks of its own begin.
        assert!(locks_of(StatRequest::default().into()) > 0);
        assert_eq!(locks_of(on.into()), 2);
        assert_eq!(locks_of(StatRequest::default().into()), 1, "count what was switched");
        for op in [
            HelloRequest { client: "a test".into(), notices: false }.into(),
            StatRequest::default().into(),
            PlacesRequest { from: 0 }.into(),
            TasksRequest { from: 0 }.into(),
            CancelledRequest {}.into(),
            RecordRequest::default().into(),
            SlotsRequest {}.into(),
            TriggersRequest {}.into(),
        ] {
            let text = format!("{op:?}");
            assert_eq!(locks_of(op), 0, "{text}");
        }
    });
}

#[test]
fn sites_that_do_not_follow_are_listed() {
    in_child(|| {
        assert!(!unlikely!(MILK));
        let (place, mut ask) = (place(), connect());
        let mut list = || {
            let answer: Response<Keys> =
                serde_json::from_str(&ask(KeysRequest { glob: Some("tea.*".into()) }.into())).unwrap();
            let keys = answer.ok.unwrap().keys;
            let of = |key: &KeyInfo| (key.on, key.sites, key.sites_stale, key.sites_foreign);
            keys.iter().map(of).collect::<Vec<_>>()
        };
        let memory = std::fs::OpenOptions::new().read(true).write(true).open("/proc/self/mem").unwrap();
        let mut asleep = [0; 4];
        memory.read_exact_at(&mut asleep, place as u64).unwrap();
        TEA.enable().unwrap();
        assert_eq!(list(), [(true, 1, 0, 0), (false, 1, 0, 0)]);
        let [_, rest @ ..] = asleep;
        let other = [&[0xcc], &rest[..]].concat();
        for (bytes, stale, foreign) in [(&asleep[..], 1, 0), (&other, 0, 1)] {
            memory.write_all_at(bytes, place as u64).unwrap();
            assert_eq!(list(), [(true, 1, stale, foreign), (false, 1, 0, 0)]);
        }
    });
}
