//! Clients without think time: each sends its next request when it has the answer to the last.
//!
//! The load generator of the tea house sends at a rate and so cannot measure how much more the
//! service could have answered. This one is small, so that the clients' processors keep up: one
//! thread for each connection, requests prepared as bytes, and only the status and two headers of
//! an answer are read. HTTP/1.1, keep-alive, bodies with a length.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ask {
    /// `GET` of this path.
    Get(&'static str),
    /// `POST /orders`.
    Place,
    /// `GET` of the order that was placed last.
    Read,
}

/// The requests of the tea house's own guests, in the same proportions.
pub(super) const MIX: [Ask; 16] = [
    Ask::Place,
    Ask::Get("/menu"),
    Ask::Get("/menu"),
    Ask::Get("/steep?ms=5"),
    Ask::Get("/blend?malt=0.6&smoke=0.3"),
    Ask::Read,
    Ask::Get("/menu"),
    Ask::Get("/brochure?guest=Alice"),
    Ask::Place,
    Ask::Get("/menu"),
    Ask::Get("/steep?ms=5"),
    Ask::Read,
    Ask::Get("/menu"),
    Ask::Get("/blend?malt=0.6&smoke=0.3"),
    Ask::Get("/menu"),
    Ask::Get("/brochure?guest=Alice"),
];

/// The cheapest route.
pub(super) const MENU: [Ask; 1] = [Ask::Get("/menu")];

/// The outcome of a load.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Load {
    /// Answers with a status below 400.
    pub(super) answered: u64,
    /// Answers with another status.
    pub(super) refused: u64,
    /// From the first request to the last answer.
    pub(super) elapsed: Duration,
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        self.answered += other.answered;
        self.refused += other.refused;
        self.elapsed += other.elapsed;
    }
}

/// Connections to one service, kept over all its slices: fresh ones would begin slowly each time.
#[derive(Debug)]
pub(super) struct Clients {
    connections: Vec<Connection>,
    latest_order: AtomicU64,
}

impl Clients {
    /// Opens them.
    pub(super) fn connect(target: SocketAddr, count: usize) -> io::Result<Self> {
        // Each begins elsewhere in the mix, so that not all ask for the same.
        let connections =
            (0..count).map(|number| Connection::open(target, number)).collect::<io::Result<_>>()?;
        Ok(Self { connections, latest_order: AtomicU64::new(1) })
    }

    /// Has the first connection send this many requests; all must be answered.
    pub(super) fn answer(&mut self, asks: &[Ask], requests: usize) -> io::Result<()> {
        let Some(connection) = self.connections.first_mut() else { return Ok(()) };
        for ask in asks.iter().cycle().take(requests) {
            if !connection.ask(*ask, &self.latest_order)? {
                return Err(io::Error::other("a request was refused"));
            }
        }
        Ok(())
    }

