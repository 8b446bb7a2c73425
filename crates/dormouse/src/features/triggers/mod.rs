//! Triggers: when something happens in the service, a file of what it has just done is written at
//! once.
//!
//! A rule describes the event: `request>500ms in POST *`, `long-poll>20ms`, `lock>100ms`, `cpu>90%
//! for 10s`, `brew.step.cups>100`, `panic`. A trigger observes the service from inside, on a thread
//! of dormouse's. When its event happens, it has a file written with the newest records, the tasks
//! and where they wait, groups, threads, and a CPU profile of the following second; the command
//! reads it (`dormouse tasks FILE`, `profile FILE`, `trace FILE`). Files are in
//! `DORMOUSE_RECORD_DIR`, else in `/tmp/dormouse-<uid>`, and take at most `DORMOUSE_RECORD_DISK`,
//! by default 64 MiB: the oldest is removed first. `DORMOUSE_TRIGGERS` sets triggers from
//! [`init`](crate::init) on.
//!
//! ```
//! let added = dormouse::triggers::add("request>500ms every 10m")?;
//! for trigger in dormouse::triggers::list()?.triggers {
//!     println!("{}: {} files; {}", trigger.rule, trigger.fired, trigger.why_not);
//! }
//! for number in added {
//!     dormouse::triggers::remove(number)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A forked child has none of its parent's triggers.

mod engine;
mod rules;
mod verb;

use std::collections::HashMap;
use std::time::Duration;

use dormouse_events::Event;
use dormouse_keys::{KeyUse, Selector};
use dormouse_locks::{Holds, LockTimes};
use dormouse_sys::Capability;
use dormouse_sys::keeper::KeeperError;
use dormouse_waits::Waiting;

use self::engine::{
    CommandCondition, Condition, CpuCondition, FieldCondition, Groups, Leases, LockCondition,
    LongPollCondition, OutcomeCondition, PanicCondition, Polls, RequestCondition, StoreSettings, Triggers,
    requests,
};
use self::rules::{Rule, Wanted};
use crate::core::group::Group;
use crate::core::objectives::{A_WHILE, NAME_GROUPS, UNMATCHED};
use crate::core::panics::{self, PanicWait};
use crate::core::probe::Probe;
use crate::core::trace::Trace;
use crate::features::learning::Placed;
use crate::features::long_polls::long_polls;
use crate::lookout::{LOOKOUT, Watched};

pub(crate) use self::rules::split;

pub use self::rules::RuleError;
pub use dormouse_protocol::{TriggerRow, TriggersAnswer};

/// How long a thread waits for a directory that does not answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// How many near names an error has.
const NEAR: usize = 5;

/// Why a trigger cannot be armed, listed or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TriggerError {
    /// The rule is invalid.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// No probe has such a field.
    #[error("no probe has a field `{path}`{}", near_text(near))]
    NoField {
        /// The probe's name and the field's, with a dot in between.
        path: String,
        /// Such names that are near.
        near: Vec<String>,
    },
    /// There is no such trigger.
    #[error("there is no trigger {number}: `dormouse triggers` lists them")]
    NoTrigger {
        /// The number that was given.
        number: u64,
    },
    /// The process does not have what the trigger watches, or cannot write files.
    #[error("`{rule}` cannot be armed: {why}")]
    Unavailable {
        /// The rule.
        rule: String,
        /// The reason, and what to change.
        why: String,
    },
    /// The observing thread cannot be started, or is busy. If a filter of system calls kills it,
    /// all triggers end.
    #[error("the thread that looks after triggers: {0}")]
    Lookout(#[from] KeeperError),
}

fn near_text(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!(", near: {}", near.join(", ")) }
}

/// Arms triggers for these rules, which are separated by `;`. Returns their numbers.
///
/// They stay until they are removed, or the process ends.
///
/// ```no_run
/// use dormouse::triggers;
///
/// for number in triggers::add("request>500ms in POST *; panic")? {
///     println!("trigger {number} is armed");
/// }
/// for trigger in triggers::list()?.triggers {
///     println!("{trigger:?}");
/// }
/// triggers::remove(1)?;
/// # Ok::<(), triggers::TriggerError>(())
/// ```
///
/// # Errors
///
/// The first rule that is invalid, or cannot be armed; the triggers of those before it are removed
/// again.
///
/// # Cost
///
/// While it exists, a rule on requests has times and places of tasks taken ([`crate::waits`]), one
/// on long polls has times taken, one on locks has locks noted, one on CPU of groups has CPU time
/// counted, and one on a field keeps its probe awake. The first trigger starts a thread. A file is
/// begun, renamed and removed, to check that files can be written.
pub fn add(list: &str) -> Result<Vec<u64>, TriggerError> {
    let numbers = add_for_client(list)?;
    if panics::is_awaited() {
        panics::put_first();
    }
    Ok(numbers)
}

