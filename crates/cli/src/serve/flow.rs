//! Bodies that are written while somebody reads them.
//!
//! A piece waits in a channel of one until the reader has taken the piece before, so a reader that
//! does not read holds one piece, and the one that writes for it waits. A reader that leaves ends
//! the writer's wait.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use hyper::body::Frame;
use tokio::sync::{mpsc, watch};

/// How often a stream that has nothing to say shows that it is there.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(15);

/// The end that writes.
#[derive(Debug)]
pub(super) struct BodyWriter(mpsc::Sender<io::Result<Bytes>>);

/// Somebody who reads no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gone;

/// The body.
#[derive(Debug)]
struct Flow(mpsc::Receiver<io::Result<Bytes>>);

/// Waits until the server ends.
pub(super) async fn over(end: &mut watch::Receiver<bool>) {
    // Without the server's end of it, that is over, too.
    let _ = end.wait_for(|end| *end).await;
}

/// A body, and the end that writes it.
pub(super) fn body() -> (BodyWriter, Body) {
    let (writer, pieces) = mpsc::channel(1);
    (BodyWriter(writer), Body::new(Flow(pieces)))
}

impl hyper::body::Body for Flow {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

impl BodyWriter {
    /// Waits until the reader has taken what was written before.
    pub(super) async fn ready(&self) -> Result<(), Gone> {
        self.0.reserve().await.map(drop).map_err(|_| Gone)
    }

    /// Writes a piece.
    pub(super) async fn write(&self, piece: impl Into<Bytes>) -> Result<(), Gone> {
        self.0.send(Ok(piece.into())).await.map_err(|_| Gone)
    }

    /// Writes an event: data without line ends, as JSON has none.
    pub(super) async fn event(&self, name: &str, data: &str) -> Result<(), Gone> {
        self.write(format!("event: {name}\ndata: {data}\n\n")).await
    }

    /// Shows that the stream is there.
    pub(super) async fn beat(&self) -> Result<(), Gone> {
        self.write(":\n\n").await
    }

    /// Breaks the body off, so that nobody takes a part for the whole.
    pub(super) async fn break_off(&self) {
        let _ = self.0.send(Err(io::ErrorKind::UnexpectedEof.into())).await;
    }

    /// Waits until the reader leaves.
    pub(super) async fn left(&self) {
        self.0.closed().await;
    }
}
