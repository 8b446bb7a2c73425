//! Rules: the events for which a recorder's file is written.
//!
//! ```text
//! list  := rule (';' rule)*
//! rule  := what ['in' globs] ['every' time]
//! what  := 'request>' time | 'long-poll>' time | 'lock>' time | 'panic'
//!        | 'cpu>' number '%' 'for' time
//!        | 'error>' number '%' 'over' time | 'cancelled>' number '/s' ['over' time]
//!        | 'objective<' percent '%' 'over' time
//!        | probe '.' field ('>' | '>=' | '<' | '<=' | '==') value
//! value := a number | '"' text '"'
//! percent := a number with at most four decimals
//! time  := a whole number and 'us' | 'ms' | 's' | 'm' | 'h'
//! ```
//!
//! Globs select groups, and extend to the rule's end or to `every`, because names of groups contain
//! blanks. A rule that is printed and parsed again is unchanged.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use dormouse_keys::Selector;
use dormouse_protocol::{LENGTH_FORM, LengthText, PercentText, parse_length, parse_percent};

use crate::core::record::Field;

/// The minimum time between two files of a rule that does not set another.
pub(crate) const EVERY: Duration = Duration::from_secs(60);

/// The longest rule, in bytes.
const LONGEST: usize = 1024;

/// The most rules of a list.
const MOST: usize = 64;

/// The whats there are, for messages.
const WHATS: &str = "`request>500ms`, `error>5% over 10s`, `cancelled>10/s`, `objective<99% over 5m`, \
                     `long-poll>20ms`, `lock>100ms`, `cpu>90% for 10s`, `brew.step.cups>100` or `panic`";

/// The event that a rule waits for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Wanted {
    /// A request that takes longer than this.
    Request(Duration),
    /// A poll that takes longer than this.
    LongPoll(Duration),
    /// A wait for a lock that takes longer than this.
    Lock(Duration),
    /// More CPU use than this percentage of one CPU, for this long.
    Cpu { percent: u64, length: Duration },
    /// Requests of a group that ended so beyond this level, over this length.
    Outcome { of: Counted, level: u64, length: Duration },
    /// A field of a probe, by both names with a dot in between.
    Field { path: String, comparison: Comparison, value: Limit },
    /// A panic.
    Panic,
}

/// The requests that a rule counts, and its level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Those that failed, in percent of all.
    Failed,
    /// Those that were cancelled, in each second.
    Cancelled,
    /// Those that met an objective of the group: less than this share, in millionths.
    Met,
}

/// How a field's value is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Equal,
}

/// The value that a field is compared with.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Limit {
    Whole(i128),
    Float(f64),
    Text(String),
}

/// A rule, and how often it may have a file written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rule {
    pub(crate) wanted: Wanted,
    /// The groups to observe; `None` for all of them, and for work in none.
    pub(crate) groups: Option<String>,
    /// The least time between two files.
    pub(crate) every: Duration,
}

/// A rule that is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the rule `{rule}`: {what}; {instead}")]
pub struct RuleError {
    /// The rule, as it was given.
    pub rule: String,
    /// The fault.
    pub what: String,
    /// The text to write instead.
    pub instead: String,
}

/// The fault, and what to write instead.
type Fault = (String, String);

/// The rules of a list.
///
/// # Errors
///
/// The first rule that makes no sense.
pub(crate) fn rules(list: &str) -> Result<Vec<Rule>, RuleError> {
    let all = split(list);
    if all.is_empty() {
        return Err(error(list, ("there is none".into(), format!("write {WHATS}"))));
    }
    if all.len() > MOST {
        let what = format!("it is a list of {} rules", all.len());
        return Err(error(list, (what, format!("write at most {MOST}"))));
    }
    all.into_iter().map(str::parse).collect()
}

/// The rules of a list, which is cut at each `;` that is not in a text.
pub(crate) fn split(list: &str) -> Vec<&str> {
    let mut is_text = false;
    list.split(|c| {
        is_text ^= c == '"';
        c == ';' && !is_text
    })
    .map(str::trim)
    .filter(|rule| !rule.is_empty())
    .collect()
}

