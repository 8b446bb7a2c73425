//! The control groups that the process is in: their CPU limits, and their pressure.

use dormouse_protocol::{CpuLimitRow, CpuLimits, Pressure, PressureRow};
use dormouse_sys::Capability;
use dormouse_sys::process::cgroup::{ControlGroup, CpuLimit};
use dormouse_sys::process::pressure::FullPressure;

use super::history;

/// Reads limits and pressure. Looks for the control group only if the process has moved to another
/// one.
pub(super) fn control_groups() -> (CpuLimits, Option<Pressure>) {
    let known = history::take_control_group().filter(ControlGroup::is_current);
    let group = known.map_or_else(ControlGroup::of_own, Ok);
    let limits = group.as_ref().map_err(|why| *why).and_then(ControlGroup::cpu_limits);
    let throttled_ns = group.as_ref().ok().and_then(ControlGroup::throttled_ns);
    let pressure = pressure(group.as_ref().ok());
    if let Ok(group) = group {
        history::keep_control_group(group);
    }
    let (groups, unknown) = match limits {
        Ok(limits) => (limits.into_iter().map(row).collect(), None),
        Err(why) => (Vec::new(), Some(why.into())),
    };
    (CpuLimits { unknown, groups, throttled_ns }, pressure)
}

/// The pressure that the kernel shows.
fn pressure(group: Option<&ControlGroup>) -> Option<Pressure> {
    let row = |of: FullPressure| {
        let FullPressure { cpu_ns, memory_ns, io_ns } = of;
        (!of.is_unknown()).then_some(PressureRow { cpu_ns, memory_ns, io_ns })
    };
    let group = group.map(ControlGroup::full_pressure).and_then(row);
    let host = row(FullPressure::of_host());
    (group.is_some() || host.is_some()).then_some(Pressure { group, host })
}

/// The check that `doctor` shows of pressure.
pub(crate) fn pressure_check() -> Capability {
    const NAME: &str = "host.pressure";
    let group = ControlGroup::of_own().ok();
    let Some(Pressure { group, host }) = pressure(group.as_ref()) else {
        let detail =
            "not measured: the kernel does not show for how long all tasks waited for memory, I/O or a CPU";
        return Capability::limited(NAME, detail).with_fix("boot it with psi=1, and with CONFIG_PSI");
    };
    match (group, host) {
        (Some(_), _) => Capability::ok(NAME, "the kernel counts it for the control group"),
        (None, _) => Capability::ok(
            NAME,
            "the kernel counts it for the host alone: control groups of version 1 have none",
        ),
    }
}

fn row(of: CpuLimit) -> CpuLimitRow {
    let CpuLimit { path, quota_us, period_us, periods, throttled_periods, throttled_ns, usage_ns } = of;
    CpuLimitRow { path, quota_us, period_us, periods, throttled_periods, throttled_ns, usage_ns }
}

/// The check that `doctor` shows of the limits. Counts are since the control groups began.
pub(crate) fn cpu_limits_check() -> Capability {
    const NAME: &str = "host.cpu_limit";
    let (limits, _) = control_groups();
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
