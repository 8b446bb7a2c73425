//! Objectives: the share of a group's requests that is to be answered within a time.
//!
//! ```text
//! objectives := groups ':' objective (';' groups ':' objective)*
//! objective  := share '%' '<' time
//! ```
//!
//! The share is a number above 0 and below 100 with at most four decimals; the time is one of
//! [`parse_length`]. An objective that is printed and parsed again is unchanged.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::length::{LENGTH_FORM, LengthText, parse_length};

/// An objective as it is written, for messages.
const EXAMPLE: &str = "99.9% < 250ms";

/// One percent, in millionths.
const PERCENT: u32 = 10_000;

/// The decimals of a share in percent.
const DECIMALS: usize = 4;

/// The longest text of an objective with its groups, in bytes.
const LONGEST: usize = 1024;

/// An objective: this share of requests is to be answered within this time.
///
/// ```
/// use dormouse_protocol::Objective;
///
/// let objective: Objective = "99.90 %<250ms".parse()?;
/// assert_eq!((objective.target_ppm, objective.limit_ns), (999_000, 250_000_000));
/// assert_eq!(objective.to_string(), "99.9% < 250ms");
/// # Ok::<(), dormouse_protocol::ObjectiveError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Objective {
    /// The share of requests, in millionths.
    pub target_ppm: u32,
    /// The time: a request that takes less has met the objective, in nanoseconds.
    pub limit_ns: u64,
}

/// An objective for the groups that a list of globs selects.
///
/// ```
/// use dormouse_protocol::GroupObjective;
///
/// let of: GroupObjective = "GET /users/:id,POST *: 99% < 1s".parse()?;
/// assert_eq!((&*of.groups, of.objective.limit_ns), ("GET /users/:id,POST *", 1_000_000_000));
/// # Ok::<(), dormouse_protocol::ObjectiveError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupObjective {
    /// The globs.
    pub groups: String,
    /// The objective.
    pub objective: Objective,
}

/// An objective that is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the objective `{objective}`: {fault}; write {instead}")]
pub struct ObjectiveError {
    /// The objective, as it was given.
    pub objective: String,
    /// The part of it that is wrong, and its fault.
    pub fault: String,
    /// The text to write instead.
    pub instead: String,
}

/// The fault, and what to write instead.
type Fault = (String, String);

impl FromStr for Objective {
    type Err = ObjectiveError;

    fn from_str(text: &str) -> Result<Self, ObjectiveError> {
        objective(text).map_err(|fault| error(text, fault))
    }
}

impl FromStr for GroupObjective {
    type Err = ObjectiveError;

    fn from_str(text: &str) -> Result<Self, ObjectiveError> {
        of_groups(text).map_err(|fault| error(text, fault))
    }
}

impl GroupObjective {
    /// The objectives of a list.
    ///
    /// # Errors
    ///
    /// The first one that is invalid; also if there is none.
    pub fn list(list: &str) -> Result<Vec<Self>, ObjectiveError> {
        let all: Vec<&str> = list.split(';').map(str::trim).filter(|text| !text.is_empty()).collect();
        if all.is_empty() {
            return Err(error(list, ("there is none".into(), format!("`GET *: {EXAMPLE}`"))));
        }
        all.into_iter().map(str::parse).collect()
    }
}

fn error(text: &str, (fault, instead): Fault) -> ObjectiveError {
    const MOST_SHOWN: usize = 80;
    let text = text.trim();
    let objective = if text.chars().count() > MOST_SHOWN {
        text.chars().take(MOST_SHOWN).chain(['…']).collect()
    } else {
        text.to_owned()
    };
    ObjectiveError { objective, fault, instead }
}

fn of_groups(text: &str) -> Result<GroupObjective, Fault> {
    if text.len() > LONGEST {
        return Err((format!("it is {} bytes long", text.len()), format!("at most {LONGEST}")));
    }
    let instead = || format!("`GROUPS: {EXAMPLE}`, with globs of groups, as in `GET *: {EXAMPLE}`");
    // Names of routes have colons, an objective has none.
    let Some((groups, own)) = text.rsplit_once(':') else {
        return Err(("it has no `:` behind its groups".into(), instead()));
    };
    let groups = groups.trim();
    if groups.is_empty() {
        return Err(("it has no groups before its `:`".into(), instead()));
    }
    Ok(GroupObjective { groups: groups.to_owned(), objective: objective(own)? })
}

