//! Numbers, kept as exactly as they are known.

/// A number, in the unit of its family.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetricValue {
    /// A number of things or bytes.
    Count(u64),
    /// Nanoseconds, in a family of seconds.
    Nanoseconds(u64),
    /// Any number, in the family's unit.
    Number(f64),
}

impl MetricValue {
    /// The number in the family's unit.
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Count(n) => n as f64,
            Self::Nanoseconds(ns) => ns as f64 / 1e9,
            Self::Number(number) => number,
        }
    }
}
