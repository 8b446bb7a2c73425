//! Settings from the environment, which take effect in [`init`](crate::init). With them a service
//! has totals since its start without a change of its code, and its start can be observed, even if
//! no command can reach it.
//!
//! | setting | does |
//! |---|---|
//! | `DORMOUSE=off` | turns dormouse off: nothing starts, and none of the others count |
//! | `DORMOUSE_COUNT=task-clock,page-faults` | counts these events for all groups |
//! | `DORMOUSE_WAITS=1` | has the times of their tasks taken ([`waits`](crate::waits)) |
//! | `DORMOUSE_LOCKS=1` | has locks noted ([`sync`](crate::sync)) |
//! | `DORMOUSE_PUBLISH=1` | publishes the current group of each thread ([`publish`]) |
//! | `DORMOUSE_ON=shopd::*,db.query` | wakes these keys |
//! | `DORMOUSE_RECORD=shopd.*` | has their last records kept ([`recorder`]) |
//! | `DORMOUSE_MAX_CPU=1%` | suspends what costs most if dormouse uses more of a CPU |
//! | `DORMOUSE_TRIGGERS='request>500ms; panic'` | arms these triggers ([`triggers`]) |
//!
//! [`Agent::warnings`](crate::Agent::warnings) and `dormouse doctor` report a name that matches
//! nothing, with similar names; the other names take effect. Keys are switched on as by `dormouse
//! on --keep`; keys of objects that are opened later stay off. A forked child counts nothing, takes
//! no times, records nothing and has no triggers until it calls `init`; its keys are as its parent
//! left them.
//!
//! # Locking
//!
//! One lock, for which only a fork waits: a thread that finds it taken skips this.

use std::num::NonZeroU64;

use dormouse_events::Event;
use dormouse_keys::{Batch, Selector};
use dormouse_sys::process::fork::{Mutex, Phase};
use dormouse_sys::process::identity;
use dormouse_sys::{Capability, State, environment};

use crate::features::{limit, publish, recorder, triggers};

static SETTINGS: Mutex<Settings> = Mutex::new(
    Phase::Environment,
    Settings {
        has_begun: false,
        process: None,
        on: None,
        count: None,
        waits: None,
        locks: None,
        publish: None,
        record: None,
        triggers: None,
    },
);

/// The outcome of the settings.
struct Settings {
    has_begun: bool,
    /// The process that has begun to count: a fork child has another one.
    process: Option<NonZeroU64>,
    /// The result of each setting; `None` if it is not set, or while it is being applied.
    on: Option<Capability>,
    count: Option<Capability>,
    waits: Option<Capability>,
    locks: Option<Capability>,
    publish: Option<Capability>,
    record: Option<Capability>,
    triggers: Option<Capability>,
}

/// Applies the environment's settings: counting once in a process, switching keys on once.
pub(crate) fn begin() {
    let process = identity::number();
    let has_woken = {
        let Some(mut settings) = SETTINGS.try_lock() else { return };
        if settings.has_begun && settings.process == process {
            return;
        }
        (settings.process, settings.count, settings.waits) = (process, None, None);
        (settings.publish, settings.record, settings.triggers) = (None, None, None);
        settings.locks = None;
        std::mem::replace(&mut settings.has_begun, true)
    };
    // Not under the lock: keys are switched, and the fork of another copy takes their lock before
    // ours.
    let variables = environment::variables();
    let count = variables.count.as_deref().and_then(|names| count(&names.to_string_lossy()));
    let waits = variables.waits.as_deref().and_then(|setting| wait(&setting.to_string_lossy()));
    let locks = variables.locks.as_deref().and_then(|setting| note_locks(&setting.to_string_lossy()));
    let publish = variables.publish.as_deref().and_then(|setting| publish(&setting.to_string_lossy()));
    let record = variables.record.as_deref().map(|globs| record(&globs.to_string_lossy()));
    // They watch what the other settings have started.
    let triggers = variables.triggers.as_deref().map(|rules| arm(&rules.to_string_lossy()));
    let on = variables.on.as_deref().filter(|_| !has_woken).map(|globs| wake(&globs.to_string_lossy()));
    if let Ok(mut settings) = SETTINGS.lock() {
        settings.count = count;
        (settings.waits, settings.locks, settings.publish) = (waits, locks, publish);
        (settings.record, settings.triggers) = (record, triggers);
        settings.on = on.or(settings.on.take());
    }
}

