//! The kernel's view of a thread of this process, for other threads: its state, and the system call
//! in which it sleeps.
//!
//! | file of `/proc/self/task/TID` | contains | readable |
//! |---|---|---|
//! | `stat` | the state, major page faults, the delay by block devices | always, unless there is no `/proc` or a filter refuses to open files |
//! | `syscall` | the number of the call and its arguments, while the thread sleeps | not after a change of user: root owns it then |
//! | `wchan` | the function of the kernel in which the thread sleeps | `0` where the kernel does not name it |
//!
//! The thread is not involved.
//!
//! # References
//!
//! `proc_pid_stat(5)`, `proc_pid_syscall(5)`, `proc_pid_wchan(5)`; `do_task_stat` in
//! `fs/proc/array.c`.

use std::io;

use libc::c_long;

use crate::arch::{self, calls};
use crate::brief::BriefFile;

/// The longest text of such a file: some fifty numbers, and a name.
const LONGEST: usize = 1280;

/// The part of a thread's `stat` that its stalls need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelState {
    /// The letter of the state: `R` running or runnable, `S` asleep, `D` asleep and not to be
    /// woken by signals, `T` and `t` stopped, and others.
    pub state: u8,
    /// The page faults for which the kernel had to read from a disk or from another process, since
    /// the thread began.
    pub major_faults: u64,
    /// For how long the thread waited for block devices, in ticks of `sysconf(_SC_CLK_TCK)`. Always
    /// 0 where the kernel does not count it: [`counts_block_delay`].
    pub block_ticks: u64,
}

/// The place at which a thread has entered the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelEntry {
    /// The thread is running or runnable.
    Runs,
    /// It sleeps in a system call: the number, and the first three arguments.
    Call(u32, [u64; 3]),
    /// It sleeps outside of any call: in a page fault.
    Fault,
}

impl KernelState {
    /// The state of a thread of this process.
    ///
    /// # Errors
    ///
    /// An error of reading a file of `/proc`. A malformed one is `InvalidData`.
    ///
    /// # Cost
    ///
    /// Three system calls, some microseconds.
    pub fn of_own(tid: u32) -> io::Result<Self> {
        read(tid, "stat", |text| Self::parse(text).ok_or(io::ErrorKind::InvalidData.into()))
    }

    /// The name of the thread may contain anything, also parentheses and spaces.
    fn parse(text: &[u8]) -> Option<Self> {
        let name_ends = text.iter().rposition(|byte| *byte == b')')?;
        let mut words = std::str::from_utf8(&text[name_ends + 1..]).ok()?.split_ascii_whitespace();
        let state = *words.next()?.as_bytes().first()?;
        // Fields 4 to 11 come before it, and 13 to 41 before the other one.
        let major_faults = words.nth(8)?.parse().ok()?;
        let block_ticks = words.nth(29)?.parse().ok()?;
        Some(Self { state, major_faults, block_ticks })
    }
}

impl KernelEntry {
    /// Where a thread of this process has entered the kernel.
    ///
    /// # Errors
    ///
    /// An error of reading a file of `/proc`. A malformed one is `InvalidData`, also of a thread
    /// that has no memory any more.
    ///
    /// # Cost
    ///
    /// Three system calls, some microseconds.
    pub fn of_own(tid: u32) -> io::Result<Self> {
        read(tid, "syscall", |text| Self::parse(text).ok_or(io::ErrorKind::InvalidData.into()))
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
        match words.next()? {
            "running" => Some(Self::Runs),
            "-1" => Some(Self::Fault),
            number => {
                let number = number.parse().ok()?;
                let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
                Some(Self::Call(number, [argument()?, argument()?, argument()?]))
            }
        }
    }
}

/// The function of the kernel in which a thread of this process sleeps; `None` where that is not
/// shown.
pub fn kernel_function(tid: u32) -> Option<String> {
    let name = read(tid, "wchan", |text| Ok(String::from_utf8_lossy(text).into_owned())).ok()?;
    (!name.is_empty() && name != "0").then_some(name)
}

/// Whether the kernel counts for how long threads wait for block devices; since Linux 5.14 it does
/// not unless it is told to. `None` if it does not say.
pub fn counts_block_delay() -> Option<bool> {
    let text = std::fs::read_to_string("/proc/sys/kernel/task_delayacct").ok()?;
    Some(text.trim() == "1")
}

/// The name of a system call that may block, by its number.
pub fn call_name(number: u32) -> Option<&'static str> {
    let number = c_long::from(number);
    let known = CALLS.iter().chain(arch::OLD_CALLS).find(|(of, _)| *of == number);
    known.and_then(|(_, name)| name.strip_prefix("SYS_"))
}

