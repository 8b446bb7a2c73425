//! The service: a forked child, in which each request keeps its worker for as long as its path
//! says.

use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use axum::Router;
use axum::extract::{MatchedPath, Path, Request};
use axum::routing::get;
use dormouse::tower::GroupLayer;
use dormouse::{Group, Waiting};
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
    /// A byte asks the child for its figures.
    ask: PipeWriter,
}

/// Whether dormouse is in the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dormouse {
    Inside,
    /// The service has neither layers nor streams of dormouse's, and shows nothing.
    Nowhere,
}

/// The latency of the measured requests as dormouse shows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    pub(super) count: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

impl Service {
    pub(super) fn start(protocol: Protocol, workers: usize, dormouse: Dormouse) -> Result<Self, Failure> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (asked, ask) = pipe()?;
        let child = Child::start(move || match dormouse {
            Dormouse::Inside => serve(listener, protocol, workers, asked),
            Dormouse::Nowhere => serve_bare(listener, workers, asked),
        })?;
        Ok(Self { child, address, ask })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the service, whose requests have all been answered.
    pub(super) fn end(mut self) -> Result<Shown, Failure> {
        self.ask.write_all(&[1])?;
        match self.child.values()?[..] {
            [count, p50_ms, p99_ms] => Ok(Shown { count: count as u64, p50_ms, p99_ms }),
            ref values => Err(Failure::wrong(format!("the service tells {values:?}"))),
        }
    }
}

fn serve(
    listener: TcpListener,
    protocol: Protocol,
    workers: usize,
    mut asked: PipeReader,
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
    asked.read_exact(&mut [0])?;
    // A request ends a moment after its answer has been written.
    let requests = loop {
        let requests = Group::new(MEASURED).read_waits().requests;
        if Group::new(MEASURED).read().alive == 0 {
            break requests;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let ms = |share| requests.quantile_ns(share).map_or(f64::NAN, |ns| ns as f64 / 1e6);
    let shown = vec![requests.count() as f64, ms(0.5), ms(0.99)];
    runtime.shutdown_background();
    Ok(shown)
}

fn routes() -> Router {
    Router::new()
        .route(MEASURED, get(handle))
        .route("/long/{awaits}/{keeps}/{id}", get(handle))
        .route(EVENTS, get(events))
}

/// By HTTP/1.
fn serve_bare(listener: TcpListener, workers: usize, mut asked: PipeReader) -> Result<Vec<f64>, Failure> {
    let runtime = Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    runtime.spawn(axum::serve(listener, routes()).into_future());
    asked.read_exact(&mut [0])?;
    runtime.shutdown_background();
    Ok(vec![0.0; 3])
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
