//! Writing a response is charged to its route, where it can be told whose response is written.
#![cfg(all(feature = "axum", feature = "hyper", feature = "tower"))]

use std::collections::BTreeMap;
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::serve::Listener;
use axum::{Router, extract::MatchedPath, extract::Request, routing::get};
use dormouse::waits::{Waiting, living};
use dormouse::{Event, Group, hyper::Executor, tower::GroupLayer};
use dormouse_testkit::{HANG, eventually, thread_cpu};
use futures_util::stream;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::{client::legacy::Client, server::conn::auto::Builder, service::TowerToHyperService};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::runtime;

const LARGE: usize = 16 << 20;
const SMALL: usize = 3 << 10;
const FRAMES: usize = 20;

/// Each route's body consists of one byte.
const BODIES: [(&str, u8); 3] = [("large", 1), ("small", 2), ("stream", 3)];

/// The writes in one group: their CPU time, and how often each byte was
/// written.
#[derive(Debug, Default, Clone)]
struct Written {
    cpu: Duration,
    writes: u32,
    bytes: BTreeMap<u8, usize>,
}

impl Written {
    /// Asserts that it has no body but that of this byte.
    #[track_caller]
    fn assert_only(&self, body: u8) {
        let others = BODIES.iter().filter(|(_, byte)| *byte != body);
        assert!(others.into_iter().all(|(_, byte)| !self.bytes.contains_key(byte)), "{body}: {self:?}");
    }
}

/// By the name of the group.
type Account = Arc<Mutex<BTreeMap<&'static str, Written>>>;

/// A socket that knows in which group it is written.
struct Metered(tokio::net::TcpStream, Account);