    /// Has all connections send the requests in `asks`, over and over, for `span`.
    pub(super) fn run(&mut self, asks: &[Ask], span: Duration) -> io::Result<Load> {
        let latest_order = &self.latest_order;
        let begin = Instant::now();
        let deadline = begin + span;
        let (answered, refused) = thread::scope(|scope| {
            let threads: Vec<_> = self
                .connections
                .iter_mut()
                .map(|connection| scope.spawn(move || connection.ask_until(deadline, asks, latest_order)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a client panicked"))))
                .try_fold((0, 0), |(answered, refused), one| {
                    let one = one?;
                    Ok::<_, io::Error>((answered + one.0, refused + one.1))
                })
        })?;
        Ok(Load { answered, refused, elapsed: begin.elapsed() })
    }
}

/// One keep-alive connection.
#[derive(Debug)]
struct Connection {
    stream: BufReader<TcpStream>,
    line: String,
    body: Vec<u8>,
    /// The index of the next request, before wrapping.
    next: usize,
}

/// The part of an answer that is read.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    length: usize,
    order: Option<u64>,
}

impl Connection {
    fn open(target: SocketAddr, next: usize) -> io::Result<Self> {
        let stream = TcpStream::connect(target)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), line: String::new(), body: Vec::new(), next })
    }

    /// Answered and refused requests until `deadline`.
    fn ask_until(
        &mut self,
        deadline: Instant,
        asks: &[Ask],
        latest_order: &AtomicU64,
    ) -> io::Result<(u64, u64)> {
        let (mut answered, mut refused) = (0, 0);
        while Instant::now() < deadline {
            let ask = asks[self.next % asks.len()];
            self.next += 1;
            if self.ask(ask, latest_order)? {
                answered += 1;
            } else {
                refused += 1;
            }
        }
        Ok((answered, refused))
    }

    /// Whether the answer was a success.
    fn ask(&mut self, ask: Ask, latest_order: &AtomicU64) -> io::Result<bool> {
        const ORDER: &str = r#"{"tea":"Assam","cups":2}"#;
        let request = match ask {
            Ask::Get(path) => get(path),
            Ask::Read => get(&format!("/orders/{}", latest_order.load(Ordering::Relaxed))),
            Ask::Place => format!(
                "POST /orders HTTP/1.1\r\nhost: teaparty\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\n\r\n{ORDER}",
                ORDER.len()
            ),
        };
        self.stream.get_mut().write_all(request.as_bytes())?;
        let head = read_head(&mut self.stream, &mut self.line)?;
        self.body.resize(head.length, 0);
        self.stream.read_exact(&mut self.body)?;
        if let Some(order) = head.order {
            latest_order.fetch_max(order, Ordering::Relaxed);
        }
        Ok(head.status < 400)
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: teaparty\r\naccept-encoding: gzip\r\n\r\n")
}

fn read_head(stream: &mut impl BufRead, line: &mut String) -> io::Result<Head> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    line.clear();
    if stream.read_line(line)? == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the service closed the connection"));
    }
    let status = line
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3)?.parse().ok())
        .ok_or_else(|| invalid("the answer is not HTTP/1.1"))?;
    let (mut length, mut order) = (None, None);
    loop {
        line.clear();
        stream.read_line(line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok();
        } else if name.eq_ignore_ascii_case("location") {
            order = value.trim().strip_prefix("/orders/").and_then(|id| id.parse().ok());
        }
    }
    let length = length.ok_or_else(|| invalid("the answer has no content-length"))?;
    Ok(Head { status, length, order })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn head(text: &str) -> io::Result<Head> {
        read_head(&mut text.as_bytes(), &mut String::new())
    }

    #[test]
    fn an_answers_head_is_read() {
        let answer = "HTTP/1.1 201 Created\r\nLocation: /orders/17\r\nContent-Length: 5\r\n\r\nhello";
        let expected = Head { status: 201, length: 5, order: Some(17) };
        assert_eq!(head(answer).unwrap(), expected);
    }

    #[test]
    fn garbage_instead_of_an_answer_is_an_error() {
        for text in ["", "garbage\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 é\r\n\r\n"] {
            assert!(head(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn refused_requests_are_not_counted_as_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut stream = BufReader::new(stream);
            let mut served = 0_u64;
            let mut line = String::new();
            while stream.read_line(&mut line).is_ok_and(|length| length > 0) {
                if line == "\r\n" {
                    let status = if served.is_multiple_of(2) { "200 OK" } else { "409 Conflict" };
                    served += 1;
                    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                    stream.get_mut().write_all(answer.as_bytes()).unwrap();
                }
                line.clear();
            }
            served
        });
        let mut clients = Clients::connect(target, 1).unwrap();
        let mut load = clients.run(&MENU, Duration::from_millis(10)).unwrap();
        while load.refused == 0 {
            load += clients.run(&MENU, Duration::from_millis(10)).unwrap();
        }
        drop(clients);
        let served = server.join().unwrap();
        assert_eq!((load.answered, load.refused), (served.div_ceil(2), served / 2));
    }
}
