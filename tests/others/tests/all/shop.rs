//! The shop: whom its routes have called, how often, and for how long.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use dormouse::waits::Histogram;
use dormouse::waits::buckets::place;
use dormouse_protocol::{CallRow, Stat};

use crate::support::{Service, row};

/// The times that the peers take, at least. Those of statements are the shop's, those of prices the
/// gRPC service's.
const STOCK: Duration = Duration::from_millis(6);
const CACHE: Duration = Duration::from_millis(2);
const STATEMENT: Duration = Duration::from_millis(3);
const PRICE: Duration = Duration::from_millis(30);

/// A server that has each connection served by a thread of its own.
fn server(serve: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// How often the stock has answered.
static ANSWERS: AtomicU64 = AtomicU64::new(0);

/// Every third answer is an error.
fn stock(stream: TcpStream) {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while stream.read_line(&mut head).is_ok_and(|bytes| bytes > 0) {
        if head.ends_with("\r\n\r\n") {
            if head.starts_with("GET /never") {
                let _ = stream.read_to_end(&mut Vec::new());
                return;
            }
            thread::sleep(STOCK);
            let status = if ANSWERS.fetch_add(1, Ordering::Relaxed) % 3 == 2 {
                "503 Service Unavailable"
            } else {
                "200 OK"
            };
            let _ = write!(stream.get_mut(), "HTTP/1.1 {status}\r\nContent-Length: 1\r\n\r\nx");
            head.clear();
        }
    }
}

/// Knows every cup but the fifth.
fn cache(mut stream: TcpStream) {
    let mut command = String::new();
    let _ = BufReader::new(&stream).read_line(&mut command);
    thread::sleep(CACHE);
    let answer = if command.trim() == "GET cups:5" { "-ERR" } else { "+OK" };
    let _ = stream.write_all(answer.as_bytes());
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a service that accepts");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n")
        .expect("a service that reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// The calls of a route to a peer of that kind: there is one.
#[track_caller]
fn calls<'a>(stat: &'a Stat, group: &str, kind: &str) -> &'a CallRow {
    let group = row(stat, group).id;
    let rows: Vec<_> = stat.calls.iter().filter(|row| row.group == group && row.kind == kind).collect();
    let [row] = rows[..] else { panic!("{rows:?}") };
    row
}

#[test]
fn routes_show_whom_they_call() {
    let prices = Service::start("grpc", &[]);
    let (stock, cache) = (server(stock), server(cache));
    let mut shop =
        Service::start("shop", &["2", &stock.to_string(), &prices.address.to_string(), &cache.to_string()]);
    for number in (0..9).chain([3, 4, 5]) {
        get(shop.address, &format!("/order/{number}"));
    }
    for _ in 0..4 {
        assert!(get(shop.address, "/price").ends_with("49"));
    }
    for _ in 0..3 {
        assert!(get(shop.address, "/late").contains("504"));
    }
    let (known, shown) = (shop.known(), shop.shown());
    for (route, kind, peer, n, errors, delay) in [
        ("/order/{number}", "redis", "GET", 12, 2, CACHE),
        ("/order/{number}", "http", &*stock.to_string(), 12, 4, STOCK),
        ("/order/{number}", "sql", "INSERT INTO orders VALUES (?)", 12, 3, STATEMENT),
        ("/price", "grpc", "others.Numbers/Square", 4, 0, PRICE),
    ] {
        let row = calls(&shown, route, kind);
        let times = Histogram::from(&row.times);
        assert_eq!((row.name(), times.count(), row.errors, row.cancelled), (peer, n, Some(errors), 0));
        // The longest is the 99th percentile of so few: it lies between the peer's delay and the
        // longest time that the caller has seen.
        let p99 = times.quantile_ns(0.99).expect("calls");
        let path = route.split('{').next().unwrap_or_default().trim_end_matches('/');
        let longest = known.of("longest", &format!("{path} {kind}"));
        let buckets = place(delay.as_nanos() as u64)..=place(longest);
        assert!(buckets.contains(&place(p99)), "{route} {kind}: {p99} ns of {delay:?} to {longest} ns");
    }
    let late = calls(&shown, "/late", "http");
    assert_eq!((Histogram::from(&late.times).count(), late.cancelled), (0, 3));
    assert_eq!(shown.calls.len(), 5, "{:?}", shown.calls);
}
