//! The latency of a request begins when the request came, by the clocks of its client.
#![cfg(all(feature = "axum", feature = "hyper", feature = "tower"))]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::middleware::{Next, from_fn};
use axum::routing::{any, get};
use axum::{Router, extract::MatchedPath, extract::Request};
use dormouse::tokio::received;
use dormouse::waits::GroupWaits;
use dormouse::{Group, Waiting, hyper::Executor, tower::GroupLayer};
use hyper_util::rt::TokioIo;
use hyper_util::{server::conn::auto::Builder, service::TowerToHyperService};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::sync::Semaphore;

/// For how long workers are blocked.
const BLOCK: Duration = Duration::from_millis(30);

/// The bytes of a body that is longer than the buffers of a connection.
const BODY: usize = 1 << 20;

/// How a service accepts connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accepts {
    Axum,
    AxumStreams,
    Hyper,
    /// hyper, with another stream between it and the socket, as TLS is.
    Between,
    /// hyper, on a stream of which the kernel returns no stamps.
    Unstamped,
}

/// A service with `/NAME/block`, which keeps its worker until the test lets it go, `/NAME/fast`,
/// and routes that middleware keeps until then, without a worker: `/NAME/layer` and
/// `/NAME/handler`, by what groups them.
struct Service {
    name: &'static str,
    address: SocketAddr,
    has_stamps: bool,
    blocks: Receiver<()>,
    go_on: SyncSender<()>,
    kept: Arc<Semaphore>,
    runtime: runtime::Runtime,
}

/// A stream that passes bytes on.
struct Passing<I>(I);

impl<I: AsyncRead + Unpin> AsyncRead for Passing<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, to)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Passing<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, of: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, of)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

async fn serve_hyper<I>(io: I, app: Router)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = TowerToHyperService::new(app);
    let _closed = Builder::new(Executor::server()).serve_connection(TokioIo::new(io), service).await;
}

impl Service {
    /// `workers`: 0 for a current-thread runtime.
    fn start(name: &'static str, workers: usize, accepts: Accepts) -> Self {
        let (begins, blocks) = sync_channel(16);
        let (go_on, goes_on) = sync_channel(16);
        let goes_on = Arc::new(Mutex::new(goes_on));
        let keeps = begins.clone();
        let block = async move || {
            begins.send(()).unwrap();
            goes_on.lock().unwrap().recv().unwrap();
            "done."
        };
        let layer = GroupLayer::new(|request: &Request| {
            request.extensions().get().map_or("unmatched", MatchedPath::as_str).to_owned().into()
        });
        let app = Router::<()>::new()
            .route(&format!("/{name}/fast"), get(async || "done."))
            .route(&format!("/{name}/block"), get(block))
            .route(&format!("/{name}/layer"), any(async |_: Bytes| "done."))
            .layer(layer);
        let own = Group::new(&format!("/{name}/handler"));
        let kept = Arc::new(Semaphore::new(0));
        let let_go = Arc::clone(&kept);
        let keep = from_fn(move |request: Request, next: Next| {
            let (keeps, let_go) = (keeps.clone(), Arc::clone(&let_go));
            async move {
                if [format!("/{name}/layer").as_str(), own.name()].contains(&request.uri().path()) {
                    keeps.send(()).unwrap();
                    let_go.acquire().await.unwrap().forget();
                }
                next.run(request).await
            }
        });
        let app =
            app.route(own.name(), any(dormouse::axum::handler(own, async |_: Bytes| "done."))).layer(keep);
        let mut builder = runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(workers.max(1)).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Group::new("connections");
        let serving = async move {
            if matches!(accepts, Accepts::Axum | Accepts::AxumStreams) {
                let listener = dormouse::axum::listener(listener, connections);
                return match accepts {
                    Accepts::Axum => axum::serve(listener, app).await.unwrap(),
                    _ => axum::serve(listener, dormouse::axum::streams(app)).await.unwrap(),
                };
            }
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (task, app) = (connections.connection(), app.clone());
                match accepts {
                    Accepts::Between => {
                        tokio::spawn(task.instrument(serve_hyper(Passing(received(stream)), app)))
                    }
                    Accepts::Unstamped => {
                        tokio::spawn(task.instrument(serve_hyper(received(Passing(stream)), app)))
                    }
                    _ => tokio::spawn(task.instrument(serve_hyper(received(stream), app))),
                };
            }
        };
        if workers == 0 {
            let one = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            drop(thread::spawn(move || one.block_on(serving)));
        } else {
            runtime.spawn(serving);
        }
        let has_stamps = !matches!(accepts, Accepts::Unstamped);
        Self { name, address, has_stamps, blocks, go_on, kept, runtime }
    }

    /// A connection that serves requests until one has a stamp: the kernel begins to stamp some
    /// time after the first socket wants that.
    fn guest(&self) -> Guest {
        let mut guest = Guest(TcpStream::connect(self.address).unwrap());
        guest.0.set_nodelay(true).unwrap();
        let stamped = || Group::new("unmatched").read_waits().queue.received;
        let before = stamped();
        dormouse_testkit::eventually(|| {
            guest.ask(&[&self.path("warm")]);
            guest.answers(1);
            stamped() > before || !self.has_stamps
        });
        guest
    }

    fn path(&self, route: &str) -> String {
        format!("/{}/{route}", self.name)
    }

    fn waits(&self, route: &str) -> GroupWaits {
        Group::new(&self.path(route)).read_waits()
    }

    /// Has `workers` workers blocked while `ask` asks, for as long as is returned at least.
    fn blocked(&self, workers: usize, ask: impl FnOnce()) -> Duration {
        let mut blocking: Vec<_> = (0..workers).map(|_| self.guest()).collect();
        for guest in &mut blocking {
            guest.ask(&[&self.path("block")]);
        }
        for _ in &blocking {
            // The worker that looks at sockets may be blocked, and tokio wakes another one for new
            // work alone.
            dormouse_testkit::eventually(|| {
                self.runtime.spawn(async {});
                self.blocks.recv_timeout(Duration::from_millis(1)).is_ok()
            });
        }
        ask();
        let asked = Instant::now();
        thread::sleep(BLOCK);
        let blocked = asked.elapsed();
        for _ in &blocking {
            self.go_on.send(()).unwrap();
        }
        blocked
    }

    /// Has a request kept, and its worker serve another connection meanwhile. Returns for how long
    /// it was kept at least.
    fn keep(&self, other: &mut Guest, ask: impl FnOnce()) -> Duration {
        ask();
        self.blocks.recv().unwrap();
        let asked = Instant::now();
        other.ask(&[&self.path("fast")]);
        other.answers(1);
        thread::sleep(BLOCK);
        let kept = asked.elapsed();
        self.kept.add_permits(1);
        kept
    }
}