fn read<T>(tid: u32, file: &str, parse: impl FnOnce(&[u8]) -> io::Result<T>) -> io::Result<T> {
    let mut text = [0; LONGEST];
    let length = BriefFile::open(format!("/proc/self/task/{tid}/{file}"))?.read_at(&mut text, 0)?;
    parse(&text[..length])
}

/// The calls that all processors have and in which threads are found asleep.
const CALLS: &[(c_long, &str)] = calls![
    SYS_futex SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev
    SYS_preadv2 SYS_pwritev2 SYS_openat SYS_close SYS_fsync SYS_fdatasync SYS_sync_file_range SYS_syncfs
    SYS_ftruncate SYS_fallocate SYS_flock SYS_fcntl SYS_ioctl SYS_nanosleep SYS_clock_nanosleep
    SYS_restart_syscall SYS_ppoll SYS_pselect6 SYS_epoll_pwait SYS_recvfrom SYS_recvmsg SYS_recvmmsg
    SYS_sendto SYS_sendmsg SYS_sendmmsg SYS_sendfile SYS_splice SYS_copy_file_range SYS_accept SYS_accept4
    SYS_connect SYS_wait4 SYS_waitid SYS_io_uring_enter SYS_io_getevents SYS_msync SYS_madvise SYS_mmap
    SYS_munmap SYS_mprotect SYS_mremap SYS_brk SYS_getdents64 SYS_statx SYS_renameat2 SYS_unlinkat
    SYS_mkdirat SYS_membarrier SYS_rt_sigtimedwait SYS_rt_sigsuspend SYS_semop SYS_semtimedop SYS_msgsnd
    SYS_msgrcv SYS_mq_timedsend SYS_mq_timedreceive SYS_getrandom SYS_process_vm_readv SYS_execve SYS_clone
    SYS_exit SYS_exit_group
];

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn numbers_follow_any_name() {
        let line = "77 (a) R b) D 1 77 77 0 -1 4194304 108 0 5 0 10 20 0 0 20 0 9 0 2715026 3133440 400 1 2 3 4 \
                    5 6 0 0 0 0 0 0 0 17 1 0 0 42 0 0 94 95 96 97 98 99 100 0\n";
        let stat = KernelState::parse(line.as_bytes()).unwrap();
        assert_eq!(stat, KernelState { state: b'D', major_faults: 5, block_ticks: 42 });
        for malformed in ["", "77 (a) R", "77 (a", "77 (a) R 1 2 3 4 5 6 7 8 x"] {
            assert_eq!(KernelState::parse(malformed.as_bytes()), None, "{malformed}");
        }
    }

    #[test]
    fn calls_have_numbers_and_arguments() {
        let parse = |text: &str| KernelEntry::parse(text.as_bytes());
        let call = "202 0x7f01 0x80 0x2 0x0 0x0 0x0 0x7ffd0 0x7f02\n";
        assert_eq!(parse(call), Some(KernelEntry::Call(202, [0x7f01, 0x80, 2])));
        assert_eq!(parse("-1 0x7ffd0 0x7f02\n"), Some(KernelEntry::Fault));
        assert_eq!(parse("running\n"), Some(KernelEntry::Runs));
        for malformed in ["", "202", "x 0x1 0x2 0x3", "202 1 2 3"] {
            assert_eq!(parse(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn calls_have_names() {
        let name = |number: c_long| call_name(u32::try_from(number).unwrap());
        assert_eq!((name(libc::SYS_futex), name(libc::SYS_fsync)), (Some("futex"), Some("fsync")));
        assert_eq!(call_name(u32::MAX), None);
    }

    #[cfg(not(miri))]
    #[test]
    fn a_thread_that_reads_is_seen() {
        use std::io::Write as _;
        use std::sync::mpsc;

        let (mut from, mut to) = std::os::unix::net::UnixStream::pair().unwrap();
        let (tell, told) = mpsc::channel();
        let reads = std::thread::spawn(move || {
            tell.send(crate::process::identity::tid()).unwrap();
            from.read_exact(&mut [0]).unwrap();
        });
        let tid = told.recv().unwrap();
        let is_reading = || match KernelEntry::of_own(tid) {
            Ok(KernelEntry::Call(number, _)) => matches!(call_name(number), Some("read" | "recvfrom")),
            _ => false,
        };
        dormouse_testkit::eventually(is_reading);
        assert_eq!(KernelState::of_own(tid).unwrap().state, b'S');
        to.write_all(b"x").unwrap();
        reads.join().unwrap();
        assert!(KernelState::of_own(u32::MAX >> 4).is_err() && KernelEntry::of_own(u32::MAX >> 4).is_err());
        assert_eq!(kernel_function(u32::MAX >> 4), None);
    }
}
