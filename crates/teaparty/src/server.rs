//! Connections: accepted within bounds, served by the router, and given time to finish at the end.
//!
//! `axum::serve` would do for most services. This loop is written out for three things it does not
//! do: it charges each connection to a group, so that reading and writing HTTP is attributed; it
//! closes a connection that does not finish its headers; and it gives up on requests that last too
//! long at the end.

use std::{io, sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use serde::{Deserialize, Serialize};
use tokio::{
    net::{TcpListener, TcpStream},
    pin,
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::{
    Loopback,
    background::Background,
    instrument::{Group, probe, received, tracing},
    routes::router,
    store::Store,
};

/// Limits on what clients may use.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Connections at once; others wait in the listener's queue.
    connections: usize,
    /// Time over the headers of a request, and so between two of them.
    headers: Duration,
    /// Time that requests may go on after the end.
    grace: Duration,
}

const BOUNDS: Bounds =
    Bounds { connections: 512, headers: Duration::from_secs(30), grace: Duration::from_secs(5) };

/// CPU time that a request may use: far more than any route needs.
pub(crate) const CPU_BUDGET: Duration = Duration::from_millis(50);

/// How much more CPU time a request uses while it is taxed, in percent.
pub(crate) const DEFAULT_TAX: u16 = 3;

/// A tea house that is bound to an address but not serving yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    addr: Loopback,
    store: Arc<Store>,
    cpu_budget: Duration,
    tax_percent: u16,
}

/// The number of connections that a server has served, from its start to its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Number of connections accepted.
    pub connections: u64,
    /// Number of connections that were still busy after the grace period at the end, and were cut.
    pub cut: usize,
}

impl Server {
    /// Makes the database, for as many readers as there are workers, and binds the address.
    pub async fn bind(addr: Loopback, workers: usize) -> anyhow::Result<Self> {
        let store = Arc::new(Store::open(workers)?);
        let listener = TcpListener::bind(std::net::SocketAddr::from(addr))
            .await
            .with_context(|| format!("cannot listen on {addr}; choose another with --addr"))?;
        let addr = listener.local_addr()?.try_into().map_err(anyhow::Error::msg)?;
        Ok(Self { listener, addr, store, cpu_budget: CPU_BUDGET, tax_percent: DEFAULT_TAX })
    }

    /// Has requests that use more CPU time than this leave a record, instead of 50 ms.
    #[must_use]
    pub fn with_cpu_budget(self, cpu_budget: Duration) -> Self {
        Self { cpu_budget, ..self }
    }

    /// Has requests use this much more CPU time while the key `teaparty.tax` is on, instead of 3 %.
    #[must_use]
    pub fn with_tax(self, tax_percent: u16) -> Self {
        Self { tax_percent, ..self }
    }

    /// The address on which the server listens.
    pub fn addr(&self) -> Loopback {
        self.addr
    }

    /// Serves until `end`; then accepts no more, lets requests in flight finish, and returns.
    pub async fn serve(self, end: impl Future<Output = ()>) -> anyhow::Result<Served> {
        let background = Background::start(&self.store).context("cannot start a thread")?;
        let served =
            serve(self.listener, router(self.store, self.cpu_budget, self.tax_percent), end, BOUNDS).await;
        background.stop().await;
        Ok(served)
    }
}

async fn serve(
    listener: TcpListener,
    router: Router,
    end: impl Future<Output = ()>,
    bounds: Bounds,
) -> Served {
    let group = Group::new("connections");
    let service = TowerToHyperService::new(router);
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(bounds.connections));
    let mut served = Served::default();
    pin!(end);
    loop {
        let next = async {
            let slot = Arc::clone(&slots).acquire_owned().await.expect("the semaphore is never closed");
            (slot, accept(&listener).await)
        };
        let (slot, stream) = tokio::select! {
            () = &mut end => break,
            next = next => next,
        };
        served.connections += 1;
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.headers)
            .serve_connection(TokioIo::new(received(stream)), service.clone());
        let connection = graceful.watch(connection);
        tokio::spawn(group.connection().instrument(async move {
            let outcome = connection.await;
            probe!("connection.closed", ok = outcome.is_ok());
            if let Err(error) = outcome {
                // The client's doing: it went away, or did not speak HTTP.
                tracing::debug!(%error, "connection lost");
            }
            drop(slot);
        }));
    }
    drop(listener);
    if timeout(bounds.grace, graceful.shutdown()).await.is_err() {
        served.cut = bounds.connections - slots.available_permits();
    }
    served
}

