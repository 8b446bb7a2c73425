//! Texts of people and of the kernel that the command reads: durations, and the table of sockets.
//!
//! The command is a program, not a library; these two files of it stand alone.

#[allow(dead_code, reason = "a part of the command")]
#[path = "../../crates/cli/src/duration.rs"]
mod duration;
#[allow(dead_code, reason = "a part of the command")]
#[path = "../../crates/cli/src/target/sockets.rs"]
mod sockets;

/// Bytes are what stands on the command line, or in the table.
///
/// # Panics
///
/// When a duration that was understood is not the one that it is shown as, or a socket has a name
/// that nobody looks for.
pub fn check(bytes: &[u8]) {
    for socket in sockets::listening(bytes) {
        assert!(socket.path.ends_with(format!("{}.sock", socket.number)) && socket.path.is_absolute());
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(length) = duration::parse(text) {
        let ns = u64::try_from(length.as_nanos()).expect("at most 584 years");
        assert!(duration::milliseconds(length) >= ns / 1_000_000);
        assert!(!duration::short(ns).is_empty());
        assert_eq!(duration::parse(&format!("{ns}ns")), Ok(length));
    }
    assert!(duration::parse_hold(text).is_err() || duration::parse_positive(text).is_ok());
}
