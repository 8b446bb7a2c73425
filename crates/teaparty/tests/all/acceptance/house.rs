//! A house to test, and the plainest client that could speak to it.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use dormouse_teaparty::{Loopback, Served, Server, Stop};
use serde_json::Value;

/// A house that is open until it is dropped.
pub(crate) struct House {
    pub(crate) addr: Loopback,
    stop: Stop,
    thread: Option<JoinHandle<Served>>,
}

impl House {
    pub(crate) fn open() -> Self {
        // Not built for speed, a blend alone may use 50 ms; who counts records wants its own only.
        Self::open_with(|server| server.with_cpu_budget(Duration::from_secs(3600)))
    }

    pub(crate) fn open_with(change: impl FnOnce(Server) -> Server + Send + 'static) -> Self {
        let (tell, told) = mpsc::channel();
        let stop = Stop::new();
        let end = stop.clone();
        let thread = thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async {
                let server = change(Server::bind(Loopback::ANY_PORT, 2).await.unwrap());
                tell.send(server.addr()).unwrap();
                server.serve(end.pulled()).await.unwrap()
            })
        });
        Self { addr: told.recv().unwrap(), stop, thread: Some(thread) }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
    }

    pub(crate) fn post(&self, path: &str, json: &str) -> Answer {
        let length = json.len();
        self.ask(&format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{json}"
        ))
    }

    /// Sends the text of a request and reads until the house closes the connection.
    pub(crate) fn ask(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(SocketAddr::from(self.addr)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let end = bytes.windows(4).position(|at| at == b"\r\n\r\n").expect("an answer with a head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body: bytes.split_off(end + 4) }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.stop.pull();
        let served = self.thread.take().unwrap().join();
        if !thread::panicking() {
            assert_eq!(served.unwrap().cut, 0);
        }
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.head))
    }

    /// The text of a refusal.
    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().expect("an error").to_owned()
    }
}