fn error(rule: &str, (what, instead): Fault) -> RuleError {
    const MOST_SHOWN: usize = 80;
    let rule = if rule.chars().count() > MOST_SHOWN {
        rule.chars().take(MOST_SHOWN).chain(['…']).collect()
    } else {
        rule.to_owned()
    };
    RuleError { rule, what, instead }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        rule(text.trim()).map_err(|fault| error(text.trim(), fault))
    }
}

fn rule(text: &str) -> Result<Rule, Fault> {
    if text.len() > LONGEST {
        return Err((format!("it is {} bytes long", text.len()), format!("write at most {LONGEST}")));
    }
    if let Some(control) = text.chars().find(|c| c.is_control()) {
        return Err((format!("it has a control character ({control:?})"), "leave that out".into()));
    }
    let (rest, every) = cut(text, " every ", true);
    let (what, groups) = cut(rest, " in ", false);
    let every = every.map(|every| time(every, "every 10m")).transpose()?.unwrap_or(EVERY);
    let wanted = wanted(what.trim())?;
    let has_groups = !matches!(wanted, Wanted::Field { .. } | Wanted::Panic);
    let groups = groups.map(str::trim).map(str::to_owned);
    if let Some(globs) = &groups {
        if !has_groups {
            return Err((format!("`{}` looks at no groups", what.trim()), "leave out `in …`".into()));
        }
        Selector::parse(globs)
            .map_err(|why| (why.to_string(), "write as in `in POST *,!POST /health`".into()))?;
    }
    Ok(Rule { wanted, groups, every })
}

/// The text before the first or the last `word` that is in no quotes, and after it, if there is
/// one.
fn cut<'a>(text: &'a str, word: &str, is_last: bool) -> (&'a str, Option<&'a str>) {
    let is_outside = |at: &usize| text[..*at].matches('"').count().is_multiple_of(2);
    let mut all = text.match_indices(word).map(|(at, _)| at).filter(is_outside);
    match if is_last { all.last() } else { all.next() } {
        Some(at) => (&text[..at], Some(&text[at + word.len()..])),
        None => (text, None),
    }
}

fn wanted(text: &str) -> Result<Wanted, Fault> {
    if text == "panic" {
        return Ok(Wanted::Panic);
    }
    let Some(at) = text.find(['>', '<', '=']) else {
        return Err((format!("`{text}` compares nothing"), format!("write {WHATS}")));
    };
    let (name, rest) = (text[..at].trim(), &text[at..]);
    let (comparison, value) = comparison(rest)?;
    let value = value.trim();
    let by = |only: Comparison, example: &str| {
        let fault = || (format!("`{name}` is compared by `{only}` alone"), format!("write `{example}`"));
        if comparison == only { Ok(()) } else { Err(fault()) }
    };
    let greater = |example: &str| by(Comparison::Greater, example);
    match name {
        "request" => {
            greater("request>500ms")?;
            Ok(Wanted::Request(time(value, "request>500ms")?))
        }
        "long-poll" => {
            greater("long-poll>20ms")?;
            let length = time(value, "long-poll>20ms")?;
            if length < Duration::from_millis(1) {
                return Err((format!("a poll of {value} is not seen"), "write 1ms or more".into()));
            }
            Ok(Wanted::LongPoll(length))
        }
        "lock" => {
            greater("lock>100ms")?;
            Ok(Wanted::Lock(time(value, "lock>100ms")?))
        }
        "error" => {
            greater("error>5% over 10s")?;
            failed(value)
        }
        "cancelled" => {
            greater("cancelled>10/s")?;
            cancelled(value)
        }
        "objective" => {
            by(Comparison::Less, "objective<99% over 5m")?;
            objective(value)
        }
        "cpu" => {
            greater("cpu>90% for 10s")?;
            cpu(value)
        }
        _ => {
            let is_path = name.split('.').count() > 1 && name.split('.').all(|part| !part.is_empty());
            if !is_path || name.contains(char::is_whitespace) || name.contains('"') {
                return Err((format!("`{name}` is nothing that can be seen"), format!("write {WHATS}")));
            }
            let value = limit(value, comparison)?;
            Ok(Wanted::Field { path: name.to_owned(), comparison, value })
        }
    }
}