/// A client with HTTP/1.
struct Guest(TcpStream);

impl Guest {
    fn ask(&mut self, paths: &[&str]) {
        // Pipelined requests come at once.
        let all: Vec<_> =
            paths.iter().map(|path| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).collect();
        self.0.write_all(all.concat().as_bytes()).unwrap();
    }

    /// A request with a body that a connection does not read at once.
    fn post(&mut self, path: &str) {
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY}\r\n\r\n");
        self.0.write_all(&[head.into_bytes(), vec![b'+'; BODY]].concat()).unwrap();
    }

    /// Reads that many answers, of which each ends like one of these handlers or is a 404.
    fn answers(&mut self, count: usize) {
        let mut all = Vec::new();
        let ends = |all: &[u8]| {
            let all = String::from_utf8_lossy(all);
            all.matches("done.").count() + all.matches(" 404 ").count()
        };
        while ends(&all) < count {
            let mut bytes = [0; 1000];
            let n = self.0.read(&mut bytes).unwrap();
            assert!(n > 0, "closed after {all:?}");
            all.extend_from_slice(&bytes[..n]);
        }
    }
}

/// Checks the only request of a route: it lasted for this long at least and at most, and the kernel
/// had received it.
fn check(waits: &GroupWaits, at_least: Duration, at_most: Duration, what: &str) {
    let (queue, latency) = (waits.queue, Duration::from_nanos(waits.requests.sum_ns));
    let queued = Duration::from_nanos(queue.unseen_ns + queue.behind_ns);
    // Counter and clock differ by less than one in a thousand, and the stamp is of another clock.
    let slack = at_most / 1000 + Duration::from_micros(50);
    assert_eq!((waits.requests.count(), queue.requests, queue.received), (1, 1, 1), "{what}");
    assert!(
        (at_least.saturating_sub(slack)..=at_most + slack).contains(&latency),
        "{what}: {at_least:?} {latency:?}"
    );
    assert!(queued + slack >= at_least && queued <= latency, "{what}: {queued:?} {latency:?}");
}

