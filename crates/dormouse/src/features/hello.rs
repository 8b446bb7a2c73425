//! `hello`: the identity of this process.

use dormouse_protocol::{Hello, HelloRequest, PROTOCOL, WireError};
use dormouse_sys::brief;
use dormouse_sys::process::identity;
use dormouse_sys::sync::OnceBox;

use crate::agent::{Answered, Asked};
use crate::core::asleep::asleep;

impl Answered for HelloRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<Hello, WireError> {
        asked.client().greet(self.client, self.notices);
        Ok(hello())
    }
}

/// The process, and its start and name when they were first read: at its limit of descriptors it
/// cannot read them. A forked child has its parent's here, and so none of its own.
static FIRST: OnceBox<(u64, StartAndName)> = OnceBox::new();

type StartAndName = (u64, String);

/// Reads the start and the name, while there are descriptors.
pub(crate) fn remember() {
    if let Some(read) = read() {
        FIRST.get_or_init(|| Box::new((identity::id(), read)));
    }
}

/// The ticks of the process's start, and its name. The kernel cuts names anywhere, also in the
/// middle of a character.
fn read() -> Option<StartAndName> {
    let read = |path| Some(String::from_utf8_lossy(&brief::read(path).ok()?).into_owned());
    let status = read("/proc/self/stat")?;
    // The name in parentheses may hold anything, so count from its end: `starttime` is field 22.
    let start_ticks = status.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    Some((start_ticks, read("/proc/self/comm")?.trim_end().to_owned()))
}

pub(crate) fn hello() -> Hello {
    let known = || FIRST.get().filter(|(process, _)| *process == identity::id());
    let (start_ticks, name) = read().or_else(|| known().map(|(_, known)| known.clone())).unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(unsafe_code, reason = "the limit of a child")]
    fn hello_needs_no_free_descriptor() {
        dormouse_testkit::in_child(|| {
            remember();
            let before = hello();
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: only the limit changes.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) }, 0);
            let now = hello();
            assert!(!now.name.is_empty() && now.start_ticks > 0);
            assert_eq!((now.name, now.start_ticks), (before.name, before.start_ticks));
        });
    }
}
