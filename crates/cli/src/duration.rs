//! Durations as users type them: `30s`, `500ms`, `2m`, `1h30m`.
//!
//! A number without a unit is refused: with `--for 30`, meant as minutes but read as seconds or
//! hours, probes would be on in production for the wrong time.

use std::time::Duration;

use dormouse_protocol::LONGEST_MS;

/// Units, with their length in nanoseconds.
const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// The units, for messages.
const HOW: &str = "write a number and ms, s, m, h or d, as in 500ms, 30s or 1h30m";

const TOO_LONG: &str = "it is longer than 584 years";

/// Parses one or more numbers with units, from the largest unit down; a fraction is allowed.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(format!("it is empty; {HOW}"));
    }
    if rest.starts_with('-') {
        return Err(format!("it is negative; {HOW}"));
    }
    let (mut total, mut last) = (0_u64, u64::MAX);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(letters);
        let unit = unit.trim();
        if number.is_empty() {
            return Err(format!("no number before {unit:?}; {HOW}"));
        }
        if unit.is_empty() {
            return Err(format!("no unit after {number}; {HOW}"));
        }
        let Some(&(_, ns)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("unknown unit {unit:?}; {HOW}"));
        };
        if ns >= last {
            return Err(format!("{unit:?} stands after a unit that is not larger; {HOW}"));
        }
        last = ns;
        total = total.checked_add(nanoseconds(number, ns)?).ok_or(TOO_LONG)?;
        rest = next;
    }
    Ok(Duration::from_nanos(total))
}

/// Does what [`parse`] does, and refuses zero.
pub(crate) fn parse_positive(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("it must be more than nothing".into()),
        length => Ok(length),
    }
}

/// Does what [`parse_positive`] does, and refuses a time for which a service would not hold keys.
pub(crate) fn parse_hold(text: &str) -> Result<Duration, String> {
    let length = parse_positive(text)?;
    if milliseconds(length) > LONGEST_MS {
        return Err(format!("it is longer than {}, which is the longest", short(LONGEST_MS * 1_000_000)));
    }
    Ok(length)
}

/// In milliseconds, rounded up: never shorter than asked for, and never nothing.
pub(crate) fn milliseconds(length: Duration) -> u64 {
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// `number * unit` in integers, so that no digit is lost.
fn nanoseconds(number: &str, unit: u64) -> Result<u64, String> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err(format!("{number} is not a number; {HOW}"));
    }
    let whole = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(unit)).ok_or(TOO_LONG)?;
    // Of at most 18 digits, which are finer than a nanosecond of the longest unit.
    let fraction = &fraction[..fraction.len().min(18)];
    let digits: u128 = fraction.parse().map_err(|_| format!("{number} is not a number; {HOW}"))?;
    let part = digits * u128::from(unit) / 10_u128.pow(fraction.len() as u32);
    Ok(whole.checked_add(part as u64).ok_or(TOO_LONG)?)
}

/// A duration with three digits and the unit that fits, for people.
pub(crate) fn short(ns: u64) -> String {
    let in_unit = |unit: u64, name: &str| {
        let n = ns as f64 / unit as f64;
        let places = if n < 10.0 { 2 } else { usize::from(n < 100.0) };
        format!("{n:.places$} {name}")
    };
    // A number that would be rounded up to a thousand is one of the next unit.
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..999_500 => in_unit(1_000, "us"),
        999_500..999_500_000 => in_unit(1_000_000, "ms"),
        999_500_000..59_950_000_000 => in_unit(1_000_000_000, "s"),
        _ => {
            let seconds = ns.saturating_add(500_000_000) / 1_000_000_000;
            let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
            match (days, hours) {
                (0, 0) => format!("{}m{:02}s", seconds / 60, seconds % 60),
                (0, _) => format!("{hours}h{:02}m", seconds / 60 % 60),
                _ => format!("{days}d{hours:02}h"),
            }
        }
    }
}

/// The time of day of a moment since 1970: `HH:MM:SS.nanoseconds`, UTC.
pub(crate) fn clock_time(unix_ns: u64) -> String {
    let of_day = unix_ns % 86_400_000_000_000;
    let (s, ns) = (of_day / 1_000_000_000, of_day % 1_000_000_000);
    format!("{:02}:{:02}:{:02}.{ns:09}", s / 3600, s / 60 % 60, s % 60)
}

/// A duration with three digits and the unit that fits, for people.
pub(crate) fn short_of(length: Duration) -> String {
    short(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_type_is_understood() {
        for (text, ms) in [
            ("30s", 30_000),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1_500),
            ("0.25m", 15_000),
            ("1d", 86_400_000),
            (" 10 s ", 10_000),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(parse("1ns"), Ok(Duration::from_nanos(1)));
        assert_eq!(parse("1.000000001s"), Ok(Duration::from_nanos(1_000_000_001)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("", "empty"),
            ("30", "no unit after 30"),
            ("s", "no number before \"s\""),
            ("30x", "unknown unit \"x\""),
            ("5 minutes", "unknown unit \"minutes\""),
            ("1..5s", "1..5 is not a number"),
            (".5s", ".5 is not a number"),
            ("1s1s", "\"s\" stands after"),
            ("1s1h", "\"h\" stands after"),
            ("-1s", "negative"),
            ("1e3s", "unknown unit \"e\""),
            ("99999999999999999999d", "longer"),
            ("213504d", "longer"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn nothing_is_refused_where_a_length_is_needed() {
        assert!(parse_positive("0ms").is_err());
        assert_eq!(parse_positive("1ms"), Ok(Duration::from_millis(1)));
    }

    #[test]
    fn keys_are_held_for_a_month_at_most() {
        assert_eq!(parse_hold("31d"), Ok(Duration::from_secs(31 * 86_400)));
        assert!(parse_hold("31d1ns").expect_err("too long").contains("longer than 31d00h"));
        assert!(parse_hold("0s").is_err());
        assert_eq!(milliseconds(Duration::from_nanos(1)), 1, "never nothing");
        assert_eq!(milliseconds(Duration::from_micros(1001)), 2, "never shorter than asked for");
    }

    #[test]
    fn lengths_are_shown_with_the_unit_that_fits() {
        for (ns, text) in [
            (7, "7 ns"),
            (1_234, "1.23 us"),
            (45_600, "45.6 us"),
            (999_000, "999 us"),
            (999_900, "1.00 ms"),
            (999_999_999, "1.00 s"),
            (59_999_000_000, "1m00s"),
            (5_000_000, "5.00 ms"),
            (1_500_000_000, "1.50 s"),
            (61_000_000_000, "1m01s"),
            (3_723_000_000_000, "1h02m"),
            (90_000_000_000_000, "1d01h"),
        ] {
            assert_eq!(short(ns), text);
        }
    }
}
