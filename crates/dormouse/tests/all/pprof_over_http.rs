//! Profiles over HTTP: an axum server, clients that hang up, and the real `go tool pprof`. Each
//! test is a child: samples are signals.
#![cfg(not(dormouse_fallback))]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use dormouse::Group;
use dormouse::profile::web::{respond, respond_blocking};
use dormouse_profile::decode;
use dormouse_testkit::{HANG, eventually, fork, in_child, skip};

/// A server with the routes of profiles, on a runtime of its own.
fn serve() -> SocketAddr {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            let app = axum::Router::<()>::new().merge(dormouse::axum::pprof());
            axum::serve(listener, app).await.unwrap();
        });
    });
    told.recv().unwrap()
}

fn ask(server: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    stream
}

/// The head and the body of an answer.
fn answer(mut stream: TcpStream) -> (String, Vec<u8>) {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let end = bytes.windows(4).position(|part| part == b"\r\n\r\n").unwrap();
    (String::from_utf8(bytes[..end].to_vec()).unwrap(), bytes[end + 4..].to_vec())
}

fn get(server: SocketAddr, path: &str) -> (String, Vec<u8>) {
    answer(ask(server, path))
}

/// A thread that works in a group until this is dropped.
struct Working(Arc<AtomicBool>);

impl Working {
    fn start(group: &str) -> Self {
        let (group, goes_on) = (Group::new(group), Arc::new(AtomicBool::new(true)));
        let until = Arc::clone(&goes_on);
        thread::spawn(move || {
            while until.load(Ordering::Relaxed) {
                group.scope(|| burn_the_kettle(10_000));
            }
        });
        Self(goes_on)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// A leaf: it is found without frame pointers, too.
#[inline(never)]
fn burn_the_kettle(rounds: u64) {
    for round in 0..rounds {
        std::hint::black_box(round);
    }
}

fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|found| found.trim_end() == name).count()
}

#[test]
fn gos_tool_reads_it_over_http() {
    if Command::new("go").arg("version").output().is_err() {
        return skip("no go here");
    }
    in_child(|| {
        let server = serve();
        let _working = [Working::start("GET /kettle"), Working::start("GET /cup")];
        let home = tempfile::tempdir().unwrap();
        let run = |arguments: &[&str], query: &str| {
            let url = format!("http://{server}/debug/pprof/profile?seconds=1&{query}");
            let mut go = Command::new("go");
            go.args(["tool", "pprof", "-timeout=120"])
                .args(arguments)
                .arg(url)
                .env("PPROF_TMPDIR", home.path());
            let output = go.output().unwrap();
            let both = [output.stdout, output.stderr].concat();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&both));
            String::from_utf8(both).unwrap()
        };
        // With names of this process's own.
        let top = run(&["-top", "-cum"], "symbols=1");
        assert!(top.contains("burn_the_kettle"), "{top}");
        // Without names it would read this program, which takes half a minute.
        let tags = run(&["-tags", "-symbolize=none"], "hz=50");
        assert!(tags.contains("GET /kettle") && tags.contains("GET /cup"), "{tags}");
        let one = run(&["-tags", "-symbolize=none"], "group=GET+/cup");
        assert!(one.contains("GET /cup") && !one.contains("GET /kettle"), "{one}");
    });
}

#[test]
fn several_at_once_have_their_own_requests() {
    in_child(|| {
        let server = serve();
        let _working = [Working::start("one"), Working::start("two")];
        let asked = ["hz=19", "hz=99&group=one", "hz=250&group=two"]
            .map(|query| ask(server, &format!("/debug/pprof/profile?seconds=2&{query}")));
        let [rare, one, two] = asked.map(|stream| {
            let (head, body) = answer(stream);
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            assert!(head.contains("content-type: application/octet-stream"), "{head}");
            decode::pprof(&body).unwrap().0
        });
        assert_eq!([&rare, &one, &two].map(|profile| 1_000_000_000 / profile.period), [19, 99, 250]);
        let names = |profile: &dormouse_profile::Profile| {
            let used = profile.samples.iter().map(|row| row.group);
            let mut names: Vec<_> = used.map(|at| profile.groups[at as usize].name.clone()).collect();
            names.sort_unstable();
            names.dedup();
            names.retain(|name| !name.is_empty() && name != "(dormouse)");
            names
        };
        assert_eq!([names(&one), names(&two)], [["one"], ["two"]]);
        assert_eq!(names(&rare), ["one", "two"]);
    });
}

