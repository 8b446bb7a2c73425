//! HTTP/1.1: each connection has a thread, and the connections send the requests by turns.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Instant;

use super::ask::{Answered, Ask, Stamped, connect, invalid};

/// Connections: enough that one is free when a request is due, unless the service has been standing
/// still for longer than any handler.
const CONNECTIONS: usize = 32;

/// The beginning of the run, and the answers.
pub(super) fn run(
    target: SocketAddr,
    asks: impl FnOnce(Instant) -> Vec<Ask>,
) -> io::Result<(Instant, Vec<Answered>)> {
    let streams = (0..CONNECTIONS).map(|_| connect(target)).collect::<io::Result<Vec<_>>>()?;
    let begin = Instant::now();
    let asks = &asks(begin);
    let answered = thread::scope(|scope| {
        let threads: Vec<_> = streams
            .into_iter()
            .enumerate()
            .map(|(at, stream)| {
                let own = asks.iter().skip(at).step_by(CONNECTIONS);
                scope.spawn(move || own.map(|ask| answer(&stream, ask)).collect::<io::Result<Vec<_>>>())
            })
            .collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a client has panicked"))));
        joined.collect::<io::Result<Vec<_>>>()
    })?;
    Ok((begin, answered.concat()))
}

/// Sends a request when it is due, and reads its answer.
fn answer(stream: &TcpStream, ask: &Ask) -> io::Result<Answered> {
    let request = format!("GET {} HTTP/1.1\r\nhost: bench\r\n\r\n", ask.path());
    let end = format!("\r\n\r\n{}", ask.id);
    ask.wait();
    let mut reader = Stamped::new(stream);
    let sent = Instant::now();
    (&*stream).write_all(request.as_bytes())?;
    let mut bytes = [0; 1024];
    let mut length = reader.read(&mut bytes)?;
    let first_byte = reader.last;
    while length > 0 && !bytes[..length].ends_with(end.as_bytes()) {
        match reader.read(&mut bytes[length..])? {
            0 => break,
            more => length += more,
        }
    }
    let text = &bytes[..length];
    if !text.starts_with(b"HTTP/1.1 200") || !text.ends_with(end.as_bytes()) {
        return Err(invalid(format!("request {} was answered by {}", ask.id, text.escape_ascii())));
    }
    Ok(Answered { id: ask.id, sent, first_byte })
}