/// The next connection. An error is that of one connection, or the process is out of descriptors
/// for a while: the service goes on in either case.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                probe!("connection.accepted", port = peer.port());
                // Answers are written whole; to hold one back for more to come only delays it.
                let _ = stream.set_nodelay(true);
                return stream;
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                eprintln!("warning: cannot accept a connection: {error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        sync::Notify,
        task::JoinHandle,
    };

    use super::*;
    use crate::Stop;

    const PATIENT: Bounds =
        Bounds { connections: 8, headers: Duration::from_secs(60), grace: Duration::from_secs(60) };

    /// A server with one route that reports when a request is inside and keeps it there until it is
    /// released.
    struct Gate {
        addr: SocketAddr,
        inside: Arc<Notify>,
        release: Arc<Notify>,
        end: Stop,
        server: JoinHandle<Served>,
    }

    impl Gate {
        async fn open(bounds: Bounds) -> Self {
            let (inside, release, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()), Stop::new());
            let wait = {
                let (inside, release) = (Arc::clone(&inside), Arc::clone(&release));
                move || async move {
                    inside.notify_one();
                    release.notified().await;
                    "released"
                }
            };
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            let until = end.clone();
            let server = tokio::spawn(async move {
                serve(listener, Router::new().route("/", get(wait)), async { until.pulled().await }, bounds)
                    .await
            });
            Self { addr, inside, release, end, server }
        }

        /// A client whose request is inside.
        async fn enter(&self) -> TcpStream {
            let mut client = TcpStream::connect(self.addr).await.unwrap();
            client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            self.inside.notified().await;
            client
        }
    }

    #[tokio::test]
    async fn requests_in_flight_finish_after_the_end() {
        let gate = Gate::open(PATIENT).await;
        let mut client = gate.enter().await;
        gate.end.pull();
        // The listener goes first; then only the request keeps the server up.
        while TcpStream::connect(gate.addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(!gate.server.is_finished());
        gate.release.notify_one();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("released"), "{answer}");
        assert_eq!(gate.server.await.unwrap().cut, 0);
    }

    #[tokio::test]
    async fn a_request_beyond_the_grace_is_cut() {
        let gate = Gate::open(Bounds { grace: Duration::from_millis(20), ..PATIENT }).await;
        let _client = gate.enter().await;
        gate.end.pull();
        assert_eq!(gate.server.await.unwrap(), Served { connections: 1, cut: 1 });
    }

    #[tokio::test]
    async fn idle_connections_do_not_delay_the_end() {
        let gate = Gate::open(PATIENT).await;
        let mut client = gate.enter().await;
        gate.release.notify_one();
        let mut first = [0; 15];
        client.read_exact(&mut first).await.unwrap();
        gate.end.pull();
        assert_eq!(gate.server.await.unwrap(), Served { connections: 1, cut: 0 });
    }

    #[tokio::test]
    async fn unfinished_headers_close_the_connection() {
        let gate = Gate::open(Bounds { headers: Duration::from_millis(20), ..PATIENT }).await;
        let mut client = TcpStream::connect(gate.addr).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhos").await.unwrap();
        // Ends when the server closes the connection; hyper chooses the answer before that.
        client.read_to_end(&mut Vec::new()).await.unwrap();
        gate.end.pull();
        assert_eq!(gate.server.await.unwrap(), Served { connections: 1, cut: 0 });
    }

    #[tokio::test]
    async fn connections_over_the_bound_wait() {
        let gate = Gate::open(Bounds { connections: 1, ..PATIENT }).await;
        let first = gate.enter().await;
        let mut second = TcpStream::connect(gate.addr).await.unwrap();
        second.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert!(timeout(Duration::from_millis(20), gate.inside.notified()).await.is_err());
        drop(first);
        gate.inside.notified().await;
    }
}