fn objective(text: &str) -> Result<Objective, Fault> {
    let instead = || format!("`{EXAMPLE}`");
    let Some((share, time)) = text.split_once('<') else {
        return Err((format!("`{}` has no `<`", text.trim()), instead()));
    };
    let share = share.trim();
    let Some(number) = share.strip_suffix('%') else {
        return Err((format!("its share `{share}` has no `%`"), instead()));
    };
    let Some(target_ppm) = parse_percent(number).filter(|ppm| (1..100 * PERCENT).contains(ppm)) else {
        return Err((
            format!(
                "its share `{share}` is no percentage above 0 and below 100, with at most {DECIMALS} decimals"
            ),
            instead(),
        ));
    };
    let limit = parse_length(time).map_err(|fault| (fault, format!("{LENGTH_FORM}, as in `{EXAMPLE}`")))?;
    Ok(Objective { target_ppm, limit_ns: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX) })
}

/// A percentage with at most four decimals, in millionths; `None` if it is none, or above 100.
pub fn parse_percent(text: &str) -> Option<u32> {
    let text = text.trim();
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole) || !are_digits(decimals) || decimals.len() > DECIMALS {
        return None;
    }
    let decimals: u32 = format!("{decimals:0<DECIMALS$}").parse().ok()?;
    let ppm = whole.parse::<u32>().ok()?.checked_mul(PERCENT)?.checked_add(decimals)?;
    (ppm <= 100 * PERCENT).then_some(ppm)
}

/// Writes millionths as a percentage, without the sign.
///
/// ```
/// use dormouse_protocol::{PercentText, parse_percent};
///
/// assert_eq!(PercentText(999_500).to_string(), "99.95");
/// assert_eq!(parse_percent("99.95"), Some(999_500));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PercentText(pub u32);

impl fmt::Display for PercentText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, decimals) = (self.0 / PERCENT, self.0 % PERCENT);
        if decimals == 0 {
            return write!(f, "{whole}");
        }
        let decimals = format!("{decimals:0DECIMALS$}");
        write!(f, "{whole}.{}", decimals.trim_end_matches('0'))
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = LengthText(Duration::from_nanos(self.limit_ns));
        write!(f, "{}% < {limit}", PercentText(self.target_ppm))
    }
}

impl fmt::Display for GroupObjective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.groups, self.objective)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objective_is_printed_as_it_is_read() {
        for (given, printed) in [
            ("*: 99%<250ms", "*: 99% < 250ms"),
            (" GET /a:b , POST * : 99.90 % < 1500ms", "GET /a:b , POST *: 99.9% < 1500ms"),
            ("a: 0.0001% < 24h", "a: 0.0001% < 24h"),
            ("a: 99.9999% < 60s", "a: 99.9999% < 1m"),
        ] {
            let read: GroupObjective = given.parse().unwrap();
            assert_eq!(read.to_string(), printed);
            assert_eq!(printed.parse(), Ok(read));
        }
    }

    #[test]
    fn a_wrong_part_is_named() {
        for (given, part) in [
            ("GET *", "it has no `:`"),
            (": 99% < 1s", "it has no groups"),
            ("a: 99% > 1s", "`99% > 1s` has no `<`"),
            ("a: 99 < 1s", "its share `99` has no `%`"),
            ("a: 100% < 1s", "its share `100%`"),
            ("a: 0% < 1s", "its share `0%`"),
            ("a: 99.99999% < 1s", "its share `99.99999%`"),
            ("a: -1% < 1s", "its share `-1%`"),
            ("a: .5% < 1s", "its share `.5%`"),
            ("a: 99% < 250", "the time `250` has no unit"),
            ("a: 99% < 1d", "the time `1d` has an unknown unit, `d`"),
            ("a: 99% < 0ms", "the time 0ms is 0"),
            ("a: 99% < 25h", "longer than 24h"),
            ("a: 99% < ", "`` is no time"),
        ] {
            let error = given.parse::<GroupObjective>().unwrap_err();
            assert_eq!(error.objective, given.trim());
            assert!(error.fault.contains(part), "{given}: {error}");
            assert!(error.instead.contains(EXAMPLE), "{given}: {error}");
        }
        let long = format!("{}: 99% < 1s", "ä".repeat(600));
        assert!(long.parse::<GroupObjective>().unwrap_err().to_string().len() < 400);
    }

    #[test]
    fn a_list_names_its_first_fault() {
        let list = GroupObjective::list("a: 99% < 1s;; b: 95% < 2s ;").unwrap();
        assert_eq!(list.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a: 99% < 1s", "b: 95% < 2s"]);
        assert_eq!(GroupObjective::list("a: 99% < 1s; b; c").unwrap_err().objective, "b");
        assert!(GroupObjective::list(" ; ").is_err());
    }
}
