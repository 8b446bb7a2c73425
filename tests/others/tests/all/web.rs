//! The web service on axum.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use tungstenite::Message;

use crate::lines::Lines;
use crate::support::{Service, row};

/// The size of the upstream's large answer.
const LARGE: usize = 1 << 20;

/// A folder of static files, and one of them.
pub(crate) const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const FILE: &str = "Cargo.lock";

/// A server of this process, so that its work is none of the service's.
pub(crate) fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(|| answer(stream));
        }
    });
    address
}

fn answer(stream: TcpStream) {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while stream.read_line(&mut head).is_ok_and(|bytes| bytes > 0) {
        if head.ends_with("\r\n\r\n") {
            let length = if head.starts_with("GET /large") { LARGE } else { 1 };
            let mut whole = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into_bytes();
            whole.resize(whole.len() + length, b'x');
            let _ = stream.get_mut().write_all(&whole);
            head.clear();
        }
    }
}

fn start(workers: &str) -> Service {
    Service::start("web", &[workers, &upstream().to_string(), FILES])
}

struct Client<'a>(&'a Service, ureq::Agent);

impl Client<'_> {
    fn new(service: &Service) -> Client<'_> {
        Client(service, ureq::Agent::config_builder().http_status_as_error(false).build().into())
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.0.address)
    }

    /// The status and the length of the body.
    fn get(&self, path: &str) -> (u16, usize) {
        let mut answer = self.1.get(self.url(path)).call().expect("an answer");
        (answer.status().as_u16(), answer.body_mut().read_to_vec().expect("a body").len())
    }

    fn post(&self, path: &str) -> u16 {
        self.1.post(self.url(path)).send_empty().expect("an answer").status().as_u16()
    }
}

#[test]
fn routes_have_their_time() {
    let mut service = start("2");
    let client = Client::new(&service);
    let file = std::fs::metadata(format!("{FILES}/{FILE}")).expect("a file");
    for number in 0..6 {
        assert_eq!(client.get("/compute"), (200, 8));
        assert_eq!(client.get("/report").0, 202);
        assert_eq!(client.post("/import"), 202);
        assert_eq!(client.get(&format!("/missing/{number}")), (404, 0));
        assert_eq!(client.get(&format!("/files/{FILE}")), (200, file.len() as usize));
        assert!(client.get("/events/2").1 > 0);
    }
    service.await_noted("done", "import", 6);
    service.await_alive("/report", 0);
    let (shown, _) = service.charged();
    for route in ["/compute", "/report", "/import", "unmatched", "/files"] {
        let row = row(&shown, route);
        assert_eq!((row.requests, row.alive), (6, 0), "{route}");
    }
    let events = row(&shown, "/events/{count}");
    assert_eq!((events.requests, events.alive), (0, 0), "a stream is no request");
    assert!(row(&shown, "tokio blocking").cpu_ns > 0, "files are read on threads of tokio's own");
    let import = row(&shown, "import");
    assert_eq!((import.requests, import.alive), (0, 1));
}

/// The connection to the upstream was opened by the small one, and is the large one's as well.
#[test]
fn a_pooled_connection_is_no_routes_work() {
    let mut service = start("2");
    let client = Client::new(&service);
    assert_eq!(client.get("/small"), (200, 1));
    for _ in 0..5 {
        assert_eq!(client.get("/large"), (200, LARGE));
    }
    let (shown, _) = service.charged();
    assert_eq!((row(&shown, "/small").requests, row(&shown, "/large").requests), (1, 5));
}

#[test]
fn sockets_have_the_time_of_their_messages() {
    let mut service = start("2");
    let address = service.address;
    let clients: Vec<_> = (0..3)
        .map(|_| {
            thread::spawn(move || {
                let stream = TcpStream::connect(address).expect("a service that accepts");
                let url = format!("ws://{address}/socket");
                let (mut socket, _) = tungstenite::client(url, stream).expect("a socket");
                for _ in 0..6 {
                    socket.send(Message::text("hello")).expect("a service that reads");
                    assert_eq!(socket.read().expect("a message"), Message::text("hello"));
                }
                socket.close(None).expect("an end");
                while socket.read().is_ok() {}
            })
        })
        .collect();
    for client in clients {
        client.join().expect("a client");
    }
    service.await_alive("/socket", 0);
    let (shown, _) = service.charged();
    assert_eq!(row(&shown, "/socket").requests, 0);
}

#[test]
fn hang_ups_and_panics_are_requests_but_streams() {
    let mut service = start("2");
    for _ in 0..4 {
        let hangs = Lines::get(service.address, "/never");
        service.await_alive("/never", 1);
        drop(hangs);
        service.await_alive("/never", 0);
        let mut streams = Lines::get(service.address, "/events/1000000");
        streams.skip_to("data: 4");
        service.await_alive("/events/{count}", 1);
        drop(streams);
        service.await_alive("/events/{count}", 0);
        assert_eq!(Lines::get(service.address, "/fail").line(), "");
    }
    service.await_alive("connections", 0);
    let (shown, _) = service.charged();
    for (route, requests) in [("/never", 4), ("/events/{count}", 0), ("/fail", 4)] {
        let row = row(&shown, route);
        assert_eq!((row.requests, row.alive), (requests, 0), "{route}");
    }
}

#[test]
fn idle_connections_await_their_clients() {
    let mut service = start("2");
    let mut idle = [Lines::open(service.address), Lines::get(service.address, "/fast")];
    idle[1].skip_to("fast");
    service.assert_awaiting(&["connections", "connections"]);
}

#[test]
fn a_blocked_worker_is_latency_of_others() {
    let mut service = start("1");
    let mut fast = Lines::open(service.address);
    let request = "GET /fast HTTP/1.1\r\nHost: others\r\n\r";
    service.await_stamps("/fast", || {
        fast.send(request);
        fast.skip_to("fast");
    });
    let _blocks = Lines::get(service.address, "/block");
    service.await_noted("held", "/block", 1);
    let send = || {
        fast.send(request);
        fast
    };
    service.assert_queued("/fast", send, |mut fast| fast.skip_to("fast"));
}
