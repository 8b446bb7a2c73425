//! The threads of a process, this one or another.
//!
//! `/proc/PID/task` is no snapshot: the kernel goes from one thread to the next, and if the thread
//! at which a listing stands ends just then, the listing stops there (`next_tid` in
//! `fs/proc/base.c`). [`list`] and [`list_of`] return whether that can have happened: it cannot if
//! one call returned the whole list, and the last thread of it lives on. Then each thread that
//! lived all the time is in the list, and so is each that had begun when the kernel came to the
//! end, because new threads are at the end.
//!
//! # Safety
//!
//! The unsafe code is `tgkill` without a signal.
#![allow(unsafe_code)]

use std::io;
use std::path::Path;

use super::identity::pid;
use crate::brief;

/// Bytes of an entry for a number: a head of 19 bytes and the digits, in words of 8.
const ENTRY: usize = 32;
/// The first buffer: a thousand threads.
const FIRST: usize = 1024 * ENTRY;
/// How often the threads are listed, at most, until a list is complete. Where threads end all the
/// time, each list has most.
const LISTS: u32 = 32;

/// Lists the ids of the threads of this process. Returns whether the list is complete.
///
/// # Errors
///
/// An error of reading `/proc`.
///
/// # Cost
///
/// About a microsecond for each thread.
pub fn list(into: &mut Vec<u32>) -> io::Result<bool> {
    list_at("/proc/self/task".as_ref(), into)
}

/// [`list`], again until the list is complete, up to 32 times. Returns whether it is.
///
/// # Errors
///
/// An error of reading `/proc`.
///
/// # Cost
///
/// That of [`list`], for each time.
pub fn list_whole(into: &mut Vec<u32>) -> io::Result<bool> {
    list_whole_at("/proc/self/task", into)
}

/// [`list_whole`] for a process's folder `task` in `/proc`.
///
/// # Errors
///
/// An error of reading it: `NotFound` for a process that is gone.
///
/// # Cost
///
/// That of [`list_whole`].
pub fn list_whole_at(folder: impl AsRef<Path>, into: &mut Vec<u32>) -> io::Result<bool> {
    for _ in 0..LISTS {
        if list_at(folder.as_ref(), into)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Lists the ids of the threads of a process. Returns whether the list is complete.
///
/// # Errors
///
/// An error of reading `/proc`: `NotFound` for a process that is gone.
///
/// # Cost
///
/// The same as [`list`].
pub fn list_of(pid: u32, into: &mut Vec<u32>) -> io::Result<bool> {
    list_at(format!("/proc/{pid}/task").as_ref(), into)
}

/// Whether a thread of a process has this id. A thread that has ended but is not gone yet counts.
pub fn is_alive_in(pid: u32, tid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}

/// Whether a thread of this process only runs the kernel's code, as those of `io_uring` do
/// (`iou-sqp-…`, `iou-wrk-…`). Such a thread blocks every signal for ever. False for a thread that
/// has ended.
///
/// # Cost
///
/// Reads a file of `/proc`.
///
/// # References
///
/// `proc_pid_stat(5)`: field 9; `PF_IO_WORKER` and `PF_USER_WORKER` in Linux
/// `include/linux/sched.h`.
pub fn is_of_kernel(tid: u32) -> bool {
    let stat = brief::read(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    flags(&stat).is_some_and(|flags| flags & (IO_WORKER | USER_WORKER) != 0)
}

const IO_WORKER: u32 = 0x10;
const USER_WORKER: u32 = 0x4000;

/// The flags in a `stat` file. The name before may have spaces and brackets in it.
fn flags(stat: &[u8]) -> Option<u32> {
    let behind = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let text = std::str::from_utf8(&stat[behind..]).ok()?;
    text.split_ascii_whitespace().nth(6)?.parse().ok()
}

/// Whether the list is complete. The last thread is looked up in `/proc`: a filter may refuse
/// `tgkill`, or kill for it.
fn list_at(folder: &Path, into: &mut Vec<u32>) -> io::Result<bool> {
    // Twice as many as the last time.
    let room = FIRST.max(2 * ENTRY * into.len());
    into.clear();
    let is_whole = brief::list(folder, room, |name| {
        into.extend(std::str::from_utf8(name).ok().and_then(|name| name.parse::<u32>().ok()));
    })?;
    Ok(is_whole && into.last().is_some_and(|last| folder.join(last.to_string()).exists()))
}

/// Gives the calling thread the lowest priority of usual threads (nice 19), until it ends: only a
/// privileged thread could raise it again. Where the kernel refuses that, it stays as it is.
pub fn lower_priority() {
    let _refused = rustix::process::setpriority_process(None, 19);
}

/// Whether a thread of this process has this id.
pub fn is_alive(tid: u32) -> bool {
    // SAFETY: sends nothing.
    unsafe { libc::syscall(libc::SYS_tgkill, pid(), tid, 0) == 0 }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::process::identity::tid;

    #[test]
    fn kernel_threads_are_told_by_their_flags() {
        let stat = |flags: &str| format!("7872 (iou-sqp ) 1) S 1 2 3 0 -1 {flags} 0 0");
        assert_eq!(flags(stat("4243776").as_bytes()), Some(4_243_776));
        assert_eq!(flags(b"7 (tea) S 1"), None);
        assert!(!is_of_kernel(tid()));
    }

    #[test]
    fn a_list_has_all_waiting_threads() {
        let (tell, told) = std::sync::mpsc::channel();
        let mut ends = Vec::new();
        for _ in 0..1500 {
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let tell = tell.clone();
            std::thread::Builder::new()
                .stack_size(64 * 1024)
                .spawn(move || {
                    tell.send(tid()).unwrap();
                    let _ = ended.recv();
                })
                .unwrap();
            ends.push(end);
        }
        let ours: Vec<u32> = (0..1500).map(|_| told.recv().unwrap()).collect();
        let mut list_of_all = Vec::new();
        // The first call may find its buffer too short.
        dormouse_testkit::eventually(|| list(&mut list_of_all).unwrap());
        assert!(ours.iter().all(|tid| list_of_all.contains(tid)));
        assert!(list_of_all.contains(&tid()) && is_alive(tid()));
        let mut from_outside = Vec::new();
        dormouse_testkit::eventually(|| list_of(pid(), &mut from_outside).unwrap());
        assert!(ours.iter().all(|tid| from_outside.contains(tid)) && is_alive_in(pid(), tid()));
        assert!(!is_alive_in(pid(), 1) || pid() == 1);
    }

    #[test]
    fn lists_are_complete_where_tgkill_kills() {
        dormouse_testkit::in_child(|| {
            dormouse_testkit::Filter::kill(&[libc::SYS_tgkill]).install();
            let mut list = Vec::new();
            assert!(list_whole(&mut list).unwrap());
            assert!(list.contains(&tid()));
        });
    }
}
