//! A request and its answer, as each protocol sends and reads them.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    /// Its id, which the answer repeats.
    pub(super) id: usize,
    pub(super) due: Instant,
    pub(super) is_measured: bool,
    pub(super) awaits: Duration,
    pub(super) keeps: Duration,
}

/// A request that has been answered, by the client's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answered {
    pub(super) id: usize,
    pub(super) sent: Instant,
    /// When the first bytes of the answer were read.
    pub(super) first_byte: Instant,
}

impl Ask {
    /// The path of its request: the route, the two times in microseconds, and the id.
    pub(super) fn path(&self) -> String {
        let route = if self.is_measured { "measured" } else { "long" };
        format!("/{route}/{}/{}/{}", self.awaits.as_micros(), self.keeps.as_micros(), self.id)
    }

    /// Sleeps until it is due, unless that has passed.
    pub(super) fn wait(&self) {
        sleep(self.due.saturating_duration_since(Instant::now()));
    }
}

/// A connection to the service.
pub(super) fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(target)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

pub(super) fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}
