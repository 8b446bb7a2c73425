//! Which threads block a signal, as `/proc` has it.

use std::io;

/// A thread that blocks a signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocking {
    /// Its id.
    pub tid: u32,
    /// Its name.
    pub name: String,
}

/// The threads of this process that block `signal` now.
///
/// # Cost
///
/// Reads a file of `/proc` for each thread.
pub fn blocking(signal: libc::c_int) -> io::Result<Vec<Blocking>> {
    let mut blocking = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        let path = entry?.path();
        // A thread that has ended meanwhile blocks nothing.
        let Ok(status) = std::fs::read_to_string(path.join("status")) else { continue };
        let Some(tid) = path.file_name().and_then(|n| n.to_str()?.parse().ok()) else { continue };
        if blocks(&status, signal) {
            let name = field(&status, "Name:").unwrap_or_default().to_owned();
            blocking.push(Blocking { tid, name });
        }
    }
    Ok(blocking)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

pub(crate) fn blocks(status: &str, signal: libc::c_int) -> bool {
    field(status, "SigBlk:")
        .and_then(|mask| u64::from_str_radix(mask, 16).ok())
        .is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_a_status_file_is_read() {
        let status = |mask: &str| format!("Name:\ttea\nSigPnd:\t0000000000000000\nSigBlk:\t{mask}\n");
        assert!(blocks(&status("0000000000000010"), libc::SIGTRAP));
        assert!(blocks(&status("fffffffe7ffbfeff"), libc::SIGTRAP));
        assert!(!blocks(&status("ffffffffffffffef"), libc::SIGTRAP));
        assert!(!blocks("", libc::SIGTRAP));
    }
}
