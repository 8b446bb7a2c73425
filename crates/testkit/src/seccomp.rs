//! Filters of system calls, as in containers and sandboxes.
//!
//! # References
//! seccomp(2)

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter, apply_filter_all_threads,
};

/// The kernel's answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The kernel makes the call.
    Allow,
    /// The kernel refuses the call with this error.
    Errno(i32),
    /// The kernel sends SIGSYS instead of making the call.
    Trap,
    /// The kernel kills the process.
    Kill,
}

impl From<Answer> for SeccompAction {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Allow => Self::Allow,
            Answer::Errno(error) => Self::Errno(error.cast_unsigned()),
            Answer::Trap => Self::Trap,
            Answer::Kill => Self::KillProcess,
        }
    }
}

/// A filter: its answer to some calls, and its answer to all others. Of several filters the
/// strictest answer counts.
#[derive(Debug, Clone)]
#[must_use]
pub struct Filter {
    calls: BTreeMap<i64, Vec<SeccompRule>>,
    matched: Answer,
    others: Answer,
}

impl Filter {
    /// Refuses these calls with EPERM.
    pub fn refuse(calls: &[i64]) -> Self {
        Self::answer(Answer::Errno(libc::EPERM), calls)
    }

    /// Kills the process for these calls.
    pub fn kill(calls: &[i64]) -> Self {
        Self::answer(Answer::Kill, calls)
    }

    /// Kills the process for all but these calls.
    pub fn kill_all_but(calls: &[i64]) -> Self {
        Self { others: Answer::Kill, ..Self::answer(Answer::Allow, calls) }
    }

    /// Answers these calls with `matched`, and allows all others.
    pub fn answer(matched: Answer, calls: &[i64]) -> Self {
        let calls = calls.iter().map(|&call| (call, Vec::new())).collect();
        Self { calls, matched, others: Answer::Allow }
    }

    /// Also matches `call` if its argument `argument` (from 0) has one of `values` in the bits of
    /// `mask`.
    pub fn and_where(mut self, call: i64, argument: u8, mask: u64, values: &[u64]) -> Self {
        let rules = values.iter().map(|&value| {
            let has = SeccompCmpOp::MaskedEq(mask);
            let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, has, value).unwrap();
            SeccompRule::new(vec![condition]).unwrap()
        });
        self.calls.entry(call).or_default().extend(rules);
        self
    }

    /// Filters the calls of this thread, and of threads and processes that it starts, from now on.
    pub fn install(self) {
        apply_filter(&self.program()).unwrap();
    }

    /// Filters the calls of all threads of this process from now on.
    pub fn install_on_all_threads(self) {
        apply_filter_all_threads(&self.program()).unwrap();
    }

    fn program(self) -> BpfProgram {
        let architecture = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(self.calls, self.others.into(), self.matched.into(), architecture);
        filter.unwrap().try_into().unwrap()
    }
}
