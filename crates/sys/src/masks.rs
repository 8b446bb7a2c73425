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
        let status = match std::fs::read(path.join("status")) {
            Ok(status) => status,
            // A thread that has ended meanwhile blocks nothing.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => continue,
            Err(error) => return Err(error),
        };
        // The kernel cuts a name anywhere, also in the middle of a character.
        let status = String::from_utf8_lossy(&status);
        let Some(tid) = path.file_name().and_then(|n| n.to_str()?.parse().ok()) else { continue };
        if blocks(&status, signal).ok_or(io::ErrorKind::InvalidData)? {
            let name = field(&status, "Name:").unwrap_or_default().to_owned();
            blocking.push(Blocking { tid, name });
        }
    }
    Ok(blocking)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// `None` where the file does not say.
pub(crate) fn blocks(status: &str, signal: libc::c_int) -> Option<bool> {
    let mask = u64::from_str_radix(field(status, "SigBlk:")?, 16).ok()?;
    Some(mask & (1 << (signal - 1)) != 0)
}

#[cfg(test)]
#[allow(unsafe_code, reason = "a name and a mask that std cannot set")]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_a_status_file_is_read() {
        let status = |mask: &str| format!("Name:\ttea\nSigPnd:\t0000000000000000\nSigBlk:\t{mask}\n");
        assert_eq!(blocks(&status("0000000000000010"), libc::SIGTRAP), Some(true));
        assert_eq!(blocks(&status("fffffffe7ffbfeff"), libc::SIGTRAP), Some(true));
        assert_eq!(blocks(&status("ffffffffffffffef"), libc::SIGTRAP), Some(false));
        assert_eq!(blocks("", libc::SIGTRAP), None);
    }

    #[test]
    fn a_thread_whose_name_is_cut_in_the_middle_of_a_character_is_seen() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: sets this thread's own name and mask from local, whole values.
            unsafe {
                libc::prctl(libc::PR_SET_NAME, c"aaaaaaaaaaaaaa\u{e9}".as_ptr());
                let mut mask = std::mem::zeroed();
                libc::sigemptyset(&raw mut mask);
                libc::sigaddset(&raw mut mask, libc::SIGURG);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, std::ptr::null_mut());
            }
            tell.send(rustix::thread::gettid().as_raw_pid().cast_unsigned()).unwrap();
            let _ = ended.recv();
        });
        let tid = told.recv().unwrap();
        assert!(blocking(libc::SIGURG).unwrap().iter().any(|thread| thread.tid == tid));
        drop(end);
        thread.join().unwrap();
    }
}
