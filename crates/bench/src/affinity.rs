//! Which processors a thread runs on.
//!
//! *Halves* keep two parties from taking time from each other: the thread that patches and the
//! thread that runs the patched code, or a service and its clients. By itself the scheduler puts
//! both on one processor whenever the rest of the machine is busy; then nothing runs at the same
//! time, and there is no other processor to interrupt.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::runner::Failure;

/// The processors of this thread, in two halves; a single processor is shared by both.
#[derive(Debug, Clone)]
pub(crate) struct Halves {
    all: Vec<usize>,
}

impl Halves {
    /// The processors that this thread may use.
    pub(crate) fn of_this_thread() -> Self {
        let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        Self { all: (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect() }
    }

    /// Whether there are processors for two halves.
    pub(crate) fn are_two(&self) -> bool {
        self.all.len() > 1
    }

    /// The first half.
    pub(crate) fn first(&self) -> &[usize] {
        &self.all[..self.all.len() / 2]
    }

    /// The second half, the greater one if they differ.
    pub(crate) fn second(&self) -> &[usize] {
        &self.all[self.all.len() / 2..]
    }

    /// Runs `work` on the first half; children and threads that it starts stay there.
    pub(crate) fn on_first<T>(&self, work: impl FnOnce() -> T) -> Result<T, Failure> {
        if self.are_two() { self.on(self.first(), work) } else { Ok(work()) }
    }

    /// Runs `work` on the second half; children and threads that it starts stay there.
    pub(crate) fn on_second<T>(&self, work: impl FnOnce() -> T) -> Result<T, Failure> {
        if self.are_two() { self.on(self.second(), work) } else { Ok(work()) }
    }

    /// Runs `work` on the last processor; children and threads that it starts stay there.
    pub(crate) fn on_last<T>(&self, work: impl FnOnce() -> T) -> Result<T, Failure> {
        self.on(&self.all[self.all.len().saturating_sub(1)..], work)
    }

    /// Runs `work` on all processors but the last, and passes it the number of that one.
    pub(crate) fn sparing_one<T>(&self, work: impl FnOnce(usize) -> T) -> Result<T, Failure> {
        match self.all[..] {
            [ref rest @ .., spared] if !rest.is_empty() => self.on(rest, || work(spared)),
            _ => Err(Failure::from("takes a processor to leave alone, and there is only one")),
        }
    }

    fn on<T>(&self, cpus: &[usize], work: impl FnOnce() -> T) -> Result<T, Failure> {
        pin(cpus)?;
        let result = work();
        pin(&self.all)?;
        Ok(result)
    }
}

fn pin(cpus: &[usize]) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    sched_setaffinity(None, &set).map_err(|error| Failure::from(format!("cannot choose processors: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_its_half_only() {
        let halves = Halves::of_this_thread();
        let allowed = || Halves::of_this_thread().all;
        let first = halves.on_first(allowed).unwrap();
        let second = halves.on_second(allowed).unwrap();
        let last = halves.on_last(allowed).unwrap();
        assert_eq!(allowed(), halves.all);
        assert_eq!(last, halves.all[halves.all.len() - 1..]);
        if halves.are_two() {
            assert_eq!([first, second].concat(), halves.all);
        }
    }

    #[test]
    fn only_the_spared_processor_is_left_out() {
        let halves = Halves::of_this_thread();
        let spared = halves.sparing_one(|spared| (Halves::of_this_thread().all, spared));
        assert_eq!(Halves::of_this_thread().all, halves.all);
        match spared {
            Ok((mut rest, spared)) => {
                rest.push(spared);
                assert_eq!(rest, halves.all);
            }
            Err(_) => assert!(!halves.are_two()),
        }
    }

    #[test]
    fn halves_cover_all_processors_once() {
        for count in [0, 1, 2, 5] {
            let halves = Halves { all: (0..count).collect() };
            assert_eq!([halves.first(), halves.second()].concat(), halves.all);
        }
    }
}
