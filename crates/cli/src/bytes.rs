//! Amounts of memory as users type and read them: `256KiB`, `8MiB`, `1GiB`.

/// Units, with their length in bytes.
const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Parses a whole number with a unit.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    const HOW: &str = "write a whole number and KiB, MiB or GiB, as in 8MiB";
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("{text:?} has no number before its unit; {HOW}"))?;
    let Some(&(_, bytes)) = UNITS.iter().find(|(name, _)| *name == unit.trim()) else {
        return Err(format!("unknown unit {:?}; {HOW}", unit.trim()));
    };
    number.checked_mul(bytes).ok_or_else(|| "it is more than any memory".to_owned())
}

/// In the largest unit that it reaches, with three digits.
pub(crate) fn short(value: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if value < 1024 {
        return format!("{value} B");
    }
    let mut scaled = value as f64 / 1024.0;
    let mut unit = 0;
    // A number that would be rounded up to 1024 is one of the next unit.
    while scaled >= 1023.5 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let places = if scaled < 9.995 { 2 } else { usize::from(scaled < 99.95) };
    format!("{scaled:.places$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_with_their_unit() {
        for (text, bytes) in [("0B", 0), ("256KiB", 262_144), ("8 MiB", 8 << 20), ("1GiB", 1 << 30)] {
            assert_eq!(parse(text), Ok(bytes));
        }
        for text in ["", "8", "MiB", "8MB", "1.5MiB", "99999999999GiB", "-1KiB"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn amounts_are_told_in_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1000, "1000 B"),
            (1_048_575, "1.00 MiB"),
            (1 << 20, "1.00 MiB"),
            (3 << 19, "1.50 MiB"),
            (12_700_000, "12.1 MiB"),
            (52_428_800, "50.0 MiB"),
            (200_000_000, "191 MiB"),
        ] {
            assert_eq!(short(bytes), text);
        }
    }
}
