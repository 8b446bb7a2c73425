//! Lengths of time as rules and objectives write them: a whole number and `us`, `ms`, `s`, `m` or
//! `h`.

use std::fmt;
use std::time::Duration;

/// The longest length that is read.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The units, the longest first, in microseconds.
const UNITS: [(&str, u64); 5] =
    [("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

/// The form of a length, for messages.
pub const LENGTH_FORM: &str = "a whole number and us, ms, s, m or h";

/// The length of time in a text.
///
/// ```
/// use std::time::Duration;
///
/// use dormouse_protocol::{LengthText, parse_length};
///
/// assert_eq!(parse_length("250ms"), Ok(Duration::from_millis(250)));
/// assert_eq!(LengthText(Duration::from_millis(250)).to_string(), "250ms");
/// assert_eq!(parse_length("5"), Err("the time `5` has no unit".to_owned()));
/// ```
///
/// # Errors
///
/// The fault of the text; [`LENGTH_FORM`] is what to write instead.
pub fn parse_length(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!("`{text}` is no time"));
    }
    let Some((_, us)) = UNITS.into_iter().find(|(name, _)| *name == unit) else {
        let fault = if unit.is_empty() { "no unit".to_owned() } else { format!("an unknown unit, `{unit}`") };
        return Err(format!("the time `{text}` has {fault}"));
    };
    let length = number.parse::<u64>().ok().and_then(|n| n.checked_mul(us)).map(Duration::from_micros);
    length
        .filter(|length| !length.is_zero() && *length <= LONGEST)
        .ok_or_else(|| format!("the time {text} is 0, or longer than 24h"))
}

/// Writes a length as [`parse_length`] reads it, in the longest unit of which it is a multiple.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LengthText(pub Duration);

impl fmt::Display for LengthText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX);
        let (unit, us) = UNITS.into_iter().find(|(_, us)| all.is_multiple_of(*us)).unwrap_or(("us", 1));
        write!(f, "{}{unit}", all / us)
    }
}