/// Does what [`add`] does, on a thread of dormouse's: the host's panic hook is not changed.
pub(crate) fn add_for_client(list: &str) -> Result<Vec<u64>, TriggerError> {
    let rules = rules::rules(list)?;
    // Before a file has to be written: a filter that kills for that does so now, while a user is
    // watching.
    let checked = LOOKOUT.ask_for(PATIENCE, |_| Triggers::check())?;
    checked.map_err(|why| TriggerError::Unavailable { rule: list.to_owned(), why })?;
    let mut numbers = Vec::new();
    for rule in rules {
        match arm(&rule) {
            Ok(number) => numbers.push(number),
            Err(why) => {
                for number in numbers {
                    LOOKOUT.end(Watched::by::<Triggers>(number));
                }
                return Err(why);
            }
        }
    }
    Ok(numbers)
}

/// All triggers, when each last fired, and why it does not fire now.
///
/// ```no_run
/// use dormouse::triggers;
///
/// for number in triggers::add("request>500ms in POST *; panic")? {
///     println!("trigger {number} is armed");
/// }
/// for trigger in triggers::list()?.triggers {
///     println!("{trigger:?}");
/// }
/// triggers::remove(1)?;
/// # Ok::<(), triggers::TriggerError>(())
/// ```
///
/// # Errors
///
/// An error of the observing thread.
///
/// # Cost
///
/// Reads the times of all groups, and the files in the directory; this thread waits for that.
pub fn list() -> Result<TriggersAnswer, TriggerError> {
    list_within(Duration::MAX)
}

/// Does what [`list`] does, for a thread that waits for at most `longest`.
pub(crate) fn list_within(longest: Duration) -> Result<TriggersAnswer, TriggerError> {
    Ok(LOOKOUT.ask_for(longest, |engines| engines.get::<Triggers>().list(None))?)
}

/// Ends a trigger.
///
/// ```no_run
/// use dormouse::triggers;
///
/// for number in triggers::add("request>500ms in POST *; panic")? {
///     println!("trigger {number} is armed");
/// }
/// for trigger in triggers::list()?.triggers {
///     println!("{trigger:?}");
/// }
/// triggers::remove(1)?;
/// # Ok::<(), triggers::TriggerError>(())
/// ```
///
/// # Errors
///
/// If there is no trigger with that number.
pub fn remove(number: u64) -> Result<(), TriggerError> {
    let there = LOOKOUT.ask_for(PATIENCE, move |engines| engines.get::<Triggers>().has(number))?;
    if !there {
        return Err(TriggerError::NoTrigger { number });
    }
    LOOKOUT.end(Watched::by::<Triggers>(number));
    Ok(())
}

/// Writes a file now. The trigger that does so stays in the list, with its result, until it is
/// removed, at least for 30 s if there are fewer than 64 triggers. Returns its number.
///
/// ```no_run
/// // The file is written by a thread of dormouse's own.
/// let number = dormouse::triggers::save()?;
/// println!("file {number}");
/// # Ok::<(), dormouse::triggers::TriggerError>(())
/// ```
///
/// # Errors
///
/// An error of the observing thread.
pub fn save() -> Result<u64, TriggerError> {
    let begun = LOOKOUT.begin(|engines| {
        engines.get::<Triggers>().arm(None, Box::new(CommandCondition), Leases::default())
    })?;
    begun.map_err(|why| TriggerError::Unavailable { rule: "command".to_owned(), why })
}

/// The rules of a list, each as it was understood; arms none of them.
///
/// ```
/// use dormouse::triggers::check_rules;
///
/// assert_eq!(check_rules("request>500ms; panic").unwrap().len(), 2);
/// assert!(check_rules("request>5").is_err(), "a duration has a unit");
/// ```
///
/// # Errors
///
/// The first rule that is invalid.
pub fn check_rules(list: &str) -> Result<Vec<String>, RuleError> {
    Ok(rules::rules(list)?.iter().map(Rule::to_string).collect())
}

/// The checks that `doctor` shows of triggers whose globs match no group, though there are some and
/// the triggers were armed a while ago.
pub(crate) fn unmatched_checks() -> Vec<Capability> {
    // Otherwise there is no trigger, and no thread to ask.
    if !LOOKOUT.is_there() || Group::all().is_empty() {
        return Vec::new();
    }
    let check = |row: TriggerRow| {
        let globs = row.rule.parse::<Rule>().ok()?.groups?;
        let why = Groups(Selector::parse(&globs).ok()).warning()?;
        let check = Capability::limited(UNMATCHED, format!("trigger `{}`: {why}", row.rule));
        Some(check.with_fix(NAME_GROUPS))
    };
    let rows = list_within(PATIENCE).map_or_else(|_| Vec::new(), |all| all.triggers);
    let rows = rows.into_iter().filter(|row| Duration::from_nanos(row.armed_for_ns) >= A_WHILE);
    rows.filter_map(check).collect()
}

