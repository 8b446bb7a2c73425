//! The CPU limits of the control groups that the process is in.

use dormouse_protocol::{CpuLimitRow, CpuLimits};
use dormouse_sys::Capability;
use dormouse_sys::process::cgroup::{ControlGroup, CpuLimit};

use super::history;

/// Reads the limits. Looks for the control group only if the process has moved to another one.
pub(super) fn cpu_limits() -> CpuLimits {
    let known = history::take_control_group().filter(ControlGroup::is_current);
    let group = known.map_or_else(ControlGroup::of_own, Ok);
    let limits = group.as_ref().map_err(|why| *why).and_then(ControlGroup::cpu_limits);
    let throttled_ns = group.as_ref().ok().and_then(ControlGroup::throttled_ns);
    if let Ok(group) = group {
        history::keep_control_group(group);
    }
    let (groups, unknown) = match limits {
        Ok(limits) => (limits.into_iter().map(row).collect(), None),
        Err(why) => (Vec::new(), Some(why.into())),
    };
    CpuLimits { unknown, groups, throttled_ns }
}

fn row(of: CpuLimit) -> CpuLimitRow {
    let CpuLimit { path, quota_us, period_us, periods, throttled_periods, throttled_ns, usage_ns } = of;
    CpuLimitRow { path, quota_us, period_us, periods, throttled_periods, throttled_ns, usage_ns }
}

/// The check that `doctor` shows of the limits. Counts are since the control groups began.
pub(crate) fn cpu_limits_check() -> Capability {
    const NAME: &str = "host.cpu_limit";
    let limits = cpu_limits();
    if let Some(why) = &limits.unknown {
        return Capability::limited(NAME, format!("CPU limits are not known: {why}"))
            .with_fix("mount the control groups (/sys/fs/cgroup) where the service runs");
    }
    let is_throttled = limits.notices().next().is_some();
    let seen = limits.groups.iter().map(CpuLimitRow::sentence);
    let sentences: Vec<String> = seen.chain(limits.hidden()).collect();
    match sentences.join("; ") {
        none if none.is_empty() => {
            Capability::ok(NAME, "no control group that is seen here limits its CPU time")
        }
        sentences if is_throttled => {
            Capability::limited(NAME, format!("since the control group began {sentences}"))
                .with_fix(CpuLimitRow::ADVICE)
        }
        sentences => Capability::ok(NAME, sentences),
    }
}
