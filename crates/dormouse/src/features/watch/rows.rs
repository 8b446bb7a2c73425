//! Conversion of watches between the protocol and the mechanism.

use dormouse_breakpoints::{
    Access, Coverage, HitStackEnd, WatchHit, WatchReport, WatchSite, WatchSpec, WatchState,
};
use dormouse_protocol::{
    CoverageRow, HitRow, SiteRow, WatchRequest, WatchRow, WireAccess, WireHitStackEnd, WireState,
};

/// Converts a request to a description of the watch, with the number of its group.
#[doc(hidden)]
pub fn watch_spec(of: &WatchRequest, group: Option<u32>) -> WatchSpec {
    // An address or a length that does not fit is refused there as any other that is none.
    let [addr, len] = [of.addr, of.len].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
    let mut spec = WatchSpec::new(addr, len, access(of.access));
    if !of.name.is_empty() {
        spec = spec.named(&of.name);
    }
    if of.changed {
        spec = spec.changed();
    }
    if let Some(value) = of.equals {
        spec = spec.equals(value);
    }
    if let Some(mask) = of.mask {
        spec = spec.masked(mask);
    }
    if let Some(group) = group {
        spec = spec.in_group(group);
    }
    if let Some(most) = of.max_hits {
        spec = spec.max_hits(most);
    }
    if let Some(rate) = of.rate_per_s {
        spec = spec.rate(rate);
    }
    if of.flexible { spec.flexible() } else { spec }
}

fn access(of: WireAccess) -> Access {
    match of {
        WireAccess::Write => Access::Write,
        WireAccess::ReadWrite => Access::ReadWrite,
        WireAccess::Execute => Access::Execute,
    }
}

fn wire_access(of: Access) -> WireAccess {
    match of {
        Access::Write => WireAccess::Write,
        Access::ReadWrite => WireAccess::ReadWrite,
        Access::Execute => WireAccess::Execute,
    }
}

fn wire_state(of: WatchState) -> WireState {
    match of {
        WatchState::Armed => WireState::Armed,
        WatchState::Resting => WireState::Resting,
        WatchState::Over => WireState::Over,
    }
}

/// A report and single hits as a row; `group` returns the names for numbers.
#[doc(hidden)]
pub fn watch_row(
    report: WatchReport,
    hits: Vec<WatchHit>,
    group: impl Fn(u32) -> Option<String>,
) -> WatchRow {
    let Coverage {
        threads_armed,
        threads_alive,
        armed_ns,
        wall_ns,
        rests,
        late,
        unread,
        unpassed,
        over_because,
        stale_because,
        ..
    } = report.coverage;
    WatchRow {
        name: report.name,
        addr: report.addr as u64,
        len: report.len as u64,
        access: wire_access(report.access),
        state: wire_state(report.state),
        // The kernel's count was read a moment before.
        hits: report.hits.max(report.delivered),
        delivered: report.delivered,
        passed: report.passed,
        lost: report.lost,
        over_because: over_because.map(str::to_owned),
        stale_because: stale_because.map(str::to_owned),
        coverage: CoverageRow {
            threads_armed,
            threads_alive,
            armed_ns,
            wall_ns,
            rests,
            late,
            unread,
            unpassed,
        },
        sites: report.sites.into_iter().map(|of| site(of, &group)).collect(),
        other_sites: report.other_sites,
        stream: hits.into_iter().map(|of| hit(of, &group)).collect(),
    }
}

fn wire_end(of: HitStackEnd) -> Option<WireHitStackEnd> {
    match of {
        HitStackEnd::Unknown => None,
        HitStackEnd::Whole => Some(WireHitStackEnd::Whole),
        HitStackEnd::Cut => Some(WireHitStackEnd::Cut),
        HitStackEnd::Lost => Some(WireHitStackEnd::Lost),
    }
}

fn site(of: WatchSite, name: &impl Fn(u32) -> Option<String>) -> SiteRow {
    let WatchSite { ip, group, hits, old, new, tid, task, mono_ns, stack, inner, end } = of;
    let last = WatchHit { ip, group, tid, task, mono_ns, old, new, stack, inner, end };
    SiteRow { hits, last: hit(last, name) }
}

fn hit(of: WatchHit, name: &impl Fn(u32) -> Option<String>) -> HitRow {
    let is_cut = of.end == HitStackEnd::Cut;
    HitRow {
        ip: of.ip as u64,
        group: name(of.group),
        old: of.old,
        new: of.new,
        tid: of.tid,
        task: of.task,
        mono_ns: of.mono_ns,
        inner: is_cut.then_some(of.inner as u32),
        end: wire_end(of.end),
        stack: of.stack.into_iter().map(|addr| addr as u64).collect(),
    }
}