/// The outcome of each setting.
pub(crate) fn capabilities() -> Vec<Capability> {
    let switch = environment::config_error().map(|why| {
        Capability::limited("agent.switch", why).with_fix("set DORMOUSE to off or on, or unset it")
    });
    let settings = SETTINGS.try_lock();
    let settings = settings
        .iter()
        .flat_map(|settings| {
            let Settings { on, count, waits, locks, publish, record, triggers, .. } = &**settings;
            [on, count, waits, locks, publish, record, triggers]
        })
        .flatten()
        .cloned();
    switch.into_iter().chain(limit::capability()).chain(settings).chain(faults()).collect()
}

/// The faults of settings that are read when they are needed.
fn faults() -> impl Iterator<Item = Capability> {
    let disk = triggers::store_config_error().map(|why| {
        Capability::limited("triggers.disk", why).with_fix("set DORMOUSE_RECORD_DISK so, or unset it")
    });
    let perf = environment::variables().perf.as_ref().filter(|it| *it != "1" && *it != "0");
    let perf = perf.map(|it| {
        let detail = format!("DORMOUSE_PERF is \"{}\", and counts as 0", it.display());
        Capability::limited("events.perf", detail).with_fix("set DORMOUSE_PERF to 1 or 0")
    });
    disk.into_iter().chain(perf)
}

/// The faults of the settings, in a sentence each.
pub(crate) fn config_errors() -> impl Iterator<Item = String> {
    let limited = capabilities().into_iter().filter(|check| check.state != State::Ok);
    limited.map(|check| check.detail.into_owned())
}

/// Counts the events of these names for good.
fn count(names: &str) -> Option<Capability> {
    let names: Vec<&str> = names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    if names.is_empty() {
        return None;
    }
    let (mut events, mut errors) = (Vec::new(), Vec::new());
    for name in names {
        match Event::by_name(name) {
            Ok(event) => events.push(event),
            Err(why) => errors.push(why.to_string()),
        }
    }
    if !events.is_empty() {
        match crate::core::group::start_counting(&events) {
            Ok(counting) => counting.keep(),
            Err(why) => {
                events.clear();
                errors.push(why.to_string());
            }
        }
    }
    let counted: Vec<&str> = events.into_iter().map(Event::name).collect();
    let counted = if counted.is_empty() { "nothing".to_owned() } else { counted.join(", ") };
    let detail = format!("DORMOUSE_COUNT has counted from the start: {counted}");
    Some(if errors.is_empty() {
        Capability::ok("groups.count", detail)
    } else {
        Capability::limited("groups.count", format!("{detail}; {}", errors.join("; ")))
            .with_fix("set DORMOUSE_COUNT to names that `dormouse list` shows, with commas between them")
    })
}

/// Has times of tasks taken for good.
fn wait(setting: &str) -> Option<Capability> {
    let begun = match setting.trim() {
        "" | "0" => return None,
        "1" => dormouse_waits::Waiting::start().map_err(|why| why.to_string()),
        other => Err(format!("it is {other:?}")),
    };
    Some(match begun {
        Ok(waiting) => {
            waiting.keep();
            Capability::ok("tasks.waits", "DORMOUSE_WAITS has had times of tasks taken from the start")
        }
        Err(why) => Capability::limited(
            "tasks.waits",
            format!("DORMOUSE_WAITS has had no times of tasks taken: {why}"),
        )
        .with_fix("set DORMOUSE_WAITS to 1 or 0"),
    })
}

