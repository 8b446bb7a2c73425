//! CPU time in user and kernel mode, where the kernel tells them apart: as `times()` does, for the calling
//! thread, the process, and the children that it has waited for.
//!
//! # Safety
//!
//! The unsafe code is `getrusage`, which rustix does not have.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// CPU time by mode, in nanoseconds.
///
/// Only the sum is exact, as of the kernel's last look at the thread: a tick, a switch, or a read of its
/// clock. Unless the kernel accounts at every change of mode (`VIRT_CPU_ACCOUNTING_GEN`), each tick is
/// charged to the mode that it interrupts, and the exact sum is then divided in that proportion. The unit
/// of the kernel's answer is the microsecond.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// In user mode.
    pub user_ns: u64,
    /// In the kernel.
    pub system_ns: u64,
}

impl Times {
    /// Both.
    pub fn total_ns(self) -> u64 {
        self.user_ns + self.system_ns
    }
}

/// The calling thread's, by a system call.
pub fn thread_times() -> Times {
    usage(libc::RUSAGE_THREAD)
}

/// The process's, by a system call; of its threads that run it leaves out what came since their last tick,
/// see [`crate::process_cpu_ns`].
pub fn process_times() -> Times {
    usage(libc::RUSAGE_SELF)
}

/// Those of the children that have ended and been waited for, with theirs, by a system call.
pub fn children_times() -> Times {
    usage(libc::RUSAGE_CHILDREN)
}

fn usage(who: libc::c_int) -> Times {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: a valid place. The call fails for an unknown `who` only, and then leaves the zeroes, which are
    // valid too.
    let usage = unsafe {
        libc::getrusage(who, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ns = |time: libc::timeval| {
        time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_usec.cast_unsigned() * 1000
    };
    Times { user_ns: ns(usage.ru_utime), system_ns: ns(usage.ru_stime) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::thread_ns;

    #[test]
    fn the_parts_of_a_thread_add_up_to_its_clock() {
        let before = thread_ns();
        while thread_ns() < before + 20_000_000 {}
        let least = thread_ns();
        let times = thread_times();
        let most = thread_ns();
        // Each part is rounded down to a microsecond.
        assert!((least.saturating_sub(2000)..=most).contains(&times.total_ns()), "{times:?} {least}..{most}");
    }

    #[test]
    fn the_process_has_what_its_thread_has_and_its_children_are_apart() {
        let own = thread_times();
        let process = process_times();
        assert!(process.user_ns + process.system_ns + 4000 >= own.user_ns + own.system_ns);
        let before = children_times();
        let child = std::process::Command::new("/bin/sh")
            .args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"])
            .status();
        assert!(child.is_ok_and(|status| status.success()));
        assert!(children_times().total_ns() > before.total_ns());
    }
}
