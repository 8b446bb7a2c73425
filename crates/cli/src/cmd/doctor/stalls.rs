//! The causes for which polls of each group stall, in one sentence, with the setting to change.
//! Sleep that may have been a wait for work is told as that, and is no fault.

use dormouse_protocol::{Check, CheckState, StallsRow, Stat, StatRequest, WaitsBegun, WaitsRequest};

use super::check;
use crate::client::Client;
use crate::output::Context;
use crate::target::Target;

const NAME: &str = "groups.stalls";
const IDLE: &str = "groups.idle";

/// The groups that are named, those first that stall most.
const NAMED: usize = 5;

/// The checks of stalls while `meanwhile` runs; none from a service that cannot take
/// times, as one that is asleep.
pub(super) fn checks<T>(
    target: &Target,
    context: &Context,
    meanwhile: impl FnOnce() -> T,
) -> (T, Vec<Check>) {
    let begun = Client::open(target, context.patience).and_then(|(mut client, _)| {
        let begun: WaitsBegun = client.call(WaitsRequest { stalls: true, ..WaitsRequest::default() })?;
        let before: Stat = client.call(StatRequest::default())?;
        Ok((client, begun, before))
    });
    let result = meanwhile();
    let Ok((mut client, begun, before)) = begun else { return (result, Vec::new()) };
    if !begun.stalls {
        let detail = "not measured: the service cannot read the kernel's account of its threads";
        return (result, vec![check(NAME, CheckState::Limited, detail)]);
    }
    let Ok(now) = client.call(StatRequest::default()) else { return (result, Vec::new()) };
    (result, of(&now.since(&before)))
}

/// The checks of an interval.
fn of(stat: &Stat) -> Vec<Check> {
    let known = stat.groups.iter();
    let known = known.filter_map(|group| Some((&*group.name, group.waits.as_ref()?.stalls.as_deref()?)));
    let mut known: Vec<(&str, &StallsRow)> = known.collect();
    known.sort_by_key(|(_, stalls)| std::cmp::Reverse(stalls.known_busy_ns()));
    let stalled = known.iter().filter_map(|(name, stalls)| stalls.notice(name, stat.mono_ns));
    let stalled = stalled
        .take(NAMED)
        .map(|(detail, fix)| Check { fix: Some(fix), ..check(NAME, CheckState::Limited, detail) });
    let mut checks: Vec<Check> = stalled.collect();
    if checks.is_empty() {
        let seconds = stat.mono_ns as f64 / 1e9;
        let detail = format!("no group's polls were seen to stall for 1 % of {seconds:.1} s");
        checks.push(check(NAME, CheckState::Ok, detail));
    }
    known.sort_by_key(|(_, stalls)| std::cmp::Reverse(stalls.known_ns() - stalls.known_busy_ns()));
    let idle = known.iter().filter_map(|(name, stalls)| stalls.idle_notice(name, stat.mono_ns));
    checks.extend(idle.take(NAMED).map(|detail| check(IDLE, CheckState::Ok, detail)));
    checks
}

#[cfg(test)]
mod tests {
    use dormouse_protocol::{GroupRow, WaitsRow};

    use super::*;

    #[test]
    fn groups_that_stall_most_come_first() {
        let group = |name: &str, asleep_ms: u64| {
            let asleep_ns = asleep_ms * 1_000_000;
            let stalls =
                StallsRow { asleep_ns, within: vec![("futex".into(), asleep_ns)], ..StallsRow::default() };
            let waits = WaitsRow { stalls: Some(Box::new(stalls)), ..WaitsRow::default() };
            GroupRow { name: name.to_owned().into(), waits: Some(Box::new(waits)), ..GroupRow::default() }
        };
        let stat = |groups| Stat { mono_ns: 1_000_000_000, groups, ..Stat::default() };
        let checks = of(&stat(vec![group("GET /a", 2), group("GET /b", 20), group("GET /c", 300)]));
        let begins: Vec<_> = checks.iter().map(|check| &check.detail[..6]).collect();
        assert_eq!(begins, ["GET /c", "GET /b"], "{checks:?}");
        assert!(checks[0].fix.as_ref().is_some_and(|fix| fix.contains("dormouse locks")), "{checks:?}");
        let none = of(&stat(vec![group("GET /a", 2)]));
        assert_eq!((none.len(), none[0].state), (1, CheckState::Ok));
        // A pool's threads without work.
        let mut pool = group("rows", 900);
        let stalls = pool.waits.as_mut().and_then(|waits| waits.stalls.as_mut()).unwrap();
        stalls.by_hand.clone_from(&stalls.within);
        let idle = of(&stat(vec![pool]));
        let told = idle.iter().map(|check| (&*check.name, check.state, check.fix.is_some()));
        let ok = CheckState::Ok;
        assert_eq!(told.collect::<Vec<_>>(), [(NAME, ok, false), (IDLE, ok, false)], "{idle:?}");
    }
}