impl Metered {
    fn write(
        &mut self,
        parts: &[&[u8]],
        write: impl FnOnce(Pin<&mut tokio::net::TcpStream>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let before = thread_cpu();
        let written = write(Pin::new(&mut self.0));
        let mut account = self.1.lock().unwrap();
        let of = account.entry(Group::current().map_or("none", Group::name)).or_default();
        let mut left = if let Poll::Ready(Ok(written)) = written { written } else { 0 };
        for part in parts {
            let part = &part[..left.min(part.len())];
            left -= part.len();
            // A body is long, and all of one byte; no head of HTTP/1 has these.
            match BODIES.iter().find(|(_, byte)| [part.first(), part.last()] == [Some(byte); 2]) {
                Some((_, byte)) => *of.bytes.entry(*byte).or_default() += part.len(),
                None => part.iter().for_each(|byte| *of.bytes.entry(*byte).or_default() += 1),
            }
        }
        of.writes += 1;
        of.cpu += thread_cpu().saturating_sub(before);
        written
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Metered {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, of: &[u8]) -> Poll<io::Result<usize>> {
        self.write(&[of], |io| io.poll_write(cx, of))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        of: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let parts: Vec<&[u8]> = of.iter().map(|part| &**part).collect();
        self.write(&parts, |io| io.poll_write_vectored(cx, of))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

struct MeteredListener(TcpListener, Account);

impl Listener for MeteredListener {
    type Io = Metered;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Metered, SocketAddr) {
        let (stream, address) = self.0.accept().await.unwrap();
        (Metered(stream, Arc::clone(&self.1)), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// How a service accepts connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accepts {
    Axum,
    /// A loop of its own, with the stream inside of a connection's task.
    Loop,
}

/// A service with the routes `/NAME/{large,small,stream}`.
struct Service {
    name: &'static str,
    address: SocketAddr,
    written: Account,
    runtime: runtime::Runtime,
}

impl Service {
    fn start(name: &'static str, accepts: Accepts) -> Self {
        let layer = GroupLayer::new(|request: &Request| {
            request.extensions().get().map_or("unmatched", MatchedPath::as_str).to_owned().into()
        });
        let large = Bytes::from(vec![1; LARGE]);
        let frames = || {
            stream::unfold(0, |sent| async move {
                tokio::task::yield_now().await;
                (sent < FRAMES).then(|| (Ok::<_, io::Error>(Bytes::from_static(&[3; SMALL])), sent + 1))
            })
        };
        let app = Router::<()>::new()
            .route(&format!("/{name}/large"), get(async move || large))
            .route(&format!("/{name}/small"), get(async || Bytes::from_static(&[2; SMALL])))
            .route(&format!("/{name}/stream"), get(async move || Body::from_stream(frames())))
            .layer(layer);
        let mut builder = runtime::Builder::new_multi_thread();
        // Its hooks enter the tasks of connections.
        #[cfg(tokio_unstable)]
        dormouse::tokio::group_spawns(&mut builder);
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let written = Account::default();
        let mut listener = MeteredListener(listener, Arc::clone(&written));
        let connections = Group::new(name);
        runtime.spawn(async move {
            if accepts == Accepts::Axum {
                return axum::serve(dormouse::axum::listener(listener, connections), app).await.unwrap();
            }
            loop {
                let stream = dormouse::tokio::received(listener.accept().await.0);
                let service = TowerToHyperService::new(app.clone());
                tokio::spawn(connections.connection().instrument(async move {
                    let builder = Builder::new(Executor::server());
                    let _closed = builder.serve_connection(TokioIo::new(stream), service).await;
                }));
            }
        });
        Self { name, address, written, runtime }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream
    }

    fn send(&self, stream: &mut TcpStream, routes: &[&str]) {
        let request = |route: &&str| format!("GET /{}/{route} HTTP/1.1\r\nHost: tea\r\n\r\n", self.name);
        stream.write_all(routes.iter().map(request).collect::<String>().as_bytes()).unwrap();
    }

    fn group(&self, route: &str) -> Group {
        Group::new(&format!("/{}/{route}", self.name))
    }

    /// The writes in a route's group.
    fn written(&self, route: &str) -> Written {
        self.written.lock().unwrap().get(self.group(route).name()).cloned().unwrap_or_default()
    }

    /// How often the byte of a route's body was written in that group.
    fn bytes_in(&self, group: &str, byte: u8) -> usize {
        let written = self.written.lock().unwrap();
        written.get(group).and_then(|of| of.bytes.get(&byte)).copied().unwrap_or(0)
    }
}

/// Comparing is much faster than counting in a build without optimisation.
fn count(part: &[u8], byte: u8) -> usize {
    if part == &[byte; 64][..part.len()] {
        part.len()
    } else {
        part.iter().map(|read| usize::from(*read == byte)).sum()
    }
}

/// Reads until this many of each route's bytes have come.
fn receive(stream: &mut TcpStream, expected: &[(u8, usize)]) {
    let (mut left, mut buffer) = (expected.to_vec(), vec![0; 1 << 20]);
    while left.iter().any(|(_, left)| *left > 0) {
        let n = stream.read(&mut buffer).unwrap();
        assert!(n > 0, "closed with {left:?} missing");
        for (byte, left) in &mut left {
            *left -= buffer[..n].chunks(64).map(|part| count(part, *byte)).sum::<usize>();
        }
    }
}

#[test]
fn writes_are_charged_to_their_routes() {
    let _counting = dormouse::start_counting(&[Event::TASK_CLOCK]).unwrap();
    for (name, accepts) in [("writes-axum", Accepts::Axum), ("writes-loop", Accepts::Loop)] {
        let service = Service::start(name, accepts);
        let mut stream = service.connect();
        for _ in 0..3 {
            for (route, byte, bytes) in
                [("small", 2, SMALL), ("large", 1, LARGE), ("stream", 3, FRAMES * SMALL)]
            {
                service.send(&mut stream, &[route]);
                receive(&mut stream, &[(byte, bytes)]);
            }
        }
        for (route, byte) in BODIES {
            let group = service.group(route);
            eventually(|| group.read().alive == 0);
            let written = service.written(route);
            written.assert_only(byte);
            assert_eq!(service.bytes_in(name, byte), 0, "{route}: written by the connection");
            let read = group.read();
            assert_eq!([read.requests, read.started, read.finished], [3; 3], "{route}: a write is no task");
        }
        assert_eq!(service.written("large").bytes[&1], 3 * LARGE);
        // The rest of a request costs both routes the same.
        let charged = service.group("large").read().cpu.saturating_sub(service.group("small").read().cpu);
        let (large, small) = (service.written("large"), service.written("small"));
        let used = large.cpu.saturating_sub(small.cpu);
        println!("{name}: {charged:?} for {used:?} of {} writes", large.writes);
        // A write is charged with the way to it, which is long without optimisation.
        let bounds = used.mul_f64(0.98)..used.mul_f64(1.5);
        assert!(bounds.contains(&charged), "{charged:?} for {used:?} of writes");
    }
}

#[test]
fn pipelined_responses_are_not_mixed() {
    let _counting = dormouse::start_counting(&[Event::TASK_CLOCK]).unwrap();
    let service = Service::start("pipelined", Accepts::Axum);
    let mut stream = service.connect();
    // The socket takes a part of the first, so the second may be made before all is written.
    service.send(&mut stream, &["large", "small", "large", "small"]);
    receive(&mut stream, &[(1, 2 * LARGE), (2, 2 * SMALL)]);
    service.send(&mut stream, &["small", "stream", "small"]);
    receive(&mut stream, &[(2, 2 * SMALL), (3, FRAMES * SMALL)]);
    for (route, byte) in BODIES {
        let group = service.group(route);
        eventually(|| group.read().alive == 0);
        let written = service.written(route);
        println!("{route}: {written:?}, by the connection {}", service.bytes_in("pipelined", byte));
        written.assert_only(byte);
    }
    assert!(service.bytes_in(service.group("large").name(), 1) > 0);
}

#[test]
fn streams_of_one_connection_are_written_by_it() {
    let _counting = dormouse::start_counting(&[Event::TASK_CLOCK]).unwrap();
    let service = Service::start("multiplexed", Accepts::Loop);
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Body>();
    let urls = ["small", "stream"].map(|route| format!("http://{}/multiplexed/{route}", service.address));
    service.runtime.block_on(async {
        for url in urls {
            let response = client.get(url.parse().unwrap()).await.unwrap();
            axum::body::to_bytes(Body::new(response.into_body()), usize::MAX).await.unwrap();
        }
    });
    // Heads of HTTP/2 may contain any byte.
    assert!(
        service.bytes_in("multiplexed", 2) >= SMALL && service.bytes_in("multiplexed", 3) >= FRAMES * SMALL
    );
    for (route, _) in BODIES {
        let written = service.written(route);
        assert!(written.bytes.is_empty(), "{route}: {written:?}");
    }
}

#[test]
fn a_client_that_hangs_up_leaves_nothing() {
    let _counting = dormouse::start_counting(&[Event::TASK_CLOCK]).unwrap();
    let _waiting = Waiting::start().unwrap();
    let service = Service::start("hung-up", Accepts::Axum);
    let mut stream = service.connect();
    service.send(&mut stream, &["large"]);
    stream.read_exact(&mut [0; 1024]).unwrap();
    let (route, connections) = (service.group("large"), Group::new("hung-up"));
    // The rest waits for the client, and the request is over.
    eventually(|| route.read().alive == 0);
    assert_eq!(living().filter(|task| task.group == route.id()).count(), 0);
    assert!(connections.read().alive > 0);
    drop(stream);
    eventually(|| connections.read().alive == 0);
    let read = route.read();
    assert_eq!([read.requests, read.started, read.finished], [1; 3]);
    let (polling, cpu) = (route.read_waits().poll_ns, read.cpu);
    assert!(u128::from(polling) >= cpu.as_nanos(), "{polling} ns in polls, {cpu:?} on a CPU");
}
