//! Clients of protocols that begin with lines.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use dormouse_testkit::HANG;

/// A connection of a client's own.
pub(crate) struct Lines<S = TcpStream>(BufReader<S>);

impl Lines {
    pub(crate) fn open(address: SocketAddr) -> Lines {
        Lines::over(address, |stream| stream)
    }

    /// Sends a request of HTTP without a body; the answer's lines follow.
    pub(crate) fn get(address: SocketAddr, path: &str) -> Lines {
        let mut lines = Lines::open(address);
        lines.send(&format!("GET {path} HTTP/1.1\r\nHost: others\r\n\r"));
        lines
    }
}

impl<S: Read + Write> Lines<S> {
    /// A connection through another stream, such as one of TLS.
    pub(crate) fn over(address: SocketAddr, wrap: impl FnOnce(TcpStream) -> S) -> Self {
        let stream = TcpStream::connect(address).expect("a service that accepts");
        stream.set_nodelay(true).expect("an option");
        stream.set_read_timeout(Some(HANG)).expect("a timeout");
        Lines(BufReader::new(wrap(stream)))
    }

    pub(crate) fn send(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).expect("a service that reads");
    }

    /// The next line, without its end; empty once the service has hung up.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        let _ = self.0.read_line(&mut line);
        line.trim_end().to_owned()
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.line()
    }

    /// Reads until a line begins so.
    pub(crate) fn skip_to(&mut self, beginning: &str) {
        while !self.line().starts_with(beginning) {}
    }
}
