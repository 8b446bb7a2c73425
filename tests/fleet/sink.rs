//! A place that takes what is posted to it: the end of a collector's pipeline.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};

use dormouse_testkit::HANG;
use serde_json::Value;

/// Takes JSON on loopback.
pub(crate) struct Sink {
    port: u16,
    taken: Receiver<Value>,
}

impl Sink {
    pub(crate) fn open() -> Sink {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let (sender, taken) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let sender = sender.clone();
                std::thread::spawn(move || take(&stream, &sender));
            }
        });
        Sink { port, taken }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The first document that `look` finds something in.
    #[track_caller]
    pub(crate) fn await_some<T>(&self, look: impl Fn(&Value) -> Option<T>) -> T {
        loop {
            let document = self.taken.recv_timeout(HANG).expect("another document");
            if let Some(found) = look(&document) {
                return found;
            }
        }
    }
}

/// Takes the requests of one connection.
fn take(mut stream: &TcpStream, taken: &mpsc::Sender<Value>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line == "\r\n" {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}")
            .ok()?;
        taken.send(serde_json::from_slice(&body).expect("JSON")).ok()?;
    }
}