fn comparison(text: &str) -> Result<(Comparison, &str), Fault> {
    let all = [
        (">=", Comparison::GreaterOrEqual),
        ("<=", Comparison::LessOrEqual),
        ("==", Comparison::Equal),
        (">", Comparison::Greater),
        ("<", Comparison::Less),
    ];
    all.into_iter()
        .find_map(|(sign, comparison)| Some((comparison, text.strip_prefix(sign)?)))
        .ok_or_else(|| ("a single `=` compares nothing".into(), "write `==`".into()))
}

fn cpu(value: &str) -> Result<Wanted, Fault> {
    let instead = || "write `cpu>90% for 10s`".to_owned();
    let Some((percent, length)) = value.split_once(" for ") else {
        return Err(("it does not say for how long".into(), instead()));
    };
    let number = percent.trim().strip_suffix('%').map(str::trim);
    let percent = number.and_then(|number| number.parse::<u64>().ok());
    let percent = percent.filter(|percent| (1..=1_000_000).contains(percent));
    let Some(percent) = percent else {
        return Err(("its level is no percentage of one CPU".into(), instead()));
    };
    let length = time(length, "cpu>90% for 10s")?;
    if length < Duration::from_secs(1) {
        return Err(("CPU is looked at once a second".into(), "write `for 1s` or longer".into()));
    }
    Ok(Wanted::Cpu { percent, length })
}

/// The length over which requests are counted if a rule does not set it.
const OVER: Duration = Duration::from_secs(1);

fn failed(value: &str) -> Result<Wanted, Fault> {
    const EXAMPLE: &str = "error>5% over 10s";
    let Some((level, length)) = value.split_once(" over ") else {
        return Err(("it does not say over how long".into(), format!("write `{EXAMPLE}`")));
    };
    let number = level.trim().strip_suffix('%').map(str::trim);
    let level = number.and_then(|number| number.parse().ok()).filter(|level| (0..100).contains(level));
    let Some(level) = level else {
        return Err(("its level is no percentage below 100".into(), format!("write `{EXAMPLE}`")));
    };
    Ok(Wanted::Outcome { of: Counted::Failed, level, length: over(length, EXAMPLE)? })
}

fn cancelled(value: &str) -> Result<Wanted, Fault> {
    const EXAMPLE: &str = "cancelled>10/s";
    let (level, length) = cut(value, " over ", false);
    let number = level.trim().strip_suffix("/s").map(str::trim);
    let level = number.and_then(|number| number.parse().ok()).filter(|level| *level <= 1_000_000);
    let Some(level) = level else {
        return Err(("its level is no rate".into(), format!("write `{EXAMPLE}`")));
    };
    let length = length.map_or(Ok(OVER), |length| over(length, "cancelled>10/s over 10s"))?;
    Ok(Wanted::Outcome { of: Counted::Cancelled, level, length })
}

fn objective(value: &str) -> Result<Wanted, Fault> {
    const EXAMPLE: &str = "objective<99% over 5m";
    let Some((level, length)) = value.split_once(" over ") else {
        return Err(("it does not say over how long".into(), format!("write `{EXAMPLE}`")));
    };
    let level = level.trim().strip_suffix('%').and_then(parse_percent).filter(|level| *level > 0);
    let Some(level) = level else {
        let what = "its level is no percentage up to 100, with at most four decimals";
        return Err((what.into(), format!("write `{EXAMPLE}`")));
    };
    Ok(Wanted::Outcome { of: Counted::Met, level: level.into(), length: over(length, EXAMPLE)? })
}

fn over(length: &str, example: &str) -> Result<Duration, Fault> {
    let length = time(length, example)?;
    if !(OVER..=Duration::from_secs(3600)).contains(&length) {
        let what = "requests are counted once a second, over at most an hour";
        return Err((what.into(), format!("write `{example}`")));
    }
    Ok(length)
}