#[test]
fn a_blocked_worker_shows_in_latencies_of_others() {
    let _waiting = Waiting::start().unwrap();
    let cases = [
        ("axum one", 1, Accepts::Axum),
        ("axum four", 4, Accepts::Axum),
        ("axum current", 0, Accepts::Axum),
        ("hyper one", 1, Accepts::Hyper),
        ("between", 1, Accepts::Between),
    ];
    for (name, workers, accepts) in cases {
        let name = &*name.replace(' ', "-").leak();
        let service = Service::start(name, workers, accepts);
        let mut guest = service.guest();
        // An idle connection is not queued.
        thread::sleep(BLOCK);
        let begun = Instant::now();
        let blocked = service.blocked(workers.max(1), || guest.ask(&[&service.path("fast")]));
        guest.answers(1);
        let lasted = begun.elapsed();
        dormouse_testkit::eventually(|| service.waits("fast").requests.count() == 1);
        check(&service.waits("fast"), blocked, lasted, name);
        let queue = service.waits("fast").queue;
        assert!(queue.unseen_ns > 20_000_000, "{name}: no worker looked: {queue:?}");
    }
}

#[test]
fn the_first_request_of_a_connection_is_stamped() {
    let _waiting = Waiting::start().unwrap();
    let service = Service::start("first", 1, Accepts::Axum);
    let _other = service.guest();
    let mut guest = None;
    let begun = Instant::now();
    let blocked = service.blocked(1, || {
        let mut new = Guest(TcpStream::connect(service.address).unwrap());
        new.ask(&["/first/fast"]);
        guest = Some(new);
    });
    guest.unwrap().answers(1);
    let lasted = begun.elapsed();
    dormouse_testkit::eventually(|| service.waits("fast").requests.count() == 1);
    check(&service.waits("fast"), blocked, lasted, "first");
}

#[test]
fn a_pipelined_request_came_with_its_bytes() {
    let _waiting = Waiting::start().unwrap();
    let service = Service::start("pipelined", 1, Accepts::Axum);
    let mut guest = service.guest();
    let begun = Instant::now();
    guest.ask(&["/pipelined/block", "/pipelined/fast"]);
    service.blocks.recv().unwrap();
    let asked = Instant::now();
    thread::sleep(BLOCK);
    let blocked = asked.elapsed();
    service.go_on.send(()).unwrap();
    guest.answers(2);
    let lasted = begun.elapsed();
    dormouse_testkit::eventually(|| service.waits("fast").requests.count() == 1);
    check(&service.waits("fast"), blocked, lasted, "pipelined");
}

#[test]
fn a_stream_without_stamps_has_a_lower_bound() {
    let _waiting = Waiting::start().unwrap();
    let service = Service::start("unstamped", 1, Accepts::Unstamped);
    let mut guest = service.guest();
    service.blocked(1, || guest.ask(&["/unstamped/fast"]));
    guest.answers(1);
    dormouse_testkit::eventually(|| service.waits("fast").requests.count() == 1);
    let queue = service.waits("fast").queue;
    assert_eq!((queue.requests, queue.received, queue.unseen_ns), (1, 0, 0));
}

/// The frame of a request of HTTP/2, with fields of the static table and a path.
fn headers(stream: u8, path: &str) -> Vec<u8> {
    let mut fields = vec![0x82, 0x86, 0x41, 1, b'x', 0x04, path.len() as u8];
    fields.extend(path.as_bytes());
    let mut frame = vec![0, 0, fields.len() as u8, 1, 0b101, 0, 0, 0, stream];
    frame.extend(fields);
    frame
}

/// Three requests of one connection come while the worker is blocked.
fn streams(name: &'static str, accepts: Accepts) {
    let service = Service::start(name, 1, accepts);
    let mut guest = TcpStream::connect(service.address).unwrap();
    guest.set_nodelay(true).unwrap();
    guest.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let warm = Group::new("unmatched").read().requests;
    guest.write_all(&headers(1, &service.path("warm"))).unwrap();
    dormouse_testkit::eventually(|| Group::new("unmatched").read().requests > warm);
    let begun = Instant::now();
    let blocked = service.blocked(1, || {
        let path = service.path("fast");
        let all: Vec<u8> = [3, 5, 7].iter().flat_map(|&stream| headers(stream, &path)).collect();
        guest.write_all(&all).unwrap();
    });
    let fast = || service.waits("fast");
    dormouse_testkit::eventually(|| fast().requests.count() == 3);
    let (waits, lasted) = (fast(), begun.elapsed());
    assert_eq!((waits.queue.requests, waits.queue.received), (3, 3), "{name}");
    let queued = Duration::from_nanos(waits.queue.unseen_ns + waits.queue.behind_ns);
    let bounds = 3 * blocked..=3 * lasted;
    assert!(bounds.contains(&(queued + Duration::from_millis(1))), "{name}: {queued:?} {bounds:?}");
}

