//! Work in a forked child, with its own threads, descriptors and signal handlers; and threads that
//! sleep.
//!
//! # Safety
//!
//! The unsafe code is the fork, calls with plain numbers, and the end of the child. The child
//! allocates and starts threads, which the C library supports after a fork; the bench itself has no
//! other working thread that could hold a lock.
#![allow(unsafe_code)]

use std::io::{self, PipeReader, Read, Write, pipe};
use std::sync::{PoisonError, RwLock, mpsc};
use std::thread::{Builder, scope};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus, getrlimit, kill_process, setrlimit, waitpid,
};

use crate::runner::Failure;

/// Seconds after which the kernel ends a child that is to give values.
const PATIENCE: libc::c_uint = 60;

/// The values of `work`, done in a child.
pub(crate) fn apart(work: impl FnOnce() -> Result<Vec<f64>, Failure>) -> Result<Vec<f64>, Failure> {
    Child::start(work)?.values()
}

/// A child at work. It ends when this is dropped.
pub(crate) struct Child {
    pid: Option<Pid>,
    result: PipeReader,
}

impl Child {
    pub(crate) fn start(work: impl FnOnce() -> Result<Vec<f64>, Failure>) -> Result<Self, Failure> {
        Self::lasting(PATIENCE, work)
    }

    /// Runs work in a child that the kernel ends after the given number of seconds.
    pub(crate) fn lasting(
        seconds: libc::c_uint,
        work: impl FnOnce() -> Result<Vec<f64>, Failure>,
    ) -> Result<Self, Failure> {
        let (result, mut tell) = pipe()?;
        // SAFETY: see above. The child never comes back from `End`, also when `work` panics.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error().into()),
            0 => {
                let _end = End;
                // SAFETY: numbers only. The death of the parent ends the child.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::alarm(seconds);
                }
                // If the limit stays, the work fails with an error.
                let maximum = getrlimit(Resource::Nofile).maximum;
                let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
                let told = serde_json::to_vec(&work()).unwrap_or_default();
                // The parent finds that no word comes.
                let _ = tell.write_all(&told);
                Err(Failure::wrong("a child came back"))
            }
            child => Ok(Self { pid: Pid::from_raw(child), result }),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.map_or(0, |pid| pid.as_raw_nonzero().get().cast_unsigned())
    }

    /// The values, once the work is done.
    pub(crate) fn values(mut self) -> Result<Vec<f64>, Failure> {
        let mut told = Vec::new();
        self.result.read_to_end(&mut told)?;
        let signal = self.end().and_then(WaitStatus::terminating_signal);
        let silent =
            |_| Failure::wrong(format!("a child has ended without its values, by signal {signal:?}"));
        serde_json::from_slice(&told).map_err(silent)?
    }

    fn end(&mut self) -> Option<WaitStatus> {
        let pid = self.pid.take()?;
        // A child that has ended by itself keeps its own status.
        let _ = kill_process(pid, Signal::KILL);
        waitpid(Some(pid), WaitOptions::empty()).ok().flatten().map(|(_, status)| status)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ends the child that drops it, without running anything of its parent's.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) }
    }
}

/// The result of `work` while `sleepers` threads sleep.
pub(crate) fn beside_sleepers<T>(
    count: u32,
    work: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (gate, (ready, is_ready)) = (&RwLock::new(()), mpsc::channel());
    scope(|scope| {
        // The sleepers end when this closure does, however it ends.
        let _closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..count {
            let ready = ready.clone();
            Builder::new().spawn_scoped(scope, move || {
                // The receiver has gone when a later thread could not be started.
                let _ = ready.send(());
                drop(gate.read());
            })?;
        }
        for _ in 0..count {
            is_ready.recv()?;
        }
        work()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_tells_values_failures_and_its_death() {
        assert_eq!(apart(|| Ok(vec![0.1, 2.0])), Ok(vec![0.1, 2.0]));
        assert_eq!(apart(|| Err(Failure::wrong("3 of 4"))), Err(Failure::wrong("3 of 4")));
        assert_eq!(apart(|| Err(Failure::from("no register"))), Err(Failure::from("no register")));
        let died = apart(|| {
            // SAFETY: numbers only.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            Ok(Vec::new())
        });
        assert!(matches!(&died, Err(Failure::Wrong(why)) if why.contains("Some(9)")), "{died:?}");
    }
}