#[test]
fn a_head_takes_no_profile() {
    let server = serve();
    // A profile that nobody would receive: an answer to one would come after five minutes.
    for path in ["", "profile?seconds=300", "symbol"] {
        let mut stream = TcpStream::connect(server).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        write!(stream, "HEAD /debug/pprof/{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let (head, body) = answer(stream);
        assert!(head.starts_with("HTTP/1.1 405") && body.is_empty(), "{path}: {head}");
    }
}

#[test]
fn a_client_that_hangs_up_ends_its_profile() {
    in_child(|| {
        let server = serve();
        let stream = ask(server, "/debug/pprof/profile?seconds=300");
        eventually(|| threads("dormouse-pprof") == 1 && threads("dormouse-profil") == 1);
        drop(stream);
        eventually(|| threads("dormouse-pprof") == 0 && threads("dormouse-profil") == 0);
    });
}

#[test]
fn a_ninth_one_is_asked_to_wait() {
    in_child(|| {
        let server = serve();
        let path = "/debug/pprof/profile?seconds=300";
        let streams: Vec<_> = (0..8).map(|_| ask(server, path)).collect();
        eventually(|| threads("dormouse-pprof") == 8);
        let (head, body) = get(server, path);
        assert!(head.starts_with("HTTP/1.1 429"), "{head}");
        assert!(head.contains("retry-after"), "{head}");
        assert!(String::from_utf8(body).unwrap().contains("8 profiles are being taken"));
        assert_eq!(respond_blocking("profile?seconds=1").status, 429);
        // A child of a fork has room of its own.
        let status = fork(|| assert_eq!(respond_blocking("profile?seconds=1").status, 200));
        assert!(status.success(), "{status}");
        drop(streams);
        eventually(|| threads("dormouse-pprof") == 0);
        assert!(get(server, "/debug/pprof/profile?seconds=1").0.starts_with("HTTP/1.1 200"));
    });
}

#[test]
fn bad_requests_are_told_why() {
    in_child(|| {
        Group::new("GET /menu");
        let server = serve();
        let (head, body) = get(server, "/debug/pprof/profile?seconds=x");
        assert!(head.starts_with("HTTP/1.1 400"), "{head}");
        assert_eq!(body, b"`seconds` is \"x\", and must be a whole number from 1 to 300\n");
        let (head, body) = get(server, "/debug/pprof/profile?group=GET+/menue");
        assert!(head.starts_with("HTTP/1.1 404"), "{head}");
        let body = String::from_utf8(body).unwrap();
        assert!(body.contains("no group matches `GET /menue`") && body.contains("\"GET /menu\""), "{body}");
        let (head, body) = get(server, "/debug/pprof/");
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/html"), "{head}");
        let body = String::from_utf8(body).unwrap();
        assert!(body.contains("profile?seconds=10&amp;group=GET%20/menu"), "{body}");
        // The thread that has answered is about to end.
        eventually(|| threads("dormouse-pprof") == 0);
    });
}

#[test]
fn a_future_in_a_forked_child_says_so() {
    in_child(|| {
        let mut responding = Box::pin(respond("/debug/pprof/profile?seconds=300"));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(responding.as_mut().poll(&mut cx).is_pending());
        let status = fork(|| match responding.as_mut().poll(&mut cx) {
            std::task::Poll::Ready(answer) => assert_eq!(answer.status, 503),
            std::task::Poll::Pending => panic!("nobody would wake it"),
        });
        assert!(status.success(), "{status}");
        drop(responding);
        eventually(|| threads("dormouse-pprof") == 0);
    });
}

#[test]
fn any_tower_server_can_mount_it() {
    use tower::ServiceExt as _;
    in_child(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let ask = |method: &str, uri: &str| {
            let request = axum::http::Request::builder().method(method).uri(uri).body(()).unwrap();
            let service = dormouse::tower::PprofService::<Vec<u8>>::new();
            let response = runtime.block_on(service.oneshot(request)).unwrap();
            (response.status().as_u16(), response.into_body())
        };
        let (status, body) = ask("GET", "http://x/debug/pprof/profile?seconds=1");
        assert_eq!(status, 200);
        decode::pprof(&body).unwrap();
        assert_eq!(ask("GET", "http://x/debug/pprof/profile?seconds=0").0, 400);
        assert_eq!(ask("POST", "http://x/debug/pprof/profile").0, 405);
        assert_eq!(ask("POST", "http://x/debug/pprof/symbol"), (200, b"num_symbols: 0\n".to_vec()));
    });
}

#[test]
fn many_clients_that_come_and_go_leave_nothing() {
    in_child(|| {
        let server = serve();
        let together = Arc::new(Barrier::new(4));
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let together = Arc::clone(&together);
                thread::spawn(move || {
                    together.wait();
                    for _ in 0..20 {
                        drop(ask(server, "/debug/pprof/profile?seconds=300&hz=250"));
                    }
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        // The server still accepts some of them, and sees then that they are gone.
        eventually(|| get(server, "/debug/pprof/profile?seconds=1").0.starts_with("HTTP/1.1 200"));
        eventually(|| threads("dormouse-pprof") == 0 && threads("dormouse-profil") == 0);
    });
}
