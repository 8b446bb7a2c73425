//! `hello`: the identity of this process.

use dormouse_protocol::{Hello, HelloRequest, PROTOCOL, WireError};
use dormouse_sys::brief;

use crate::agent::{Answered, Asked};
use crate::core::asleep::asleep;

impl Answered for HelloRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<Hello, WireError> {
        asked.client().greet(self.client, self.notices);
        Ok(hello())
    }
}

/// A file of `/proc`, empty where there is none. The kernel cuts names anywhere, also in the middle
/// of a character.
fn read(path: &str) -> String {
    String::from_utf8_lossy(&brief::read(path).unwrap_or_default()).into_owned()
}

pub(crate) fn hello() -> Hello {
    let status = read("/proc/self/stat");
    // The name in parentheses may hold anything, so count from its end: `starttime` is field 22.
    let start_ticks = status
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19))
        .and_then(|field| field.parse().ok())
        .unwrap_or(0);
    let name = read("/proc/self/comm").trim_end().to_owned();
    Hello {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        start_ticks,
        name,
        exe: std::env::current_exe().map(|p| p.display().to_string()).unwrap_or_default(),
        uid: rustix::process::geteuid().as_raw(),
        keys: dormouse_keys::count(),
        sites: dormouse_keys::count_sites(),
        asleep: asleep(),
        ops: dormouse_protocol::announced().into_iter().map(str::to_owned).collect(),
    }
}
