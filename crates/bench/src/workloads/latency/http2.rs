//! HTTP/2: one connection, on which a thread sends and another one reads.
//!
//! Only the frames that such answers consist of are read, and no headers are decoded: an answer is
//! known by its stream, and its body is the id of the request.
//!
//! # References
//!
//! RFC 9113, HTTP/2; RFC 7541, HPACK, appendix A.

use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use super::ask::{Answered, Ask, Stamped, connect, invalid};

/// Types of frames.
mod frame {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RST_STREAM: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PING: u8 = 6;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const WINDOW_UPDATE: u8 = 8;
}

/// Flags: of settings and pings; of headers and data; of headers.
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Longer than any frame of these answers.
const LONGEST: usize = 16 * 1024;

/// The beginning of the run, and the answers.
pub(super) fn run(
    target: SocketAddr,
    asks: impl FnOnce(Instant) -> Vec<Ask>,
) -> io::Result<(Instant, Vec<Answered>)> {
    let stream = connect(target)?;
    let mut greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    greeting.extend(frame(frame::SETTINGS, 0, 0, &[]));
    // Room for the bodies of all answers on the connection.
    greeting.extend(frame(frame::WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes()));
    (&stream).write_all(&greeting)?;
    let sender = &Mutex::new(&stream);
    let mut reader = BufReader::new(Stamped::new(&stream));
    // The service's settings come first.
    answer(&read(&mut reader)?, sender)?;
    let begin = Instant::now();
    let asks = &asks(begin);
    let (told, sent) = channel();
    let answered = thread::scope(|scope| {
        let reading = scope.spawn(move || read_all(&mut reader, sender, &sent, asks));
        for ask in asks {
            let stream = stream_of(ask.id);
            let headers = frame(frame::HEADERS, END_HEADERS | END_STREAM, stream, &headers(&ask.path()));
            ask.wait();
            let now = Instant::now();
            // The reader has failed, and says why.
            if told.send(now).is_err() || send(sender, &headers).is_err() {
                break;
            }
        }
        drop(told);
        reading.join().unwrap_or_else(|_| Err(io::Error::other("a client has panicked")))
    })?;
    Ok((begin, answered))
}

/// Reads the answers to all of `asks`. `sent` has the moments at which these were sent.
fn read_all(
    reader: &mut BufReader<Stamped<'_>>,
    sender: &Mutex<&TcpStream>,
    sent: &Receiver<Instant>,
    asks: &[Ask],
) -> io::Result<Vec<Answered>> {
    let (mut moments, mut heads) = (Vec::new(), vec![None; asks.len()]);
    let mut all = Vec::new();
    while all.len() < asks.len() {
        let got = read(reader)?;
        let came = reader.get_ref().last;
        let id = got.stream.saturating_sub(1) as usize / 2;
        match got.kind {
            frame::HEADERS if id < asks.len() => heads[id] = heads[id].or(Some(came)),
            frame::DATA if got.payload.is_empty() => {}
            frame::DATA if got.payload == id.to_string().as_bytes() => {
                moments.extend(sent.try_iter());
                let (sent, first_byte) = moments
                    .get(id)
                    .copied()
                    .zip(heads[id])
                    .ok_or_else(|| invalid("an answer before its request"))?;
                all.push(Answered { id, sent, first_byte });
            }
            _ => answer(&got, sender)?,
        }
    }
    Ok(all)
}

fn stream_of(id: usize) -> u32 {
    2 * id as u32 + 1
}

/// A frame as it comes.
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

fn read(reader: &mut impl Read) -> io::Result<Frame> {
    let mut head = [0; 9];
    reader.read_exact(&mut head)?;
    let [a, b, c, kind, flags, stream @ ..] = head;
    let length = u32::from_be_bytes([0, a, b, c]) as usize;
    if length > LONGEST {
        return Err(invalid(format!("a frame of {length} bytes")));
    }
    let mut payload = vec![0; length];
    reader.read_exact(&mut payload)?;
    Ok(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
}

/// Answers a frame that is no answer itself.
fn answer(got: &Frame, sender: &Mutex<&TcpStream>) -> io::Result<()> {
    match got.kind {
        frame::SETTINGS | frame::PING if got.flags & ACK == 0 => {
            let payload = if got.kind == frame::PING { &got.payload[..] } else { &[] };
            send(sender, &frame(got.kind, ACK, 0, payload))
        }
        frame::SETTINGS | frame::PING | frame::WINDOW_UPDATE => Ok(()),
        frame::RST_STREAM | frame::GOAWAY => Err(invalid(format!("the service refuses: {:?}", got.payload))),
        kind => Err(invalid(format!("a frame of type {kind} on stream {}: {:?}", got.stream, got.payload))),
    }
}

fn send(sender: &Mutex<&TcpStream>, bytes: &[u8]) -> io::Result<()> {
    let mut stream = *sender.lock().map_err(|_| io::Error::other("a client has panicked"))?;
    stream.write_all(bytes)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The headers of a request, by HPACK: two of its table, and two literals that it does not add.
fn headers(path: &str) -> Vec<u8> {
    const METHOD_GET: u8 = 0x82;
    const SCHEME_HTTP: u8 = 0x86;
    const PATH: u8 = 4;
    const AUTHORITY: u8 = 1;
    // Shorter than 127 bytes: the length is one byte.
    let literal = |name: u8, value: &str| [&[name, value.len() as u8], value.as_bytes()].concat();
    [&[METHOD_GET, SCHEME_HTTP][..], &literal(PATH, path), &literal(AUTHORITY, "bench")].concat()
}
