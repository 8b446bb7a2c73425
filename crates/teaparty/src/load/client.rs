//! One guest: a keep-alive connection with one request at a time, opened anew when it breaks.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1::{SendRequest, handshake},
    header::{ACCEPT_ENCODING, CONTENT_TYPE, HOST, LOCATION},
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use crate::{Loopback, load::mix::Ask};

/// How long an answer may take before it counts as an error.
const PATIENCE: Duration = Duration::from_secs(10);

/// A client of the load generator.
#[derive(Debug)]
pub(super) struct Client {
    target: Loopback,
    connection: Option<SendRequest<Full<Bytes>>>,
    latest_order: Arc<AtomicU64>,
}

impl Client {
    pub(super) fn new(target: Loopback, latest_order: Arc<AtomicU64>) -> Self {
        Self { target, connection: None, latest_order }
    }

    /// Sends one request and reads its whole answer. Anything but a success is an error.
    pub(super) async fn ask(&mut self, ask: Ask) -> anyhow::Result<()> {
        let mut connection = match self.connection.take() {
            Some(open) if !open.is_closed() => open,
            _ => self.connect().await.with_context(|| format!("cannot connect to {}", self.target))?,
        };
        let request = self.request(ask)?;
        timeout(PATIENCE, async {
            let (answer, body) = exchange(&mut connection, request).await?;
            ensure!(answer.status().is_success(), "{}: {}", answer.status(), String::from_utf8_lossy(&body));
            if let Some(id) = placed(&answer) {
                self.latest_order.fetch_max(id, Relaxed);
            }
            Ok(())
        })
        .await
        .with_context(|| format!("no answer in {PATIENCE:?}"))??;
        // After an error the connection is dropped instead: its state is unknown.
        self.connection = Some(connection);
        Ok(())
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(SocketAddr::from(self.target)).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // It ends with the sender; the request in flight reports the connection's errors.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn request(&self, ask: Ask) -> anyhow::Result<Request<Full<Bytes>>> {
        Ok(Request::builder()
            .method(ask.method())
            .uri(ask.path(self.latest_order.load(Relaxed)))
            .header(HOST, self.target.to_string())
            .header(ACCEPT_ENCODING, "gzip")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from_static(ask.body())))?)
    }
}

async fn exchange(
    connection: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<(Response<()>, Bytes)> {
    connection.ready().await?;
    let (head, body): (_, Incoming) = connection.send_request(request).await?.into_parts();
    Ok((Response::from_parts(head, ()), body.collect().await?.to_bytes()))
}

/// The id of an order that was placed by this request.
fn placed(answer: &Response<()>) -> Option<u64> {
    answer.headers().get(LOCATION)?.to_str().ok()?.strip_prefix("/orders/")?.parse().ok()
}