/// The fault in the setting of the room for files.
pub(crate) fn store_config_error() -> Option<String> {
    StoreSettings::own().config_error.clone()
}

/// Arms one.
fn arm(rule: &Rule) -> Result<u64, TriggerError> {
    let unavailable = |why: String| TriggerError::Unavailable { rule: rule.to_string(), why };
    // Here, on the caller's thread: keys are switched, and counters begun.
    let start = || Waiting::start().map_err(|why| unavailable(why.to_string()));
    let (mut waiting, mut placed, mut counting, mut locks) = (None, None, None, None);
    let globs = rule.groups.as_deref().map(Selector::parse).transpose();
    let groups = globs.map(Groups).map_err(|why| unavailable(why.to_string()))?;
    let condition: Box<dyn Condition> = match &rule.wanted {
        Wanted::Request(threshold) => {
            waiting = Some(start()?);
            // Without memory for places there are times.
            placed = Placed::start().ok();
            let before = requests(&groups).unwrap_or_default();
            Box::new(RequestCondition::new(*threshold, groups, before))
        }
        Wanted::LongPoll(threshold) => {
            waiting = Some(start()?);
            let reports = long_polls(*threshold).map_err(|why| unavailable(why.to_string()))?;
            let polls = Polls(Box::new(move |most| reports.take_some(most)));
            let (threshold, highest) = (*threshold, Duration::ZERO);
            Box::new(LongPollCondition { threshold, groups, polls, last: 0, highest })
        }
        Wanted::Lock(threshold) => {
            locks = Some(LockTimes::start(Holds::Sampled).map_err(|why| unavailable(why.to_string()))?);
            Box::new(LockCondition::new(*threshold, groups))
        }
        Wanted::Cpu { percent, length } => {
            if rule.groups.is_some() {
                let begun = crate::core::group::start_counting(&[Event::TASK_CLOCK]);
                counting = Some(begun.map_err(|why| unavailable(why.to_string()))?);
            }
            let over = HashMap::new();
            Box::new(CpuCondition {
                percent: *percent,
                length: *length,
                groups,
                over,
                highest: 0,
                refused: None,
            })
        }
        Wanted::Outcome { of, level, length } => {
            Box::new(OutcomeCondition::new(*of, *level, *length, groups))
        }
        Wanted::Field { path, comparison, value } => {
            let (keys, places) = probes(path)?;
            let trace = Trace::of(keys).map_err(|why| unavailable(why.to_string()))?;
            let (path, comparison, limit) = (path.clone(), *comparison, value.clone());
            Box::new(FieldCondition {
                path,
                comparison,
                limit,
                trace,
                places,
                records: 0,
                lost: 0,
                nearest: None,
            })
        }
        Wanted::Panic => {
            let wait = PanicWait::begin(|| LOOKOUT.wake()).map_err(|why| unavailable(why.to_string()))?;
            Box::new(PanicCondition::new(wait))
        }
    };
    let leases = Leases { _waiting: waiting, _placed: placed, _counting: counting, _locks: locks };
    let own = Some(rule.clone());
    let begun = LOOKOUT.begin(move |engines| engines.get::<Triggers>().arm(own, condition, leases))?;
    begun.map_err(unavailable)
}

/// The probes that have a field of that path, and which of their values it is.
fn probes(path: &str) -> Result<(Vec<KeyUse>, HashMap<u32, usize>), TriggerError> {
    let all = Selector::parse("*,dormouse.*").map(|all| all.keys());
    let (mut keys, mut places, mut paths) = (Vec::new(), HashMap::new(), Vec::new());
    for used in all.unwrap_or_default() {
        let Some(probe) = used.key.attached::<Probe>() else { continue };
        for (at, field) in probe.fields().enumerate() {
            let own = format!("{}.{field}", used.key.name());
            if own == path {
                places.insert(probe.id(), at);
                keys.push(used.clone());
                break;
            }
            paths.push(own);
        }
    }
    if keys.is_empty() {
        paths.sort_by_key(|own| distance(own, path));
        paths.dedup();
        paths.truncate(NEAR);
        return Err(TriggerError::NoField { path: path.to_owned(), near: paths });
    }
    Ok((keys, places))
}

/// How unlike two paths are: the bytes that they do not share at both ends.
fn distance(one: &str, other: &str) -> usize {
    let front = one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    let back = one.bytes().rev().zip(other.bytes().rev()).take_while(|(a, b)| a == b).count();
    (one.len() + other.len()).saturating_sub(2 * (front + back))
}