fn limit(value: &str, comparison: Comparison) -> Result<Limit, Fault> {
    if let Some(text) = value.strip_prefix('"') {
        let Some(text) = text.strip_suffix('"').filter(|text| !text.contains('"')) else {
            return Err((
                "its text does not end, or goes on behind its end".into(),
                "write `== \"text\"`".into(),
            ));
        };
        if comparison != Comparison::Equal {
            return Err(("text is compared by `==` alone".into(), format!("write `== \"{text}\"`")));
        }
        return Ok(Limit::Text(text.to_owned()));
    }
    if let Ok(whole) = value.parse() {
        return Ok(Limit::Whole(whole));
    }
    let float = value.parse().ok().filter(|value: &f64| value.is_finite());
    let nothing = || (format!("`{value}` is no number"), "write a number, or text in quotes".into());
    float.map(Limit::Float).ok_or_else(nothing)
}

fn time(text: &str, example: &str) -> Result<Duration, Fault> {
    parse_length(text).map_err(|fault| (fault, format!("write {LENGTH_FORM}, as in `{example}`")))
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Equal => "==",
        })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(whole) => whole.fmt(f),
            // With a point or an exponent.
            Self::Float(float) => write!(f, "{float:?}"),
            Self::Text(text) => write!(f, "\"{text}\""),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.wanted {
            Wanted::Request(time) => write!(f, "request>{}", LengthText(*time))?,
            Wanted::LongPoll(time) => write!(f, "long-poll>{}", LengthText(*time))?,
            Wanted::Lock(time) => write!(f, "lock>{}", LengthText(*time))?,
            Wanted::Cpu { percent, length } => write!(f, "cpu>{percent}% for {}", LengthText(*length))?,
            Wanted::Outcome { of: Counted::Failed, level, length } => {
                write!(f, "error>{level}% over {}", LengthText(*length))?;
            }
            Wanted::Outcome { of: Counted::Cancelled, level, length } => {
                write!(f, "cancelled>{level}/s")?;
                if *length != OVER {
                    write!(f, " over {}", LengthText(*length))?;
                }
            }
            Wanted::Outcome { of: Counted::Met, level, length } => {
                let level = u32::try_from(*level).unwrap_or(u32::MAX);
                write!(f, "objective<{}% over {}", PercentText(level), LengthText(*length))?;
            }
            Wanted::Field { path, comparison, value } => write!(f, "{path}{comparison}{value}")?,
            Wanted::Panic => f.write_str("panic")?,
        }
        if let Some(groups) = &self.groups {
            write!(f, " in {groups}")?;
        }
        if self.every != EVERY {
            write!(f, " every {}", LengthText(self.every))?;
        }
        Ok(())
    }
}

impl Comparison {
    /// Whether a value is so, compared with the limit; `None`: they are of different kinds.
    pub(crate) fn holds(self, value: &Field<'_>, limit: &Limit) -> Option<bool> {
        let order = match (value, limit) {
            (Field::Signed(n), Limit::Whole(limit)) => i128::from(*n).partial_cmp(limit)?,
            (Field::Unsigned(n), Limit::Whole(limit)) => i128::from(*n).partial_cmp(limit)?,
            (Field::Text(text) | Field::Formatted(text), Limit::Text(limit)) => text.cmp(&limit.as_str()),
            (Field::Boolean(is), Limit::Text(limit)) => is.to_string().cmp(limit),
            (_, Limit::Whole(limit)) => number(value)?.partial_cmp(&(*limit as f64))?,
            (_, Limit::Float(limit)) => number(value)?.partial_cmp(limit)?,
            _ => return None,
        };
        Some(match self {
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Equal => order.is_eq(),
        })
    }
}

/// The number that a value is.
pub(crate) fn number(value: &Field<'_>) -> Option<f64> {
    match value {
        Field::Signed(n) => Some(*n as f64),
        Field::Unsigned(n) => Some(*n as f64),
        Field::Float(n) => Some(*n),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
