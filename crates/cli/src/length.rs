//! Durations in requests: `30s`, on the command line as over HTTP.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use crate::duration::parse_positive;
use crate::text::by_text;

/// A duration above zero, and of at least `LEAST_MS` milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Length<const LEAST_MS: u64 = 0>(pub(crate) Duration);

impl<const LEAST_MS: u64> FromStr for Length<LEAST_MS> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let length = parse_positive(text)?;
        if length < Duration::from_millis(LEAST_MS) {
            return Err(format!("it must be at least {LEAST_MS}ms"));
        }
        Ok(Self(length))
    }
}

impl<'de, const LEAST_MS: u64> Deserialize<'de> for Length<LEAST_MS> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        by_text(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_below_the_least_is_refused() {
        assert_eq!("50ms".parse(), Ok(Length::<50>(Duration::from_millis(50))));
        assert_eq!("49ms".parse::<Length<50>>().unwrap_err(), "it must be at least 50ms");
        assert!("0s".parse::<Length>().is_err());
    }
}