/// Has locks noted for good.
fn note_locks(setting: &str) -> Option<Capability> {
    let holds = dormouse_locks::Holds::Sampled;
    let begun = match setting.trim() {
        "" | "0" => return None,
        "1" => dormouse_locks::LockTimes::start(holds).map_err(|why| why.to_string()),
        other => Err(format!("it is {other:?}")),
    };
    Some(match begun {
        Ok(times) => {
            times.keep();
            Capability::ok("locks.noted", "DORMOUSE_LOCKS has had locks noted from the start")
        }
        Err(why) => {
            Capability::limited("locks.noted", format!("DORMOUSE_LOCKS has had no locks noted: {why}"))
                .with_fix("set DORMOUSE_LOCKS to 1 or 0")
        }
    })
}

/// Publishes groups for good.
fn publish(setting: &str) -> Option<Capability> {
    let begun = match setting.trim() {
        "" | "0" => return None,
        "1" => publish::Publishing::start().map_err(|why| why.to_string()),
        other => Err(format!("it is {other:?}")),
    };
    Some(match begun {
        Ok(publishing) => {
            publishing.keep();
            Capability::ok("groups.published", "DORMOUSE_PUBLISH has published groups from the start")
        }
        Err(why) => {
            Capability::limited("groups.published", format!("DORMOUSE_PUBLISH has published no group: {why}"))
                .with_fix("see `groups.publish`, or set DORMOUSE_PUBLISH to 1 or 0")
        }
    })
}

/// Arms triggers for good: those that can be.
fn arm(rules: &str) -> Capability {
    let (mut armed, mut errors) = (0, Vec::new());
    for rule in triggers::split(rules) {
        match triggers::add(rule) {
            Ok(numbers) => armed += numbers.len(),
            Err(why) => errors.push(why.to_string()),
        }
    }
    let detail = format!("DORMOUSE_TRIGGERS has armed {armed} triggers from the start");
    if errors.is_empty() {
        return Capability::ok("triggers", detail);
    }
    Capability::limited("triggers", format!("{detail}; {}", errors.join("; "))).with_fix(
        "set DORMOUSE_TRIGGERS to rules, as in 'request>500ms; panic'; `dormouse triggers` has them all",
    )
}

/// Has the flight recorder record these probes for good.
fn record(globs: &str) -> Capability {
    let recorder = recorder::start(globs, recorder::DEFAULT_MEMORY).map_err(|why| why.to_string());
    match recorder {
        Ok(recorder) => {
            recorder.keep();
            Capability::ok("keys.record", format!("DORMOUSE_RECORD has recorded from the start: {globs}"))
        }
        Err(why) => {
            Capability::limited("keys.record", format!("DORMOUSE_RECORD has recorded nothing: {why}"))
                .with_fix("set DORMOUSE_RECORD to names or globs of probes, with commas between them")
        }
    }
}

/// Wakes the keys that a glob list selects.
fn wake(globs: &str) -> Capability {
    let woken = Selector::parse(globs).map_err(|why| why.to_string()).and_then(|selector| {
        let keys = selector.try_keys().map_err(|why| why.to_string())?;
        if keys.is_empty() {
            let near = dormouse_keys::near(globs, 5);
            let near = if near.is_empty() { String::new() } else { format!(", near: {}", near.join(", ")) };
            return Err(format!("nothing matches `{globs}`{near}"));
        }
        let batch = Batch::new().enable_all(keys.iter().map(|used| used.key));
        batch.apply().map(|_| keys.len()).map_err(|why| why.to_string())
    });
    match woken {
        Ok(keys) => Capability::ok("keys.on", format!("DORMOUSE_ON has woken {keys} keys: {globs}")),
        Err(why) => Capability::limited("keys.on", format!("DORMOUSE_ON has woken no key: {why}")).with_fix(
            "set DORMOUSE_ON to names or globs that `dormouse keys` shows, with commas between them",
        ),
    }
}
