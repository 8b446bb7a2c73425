//! The keeper of profiles: the thread `dormouse-profile`, which runs the [`Duty`], because a host
//! thread should not. It starts with the first profile and ends with the last.

use dormouse_sys::keeper::{Keeper, KeeperError};
use dormouse_sys::process::fork::Phase;

use super::duty::Duty;
use crate::Error;

/// The thread reads lists of `/proc`, and stacks into tables.
const STACK: usize = 256 * 1024;

/// The memory that a step may take, beside that of the tables, which ask by themselves. Without it
/// samples wait in their queues.
const STEP: usize = 512 * 1024;

pub(super) static KEEPER: Keeper<Duty> = Keeper::new(Phase::Profiles, "dormouse-profile", STACK, STEP);

impl From<KeeperError> for Error {
    fn from(error: KeeperError) -> Self {
        Self::Unavailable(format!("the sampler: {error}"))
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "a thread that ends in the midst")]
mod tests {
    use std::time::Duration;

    use dormouse_testkit::{eventually, in_child, spin_for};

    use super::*;
    use crate::options::Options;
    use dormouse_protocol::profile::ProfileKind;

    fn timers() -> usize {
        let timers = std::fs::read_to_string("/proc/self/timers").unwrap_or_default();
        timers.lines().filter(|line| line.starts_with("ID: ")).count()
    }

    fn start(number: u64) -> Result<Result<(), Error>, KeeperError> {
        KEEPER.begin(move |duty| duty.start(number, &Options { hz: 250, ..Options::default() }))
    }

    #[test]
    fn a_killed_keeper_leaves_no_timer() {
        in_child(|| {
            if !std::path::Path::new("/proc/self/timers").exists() {
                return dormouse_testkit::skip("no /proc/self/timers");
            }
            start(1).unwrap().unwrap();
            let count = timers();
            assert!(count > 0);
            // SAFETY: ends the keeper's thread alone, as a filter would.
            let killed = KEEPER.ask(|_| unsafe { libc::syscall(libc::SYS_exit, 0) });
            assert!(killed.is_err(), "{killed:?}");
            let late = KEEPER.ask(|duty| duty.read(ProfileKind::Cpu, 1)).unwrap();
            assert!(late.is_err(), "{late:?}");
            KEEPER.end((ProfileKind::Cpu, 1));
            start(2).unwrap().unwrap();
            assert_eq!(timers(), count);
            eventually(|| {
                spin_for(Duration::from_millis(10));
                KEEPER.ask(|duty| duty.read(ProfileKind::Cpu, 2)).unwrap().unwrap().coverage.samples > 0
            });
            KEEPER.end((ProfileKind::Cpu, 2));
            eventually(|| timers() == 0);
        });
    }
}
