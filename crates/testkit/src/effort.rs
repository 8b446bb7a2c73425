//! How much a test does: little in a usual run, all of it in a long one (`DORMOUSE_CI=long`).
//!
//! A test that repeats, waits or runs threads against each other takes its amount from here, so
//! that one variable makes all of them thorough, and a usual run ends in minutes.

use std::env;
use std::str::FromStr;
use std::time::Duration;

use crate::skip;

/// Whether this run is a long one, which repeats tests with more compilers, profiles and workloads.
pub fn is_long() -> bool {
    env::var("DORMOUSE_CI").is_ok_and(|mode| mode == "long")
}

/// `short`, or `long` in a long run.
pub fn short_or_long<T>(short: T, long: T) -> T {
    if is_long() { long } else { short }
}

/// Whether this run is a long one; if not, the calling test is reported as skipped. For what takes
/// too long in each run and is covered by other tests, except for its extent.
#[track_caller]
pub fn long_only() -> bool {
    let is_long = is_long();
    if !is_long {
        skip("only a long run does this");
    }
    is_long
}

/// How long a test runs threads against each other: half a second, or ten in a long run.
/// `DORMOUSE_STRESS_SECONDS` gives another number.
pub fn stress_time() -> Duration {
    let default = Duration::from_millis(short_or_long(500, 10_000));
    given("DORMOUSE_STRESS_SECONDS").map_or(default, Duration::from_secs)
}

/// How long a storm rages, in which threads are interrupted a thousand times a second: half a
/// second, or a minute in a long run. `DORMOUSE_STRESS_SECONDS` gives another number.
pub fn storm_time() -> Duration {
    let default = Duration::from_millis(short_or_long(500, 60_000));
    given("DORMOUSE_STRESS_SECONDS").map_or(default, Duration::from_secs)
}

/// How often a test repeats what threads do to each other: `short`, or `long` in a long run.
/// `DORMOUSE_STRESS` gives another number.
pub fn stress_rounds<T: FromStr>(short: T, long: T) -> T {
    given("DORMOUSE_STRESS").unwrap_or_else(|| short_or_long(short, long))
}

/// The number in this variable. Anything else there is a mistake, and fails the test.
fn given<T: FromStr>(variable: &str) -> Option<T> {
    let text = env::var(variable).ok()?;
    let Ok(number) = text.parse() else { panic!("{variable} is no number: {text:?}") };
    Some(number)
}