#[test]
fn streams_of_one_connection_are_queued_alike() {
    let _waiting = Waiting::start().unwrap();
    streams("streams", Accepts::Hyper);
    streams("streams-of-axum", Accepts::AxumStreams);
}

#[test]
fn requests_wait_in_middleware() {
    let _waiting = Waiting::start().unwrap();
    let service = Service::start("kept", 1, Accepts::Axum);
    let (mut guest, mut other) = (service.guest(), service.guest());
    // Two of each, by one connection.
    for (n, route) in [(1, "layer"), (1, "handler"), (2, "layer"), (2, "handler")] {
        let (path, before) = (service.path(route), service.waits(route));
        let begun = Instant::now();
        let kept = service.keep(&mut other, || guest.post(&path));
        guest.answers(1);
        let lasted = begun.elapsed();
        dormouse_testkit::eventually(|| service.waits(route).requests.count() == n);
        check(&service.waits(route).since(&before), kept, lasted, &format!("{route} {n}"));
    }
}

#[test]
fn streams_wait_in_middleware() {
    let _waiting = Waiting::start().unwrap();
    let service = Service::start("kept-streams", 1, Accepts::AxumStreams);
    let mut other = service.guest();
    let mut guest = TcpStream::connect(service.address).unwrap();
    guest.set_nodelay(true).unwrap();
    guest.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    for (stream, route) in [(1, "layer"), (3, "handler")] {
        let begun = Instant::now();
        let path = service.path(route);
        let kept = service.keep(&mut other, || guest.write_all(&headers(stream, &path)).unwrap());
        dormouse_testkit::eventually(|| service.waits(route).requests.count() == 1);
        check(&service.waits(route), kept, begun.elapsed(), route);
    }
}

#[test]
fn streams_of_one_read_came_apart() {
    let _waiting = Waiting::start().unwrap();
    let service = Service::start("apart", 1, Accepts::Hyper);
    let mut guest = TcpStream::connect(service.address).unwrap();
    guest.set_nodelay(true).unwrap();
    guest.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let path = service.path("fast");
    let fast = || service.waits("fast");
    // The kernel joins packets that it has acknowledged, and does so soon on some connections.
    for round in 0_u8.. {
        assert!(round < 40, "one stamp for all: {:?}", fast().queue);
        let (before, mut sent) = (fast(), Vec::new());
        let mut asked = Instant::now();
        let blocked = service.blocked(1, || {
            for stream in 0..3 {
                sent.push(Instant::now());
                guest.write_all(&headers(6 * round + 2 * stream + 1, &path)).unwrap();
                thread::sleep(Duration::from_millis(5));
            }
            asked = Instant::now();
        });
        dormouse_testkit::eventually(|| fast().requests.count() == before.requests.count() + 3);
        let done = Instant::now();
        let queue = fast().queue.since(&before.queue);
        let queued = Duration::from_nanos(queue.unseen_ns + queue.behind_ns);
        let sum = |end: Instant| sent.iter().map(|&sent| end - sent).sum::<Duration>();
        let slack = Duration::from_millis(1);
        assert!(queued <= sum(done) + slack, "{queued:?} {:?}", sum(done));
        if queue.received == 3 && queued + slack >= sum(asked + blocked) {
            break;
        }
    }
}

#[test]
fn own_loops_are_queued_from_their_wakes() {
    let _waiting = Waiting::start().unwrap();
    let one = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let [connections, command, inner] = ["own loop", "own command", "inside"].map(Group::new);
    one.block_on(async {
        let (mut peer, mut stream) = tokio::io::duplex(64);
        let serving = tokio::spawn(connections.connection().instrument(async move {
            let mut line = [0; 4];
            stream.read_exact(&mut line).await.unwrap();
            command.request().instrument(async { inner.request().run(|| ()) }).await;
            // The next one begins in the same poll: for how long it has waited is not known.
            command.request().instrument(async {}).await;
        }));
        tokio::task::yield_now().await;
        peer.write_all(b"put.").await.unwrap();
        let blocked = Instant::now();
        thread::sleep(BLOCK);
        let blocked = blocked.elapsed();
        serving.await.unwrap();
        let (queue, slack) = (command.read_waits().queue, Duration::from_micros(50));
        assert_eq!((queue.requests, queue.received, queue.unseen_ns), (1, 0, 0));
        assert!(Duration::from_nanos(queue.behind_ns) + slack >= blocked, "{queue:?} {blocked:?}");
        assert_eq!(inner.read_waits().queue.requests, 0, "it came with the request around it");
    });
}
