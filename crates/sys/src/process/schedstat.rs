//! The kernel's own account of a thread: how long it has run, and how long it was runnable and
//! waited for a CPU.
//!
//! `/proc/PID/task/TID/schedstat` has three numbers: nanoseconds run, nanoseconds waited, and how
//! often the thread came onto a CPU. The kernel adds a wait when it ends, so a wait that goes on is
//! not included; and the time run is that of the kernel's last update, a tick or a switch ago,
//! unless the thread's CPU clock was just read. A wait begins with a wake-up, or when the thread is
//! preempted. Threads that the kernel itself holds back (a quota of their cgroup) wait, too.
//!
//! # References
//!
//! `Documentation/scheduler/sched-stats.rst`; `proc_pid_schedstat` in `fs/proc/base.c`;
//! `sched_info_arrive` and `sched_info_enqueue` in `kernel/sched/stats.h`.

use crate::brief::BriefFile;

/// The kernel's counts of a thread since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedstat {
    /// Nanoseconds for which the thread ran.
    pub run_ns: u64,
    /// Nanoseconds for which the thread was runnable and did not run. `None` where the kernel
    /// counts none (no `CONFIG_SCHEDSTATS`, and no `delayacct` on its command line).
    pub runnable_ns: Option<u64>,
}

impl Schedstat {
    /// The counts of a thread of this process; `None` if the thread or the file does not exist.
    ///
    /// # Cost
    ///
    /// Five system calls, some microseconds; allocates only the path.
    pub fn of_own(tid: u32) -> Option<Schedstat> {
        // Longer than three numbers of 64 bits.
        let mut text = [0; 80];
        let file = BriefFile::open(format!("/proc/self/task/{tid}/schedstat")).ok()?;
        let length = file.read_at(&mut text, 0).ok()?;
        Schedstat::parse(std::str::from_utf8(text.get(..length)?).ok()?)
    }

    /// Parses the text of such a file; `None` if it is malformed.
    pub fn parse(text: &str) -> Option<Schedstat> {
        let mut numbers = text.split_ascii_whitespace().map(|number| number.parse::<u64>().ok());
        let [run_ns, waited_ns, slices] = [numbers.next()??, numbers.next()??, numbers.next()??];
        // A kernel that counts nothing writes three zeros (`sched_info_on`). So does one that
        // counts, of a thread that has not run yet.
        let is_counted = (run_ns, waited_ns, slices) != (0, 0, 0);
        Some(Schedstat { run_ns, runnable_ns: is_counted.then_some(waited_ns) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_counts_tells_no_time() {
        let counted = Schedstat { run_ns: 7, runnable_ns: Some(5) };
        assert_eq!(Schedstat::parse("7 5 3\n"), Some(counted));
        let waits = |text| Schedstat::parse(text).map(|said| said.runnable_ns);
        assert_eq!(waits("0 0 0\n"), Some(None), "it counts nothing");
        assert_eq!(waits("0 0 1\n"), Some(Some(0)), "it counts, and nothing waited");
        for text in ["", "7 5", "7 5 x", "-1 5 3", "not a number"] {
            assert_eq!(Schedstat::parse(text), None, "{text:?}");
        }
    }

    #[cfg(not(miri))]
    #[test]
    fn own_threads_have_an_account() {
        let tid = crate::process::identity::tid();
        // Until the first tick, the time may still be missing.
        dormouse_testkit::eventually(|| Schedstat::of_own(tid).expect("its own file").run_ns > 0);
        assert_eq!(Schedstat::of_own(u32::MAX >> 4), None);
    }
}
