//! A server, and a client that sends what a test likes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{HANG, command, signal_to};

/// A server of some services.
pub(super) struct Serving {
    child: Child,
    runtime: TempDir,
    pub(super) host: String,
    pub(super) token: String,
    pub(super) token_file: PathBuf,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")))
    }
}

impl Serving {
    /// One that serves these targets, by arguments.
    pub(super) fn of<S: ToString>(targets: impl IntoIterator<Item = S>) -> Serving {
        Serving::with(&[], targets)
    }

    /// Starts `serve` with arguments of its own.
    pub(super) fn with<S: ToString>(args: &[&str], targets: impl IntoIterator<Item = S>) -> Serving {
        Serving::start(args, &[], targets)
    }

    /// Starts `serve` with these variables.
    pub(super) fn with_variables<S: ToString>(
        variables: &[(&str, String)],
        targets: impl IntoIterator<Item = S>,
    ) -> Serving {
        Serving::start(&[], variables, targets)
    }

    fn start<S: ToString>(
        args: &[&str],
        variables: &[(&str, String)],
        targets: impl IntoIterator<Item = S>,
    ) -> Serving {
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let mut command = command(["serve", "--json", "--listen", "127.0.0.1:0"]);
        command.args(args).args(targets.into_iter().map(|target| target.to_string()));
        command.env("DORMOUSE_RUNTIME_DIR", runtime.path()).envs(variables.iter().cloned());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the server");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("its start");
        let start: Value = serde_json::from_str(&line).expect("where it listens");
        let url = start["url"].as_str().expect("a URL");
        let host = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let token_file = PathBuf::from(start["token_file"].as_str().expect("a path"));
        let token = std::fs::read_to_string(&token_file).expect("the token").trim().to_owned();
        Serving { child, runtime, host, token, token_file }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The directory with its token.
    pub(super) fn runtime(&self) -> &TempDir {
        &self.runtime
    }

    /// Ends it in order, and gives its exit code.
    pub(super) fn end(&mut self) -> Option<i32> {
        signal_to(self.pid(), Signal::TERM);
        self.child.wait().expect("its end").code()
    }

    /// A connection that has sent these bytes; that it may be closed is not looked at here.
    pub(super) fn send(&self, bytes: impl AsRef<[u8]>) -> TcpStream {
        let mut stream = TcpStream::connect(&self.host).expect("a server that accepts");
        stream.set_read_timeout(Some(HANG)).expect("a timeout");
        let _ = stream.write_all(bytes.as_ref());
        stream
    }

    /// The head of a request with the token.
    pub(super) fn head(&self, method: &str, path: &str, more: &str) -> String {
        let Serving { host, token, .. } = self;
        format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n{more}\r\n")
    }

    /// The answer to bytes; `None`: the connection was closed without any.
    pub(super) fn ask(&self, bytes: impl AsRef<[u8]>) -> Option<Answer> {
        let mut all = Vec::new();
        // A reset after the answer is the server's right, if it has not read everything.
        let _ = self.send(bytes).read_to_end(&mut all);
        let end = all.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&all[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let body = all.split_off(end + 4);
        let body = if head.contains("transfer-encoding: chunked") { joined(&body) } else { body };
        Some(Answer { status, head, body })
    }

    #[track_caller]
    pub(super) fn get(&self, path: &str) -> Answer {
        self.ask(self.head("GET", path, "Connection: close\r\n")).expect("an answer")
    }

    #[track_caller]
    pub(super) fn post(&self, path: &str, body: &str) -> Answer {
        self.ask(self.posted(path, body, "Connection: close\r\n")).expect("an answer")
    }

    fn posted(&self, path: &str, body: &str, more: &str) -> String {
        let more = format!("Content-Type: application/json\r\nContent-Length: {}\r\n{more}", body.len());
        self.head("POST", path, &more) + body
    }

    /// A stream of events.
    pub(super) fn stream(&self, path: &str) -> Events {
        Events::of(self.send(self.head("GET", path, "")))
    }

    /// A stream of events that is asked for by POST.
    pub(super) fn posted_stream(&self, path: &str, body: &str) -> Events {
        Events::of(self.send(self.posted(path, body, "")))
    }

    /// How many descriptors it has, and how many kilobytes of memory.
    pub(super) fn takes(&self) -> (usize, u64) {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("its descriptors");
        (descriptors.count(), self.memory("VmRSS:"))
    }

    /// The most kilobytes of memory that it has had.
    pub(super) fn most_memory(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, line: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("its status");
        let memory = status.lines().find_map(|of| of.strip_prefix(line)).expect("its memory");
        memory.trim().trim_end_matches(" kB").parse().expect("a number")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The pieces of a chunked body.
fn joined(mut chunks: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = chunks.windows(2).position(|window| window == b"\r\n") {
        let length = std::str::from_utf8(&chunks[..end]).expect("a length");
        let length = usize::from_str_radix(length.trim(), 16).expect("a length in hex");
        let rest = &chunks[end + 2..];
        if length == 0 || rest.len() < length {
            break;
        }
        body.extend_from_slice(&rest[..length]);
        chunks = &rest[length + 2..];
    }
    body
}

/// Server-sent events; dropped, the client hangs up.
pub(super) struct Events {
    stream: BufReader<TcpStream>,
    pub(super) status: u16,
}

impl Events {
    fn of(stream: TcpStream) -> Events {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).expect("a status");
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Events { stream, status }
    }

    /// The next event's name and data; `None` at the end.
    pub(super) fn next(&mut self) -> Option<(String, Value)> {
        let (mut name, mut line) = ("message".to_owned(), String::new());
        loop {
            line.clear();
            if self.stream.read_line(&mut line).expect("a line") == 0 {
                return None;
            }
            if let Some(of) = line.strip_prefix("event: ") {
                of.trim().clone_into(&mut name);
            } else if let Some(data) = line.strip_prefix("data: ") {
                let data = serde_json::from_str(data);
                return Some((name, data.unwrap_or_else(|error| panic!("{error} in {line:?}"))));
            }
        }
    }

    /// The data of the next event of that name, among others.
    #[track_caller]
    pub(super) fn await_event(&mut self, wanted: &str) -> Value {
        loop {
            let (name, data) = self.next().unwrap_or_else(|| panic!("ended before {wanted}"));
            if name == wanted {
                return data;
            }
        }
    }
}
