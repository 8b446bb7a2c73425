//! The service: a forked child, in which each request keeps its worker for as long as its path
//! says.

use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use axum::Router;
use axum::extract::{MatchedPath, Path, Request};
use axum::routing::get;
use dormouse::tower::GroupLayer;
use dormouse::{Group, Waiting};
use dormouse_waits::Histogram;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::runtime::Builder;

use super::events::{EVENTS, events};
use super::load::Protocol;
use crate::apart::Child;
use crate::runner::Failure;

/// The route of the requests that are measured, which is the name of its group.
const MEASURED: &str = "/measured/{awaits}/{keeps}/{id}";

/// A running service. It ends when this is dropped.
pub(super) struct Service {
    child: Child,
    address: SocketAddr,
    /// The number of a kind of windows ends a window of it, [`END`] the service.
    ask: PipeWriter,
    /// The child repeats the number once it has counted the window.
    counted: PipeReader,
}

const END: u8 = u8::MAX;

/// The child's ends of the two pipes.
struct Windows {
    asked: PipeReader,
    tell: PipeWriter,
}

impl Windows {
    /// Calls `count` with the number of each window that ends, until the service does.
    fn each(mut self, mut count: impl FnMut(u8)) -> io::Result<()> {
        loop {
            let mut number = [0];
            self.asked.read_exact(&mut number)?;
            if number == [END] {
                return Ok(());
            }
            count(number[0]);
            self.tell.write_all(&number)?;
        }
    }
}

/// Whether dormouse is in the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dormouse {
    Inside,
    /// The service has neither layers nor streams of dormouse's, and shows nothing.
    Nowhere,
}

/// The latency of the measured requests of one kind of windows as dormouse shows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    pub(super) count: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

impl Service {
    /// A service that the kernel ends after the given number of seconds.
    pub(super) fn start(
        protocol: Protocol,
        workers: usize,
        dormouse: Dormouse,
        seconds: u32,
    ) -> Result<Self, Failure> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let ((asked, ask), (counted, tell)) = (pipe()?, pipe()?);
        let windows = Windows { asked, tell };
        let child = Child::lasting(seconds, move || match dormouse {
            Dormouse::Inside => serve(listener, protocol, workers, windows),
            Dormouse::Nowhere => serve_bare(listener, workers, windows),
        })?;
        Ok(Self { child, address, ask, counted })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends a window of that kind. Its requests have all been answered, and its streams are gone.
    pub(super) fn end_window(&mut self, kind: u8) -> Result<(), Failure> {
        self.ask.write_all(&[kind])?;
        Ok(self.counted.read_exact(&mut [0])?)
    }

    /// Ends the service; gives the requests of each kind of windows, in the order of their numbers.
    pub(super) fn end(mut self) -> Result<Vec<Shown>, Failure> {
        self.ask.write_all(&[END])?;
        let values = self.child.values()?;
        let (kinds, _) = values.as_chunks();
        let shown = |&[count, p50_ms, p99_ms]: &[f64; 3]| Shown { count: count as u64, p50_ms, p99_ms };
        Ok(kinds.iter().map(shown).collect())
    }
}

fn serve(
    listener: TcpListener,
    protocol: Protocol,
    workers: usize,
    windows: Windows,
) -> Result<Vec<f64>, Failure> {
    let _waiting = Waiting::start()?;
    let runtime = Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let groups = GroupLayer::new(|request: &Request| {
        match request.extensions().get().map_or("unmatched", MatchedPath::as_str) {
            EVENTS => MEASURED.into(),
            path => path.to_owned().into(),
        }
    });
    let app = routes().layer(groups);
    let connections = Group::new("connections");
    {
        let _inside = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        match protocol {
            Protocol::Http1 => drop(
                runtime
                    .spawn(axum::serve(dormouse::axum::listener(listener, connections), app).into_future()),
            ),
            Protocol::Http2 => drop(runtime.spawn(accept(listener, connections, app))),
        }
    }
    let (mut before, mut kinds) = (Box::<Histogram>::default(), BTreeMap::<u8, Box<Histogram>>::new());
    windows.each(|kind| {
        let now = settled();
        add(kinds.entry(kind).or_default(), &now.since(&before));
        *before = now;
    })?;
    runtime.shutdown_background();
    let shown = |requests: &Histogram| {
        let ms = |share| requests.quantile_ns(share).map_or(f64::NAN, |ns| ns as f64 / 1e6);
        [requests.count() as f64, ms(0.5), ms(0.99)]
    };
    Ok(kinds.values().flat_map(|requests| shown(requests)).collect())
}

/// The measured requests, once all of them have ended: a moment after the answer has been written.
/// Streams end when the service has seen that their clients are gone.
fn settled() -> Histogram {
    loop {
        if Group::new(MEASURED).read().alive == 0 {
            return Group::new(MEASURED).read_waits().requests;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Adds requests to others. The longest ones stay as they are.
fn add(all: &mut Histogram, more: &Histogram) {
    all.buckets.iter_mut().zip(&more.buckets).for_each(|(sum, n)| *sum += n);
    all.sum_ns += more.sum_ns;
    all.max_ns = all.max_ns.max(more.max_ns);
}

fn routes() -> Router {
    Router::new()
        .route(MEASURED, get(handle))
        .route("/long/{awaits}/{keeps}/{id}", get(handle))
        .route(EVENTS, get(events))
}

/// By HTTP/1.
fn serve_bare(listener: TcpListener, workers: usize, windows: Windows) -> Result<Vec<f64>, Failure> {
    let runtime = Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    runtime.spawn(axum::serve(listener, routes()).into_future());
    windows.each(|_| ())?;
    runtime.shutdown_background();
    Ok(Vec::new())
}

/// Connections of hyper's own.
async fn accept(listener: tokio::net::TcpListener, connections: Group, app: Router) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = TowerToHyperService::new(app.clone());
        tokio::spawn(connections.connection().instrument(async move {
            let builder = hyper::server::conn::http2::Builder::new(dormouse::hyper::Executor::server());
            builder.serve_connection(TokioIo::new(dormouse::tokio::received(stream)), service).await
        }));
    }
}

/// Awaits something, and keeps the worker, as a blocking call in a handler does; both for as many
/// microseconds as the path has. The answer is the request's id.
async fn handle(Path((awaits, keeps, id)): Path<(u64, u64, String)>) -> String {
    if awaits > 0 {
        tokio::time::sleep(Duration::from_micros(awaits)).await;
    }
    if keeps > 0 {
        std::thread::sleep(Duration::from_micros(keeps));
    }
    id
}
