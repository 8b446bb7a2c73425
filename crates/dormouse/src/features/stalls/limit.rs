//! The CPU limits that have throttled the process, for its account of stalls.

use std::time::{Duration, Instant};

use dormouse_sys::process::cgroup::ControlGroup;

/// The time between two searches for a limit where there is none.
const LIMIT_EVERY: Duration = Duration::from_secs(1);

/// The time for which limits have throttled the process's control group.
#[derive(Debug, Default)]
pub(super) struct LimitReader {
    group: Option<ControlGroup>,
    throttled_ns: u64,
    /// When no limit could be seen.
    none_at: Option<Instant>,
}

impl LimitReader {
    pub(super) fn begin() -> Self {
        let mut reader = Self { group: ControlGroup::of_own().ok(), ..Self::default() };
        let now = reader.read();
        reader.none_at = now.is_none().then(Instant::now);
        reader.throttled_ns = now.unwrap_or(0);
        reader
    }

    /// Whether it could be read at the last time for how long limits have throttled the process.
    pub(super) fn is_seen(&self) -> bool {
        self.none_at.is_none()
    }

    /// For how long, since the last time; `None` where no limit can be seen.
    pub(super) fn since(&mut self, now: Instant) -> Option<u64> {
        if self.none_at.is_some_and(|at| now.saturating_duration_since(at) < LIMIT_EVERY) {
            return None;
        }
        if !self.group.as_ref().is_some_and(ControlGroup::is_current) {
            // The process has moved: what the group was throttled before is not the process's.
            *self = Self::begin();
        }
        let so_far = self.read();
        self.none_at = so_far.is_none().then_some(now);
        let so_far = so_far?;
        Some(so_far.saturating_sub(std::mem::replace(&mut self.throttled_ns, so_far)))
    }

    /// All limits around the process, if the kernel counts these together, else the sum of those
    /// that are seen.
    fn read(&self) -> Option<u64> {
        let group = self.group.as_ref()?;
        group.throttled_ns().or_else(|| {
            let limits = group.cpu_limits().ok().filter(|limits| !limits.is_empty())?;
            Some(limits.iter().fold(0, |sum, limit| limit.throttled_ns.saturating_add(sum)))
        })
    }
}
