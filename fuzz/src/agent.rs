//! The agent answers any bytes of a client in lines of JSON or closes, and answers the next client.
//!
//! # Safety
//!
//! The environment is changed once: only so an agent is told where its socket goes.
#![allow(unsafe_code)]

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

/// Longer than anything takes that does not hang.
const HANG: Duration = Duration::from_secs(30);

const HELLO: &[u8] = b"{\"v\":1,\"id\":1,\"op\":\"hello\",\"client\":\"fuzz\"}\n";

/// The agent of this process, in a directory of its own, which stays.
static SOCKET: LazyLock<PathBuf> = LazyLock::new(|| {
    let directory = tempfile::tempdir().expect("a temporary directory").keep();
    // SAFETY: nothing in this program reads the environment but through the standard library, which
    // locks it.
    unsafe { std::env::set_var("DORMOUSE_RUNTIME_DIR", directory) };
    dormouse::init().expect("an agent").path().to_owned()
});

/// Bytes are what a client sends after it has greeted, or, if the first one is 0, before.
///
/// # Panics
///
/// When the agent says something else than lines of JSON, or says nothing to a client that comes
/// after this one.
pub fn check(bytes: &[u8]) {
    let (greet, bytes) = match bytes.split_first() {
        Some((0, rest)) => (false, rest),
        _ => (true, bytes),
    };
    let mut client = connect(&SOCKET);
    if greet {
        assert!(hello(&mut client).contains("\"ok\""));
    }
    // It may close in the middle.
    let _ = client.get_mut().write_all(bytes);
    let _ = client.get_mut().shutdown(Shutdown::Write);
    let mut answers = Vec::new();
    match client.read_to_end(&mut answers) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("no end: {error}"),
        _ => {}
    }
    let first = answers.split(|&byte| byte == b'\n').next().unwrap_or_default();
    assert!(first.is_empty() || serde_json::from_slice::<serde_json::Value>(first).is_ok());
    assert!(hello(&mut connect(&SOCKET)).contains("\"ok\""));
}

fn connect(socket: &Path) -> BufReader<UnixStream> {
    let stream = UnixStream::connect(socket).expect("a listening agent");
    stream.set_read_timeout(Some(HANG)).expect("a timeout");
    stream.set_write_timeout(Some(HANG)).expect("a timeout");
    BufReader::new(stream)
}

fn hello(client: &mut BufReader<UnixStream>) -> String {
    client.get_mut().write_all(HELLO).expect("a listening agent");
    let mut line = String::new();
    client.read_line(&mut line).expect("an answer");
    line
}
