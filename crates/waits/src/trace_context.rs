//! The trace to which work belongs, and the span in it, in the form of W3C's Trace Context.
//!
//! # References
//!
//! W3C, Trace Context, level 2: `traceparent`.

use std::fmt;

use dormouse_encode::hex::{IdDigits, id};

/// The least length of a `traceparent`: `00-<32 digits>-<16 digits>-<2 digits>`.
const LENGTH: usize = 55;

/// The flag of a trace that is kept somewhere.
const SAMPLED: u8 = 1;

/// A trace, and a span in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace_id: [u8; 16],
    /// All zeros: not known.
    span_id: [u8; 8],
    is_sampled: bool,
}

impl TraceContext {
    /// A trace that is sampled; `None` if `trace_id` is all zeros, which is invalid. A span id of
    /// zeros means that the span is unknown.
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8]) -> Option<Self> {
        (trace_id != [0; 16]).then_some(Self { trace_id, span_id, is_sampled: true })
    }

    /// The same trace, sampled or not.
    #[must_use]
    pub fn sampled(self, is_sampled: bool) -> Self {
        Self { is_sampled, ..self }
    }

    /// Parses the value of a `traceparent` header; `None` if the standard requires that a receiver
    /// ignores it.
    ///
    /// ```
    /// # use dormouse_waits::TraceContext;
    /// let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    /// let caller = TraceContext::parse(header.as_bytes()).unwrap();
    /// assert!(caller.is_sampled());
    /// assert_eq!(caller.to_string(), header);
    /// ```
    pub fn parse(traceparent: &[u8]) -> Option<Self> {
        let (known, further) = traceparent.split_at_checked(LENGTH)?;
        // The standard allows no digits from `A` to `F`.
        let [version] = id(&known[..2])?;
        // Later versions may have more behind a further dash; version 255 does not exist.
        let is_complete = match version {
            0 => further.is_empty(),
            0xff => false,
            _ => further.is_empty() || further[0] == b'-',
        };
        if !is_complete || [known[2], known[35], known[52]] != *b"---" {
            return None;
        }
        let (trace_id, span_id) = (id(&known[3..35])?, id(&known[36..52])?);
        let [flags] = id(&known[53..])?;
        if span_id == [0; 8] {
            return None;
        }
        Some(Self::new(trace_id, span_id)?.sampled(flags & SAMPLED != 0))
    }

    /// The id of the trace.
    pub fn trace_id(self) -> [u8; 16] {
        self.trace_id
    }

    /// The id of the span; `None` if it is not known.
    pub fn span_id(self) -> Option<[u8; 8]> {
        (self.span_id != [0; 8]).then_some(self.span_id)
    }

    /// Whether the trace is kept somewhere, according to its first service.
    pub fn is_sampled(self) -> bool {
        self.is_sampled
    }

    /// The 32 digits of the trace's id, as backends and logs show them.
    pub fn trace_digits(self) -> String {
        IdDigits::of(self.trace_id).as_str().to_owned()
    }

    /// The 16 digits of the span's id, if it is known.
    pub fn span_digits(self) -> Option<String> {
        self.span_id().map(|id| IdDigits::of(id).as_str().to_owned())
    }

    /// The two halves of the trace's id, and the span's.
    #[inline]
    pub(crate) fn words(self) -> [u64; 3] {
        let trace = u128::from_be_bytes(self.trace_id);
        [(trace >> 64) as u64, trace as u64, u64::from_be_bytes(self.span_id)]
    }

    /// From [`TraceContext::words`]; `None` if they are of no trace.
    #[inline]
    pub(crate) fn from_words([high, low, span]: [u64; 3], is_sampled: bool) -> Option<Self> {
        let trace_id = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
        Some(Self::new(trace_id, span.to_be_bytes())?.sampled(is_sampled))
    }
}

/// In the form of a `traceparent` header.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = if self.is_sampled { SAMPLED } else { 0 };
        let (trace, span) = (IdDigits::of(self.trace_id), IdDigits::of(self.span_id));
        write!(f, "00-{}-{}-{flags:02x}", trace.as_str(), span.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_header_comes_back_from_its_context() {
        let of = TraceContext::parse(HEADER.as_bytes()).unwrap();
        assert_eq!(of.to_string(), HEADER);
        assert_eq!(of.trace_digits(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!((of.span_digits().as_deref(), of.is_sampled()), (Some("00f067aa0ba902b7"), true));
        assert_eq!(TraceContext::from_words(of.words(), true), Some(of));
        // Flags that are not known are of later levels.
        let other = TraceContext::parse(HEADER.replace("-01", "-fe").as_bytes()).unwrap();
        assert_eq!(other, of.sampled(false));
    }

    #[test]
    fn headers_that_break_the_standard_are_none() {
        let none = |header: &str| TraceContext::parse(header.as_bytes()).is_none();
        for wrong in [
            "",
            "00",
            &HEADER[1..],
            &HEADER[..54],
            &format!("{HEADER}-00"),
            &HEADER.to_uppercase(),
            &HEADER.replacen("00", "ff", 1),
            &HEADER.replace("00f067aa0ba902b7", "0000000000000000"),
            &HEADER.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &HEADER.replacen('-', "_", 2),
            &HEADER.replace("-01", "-0g"),
            &HEADER.replace("4bf9", "4bfä"),
        ] {
            assert!(none(wrong), "{wrong}");
        }
        // A later version may have more fields.
        assert!(!none(&HEADER.replacen("00", "01", 1)));
        assert!(!none(&format!("{}-what-ever", HEADER.replacen("00", "cc", 1))));
        assert!(none(&format!("{}.more", HEADER.replacen("00", "cc", 1))));
    }

    #[test]
    fn a_trace_of_zeros_is_none() {
        assert_eq!(TraceContext::new([0; 16], [1; 8]), None);
        assert_eq!(TraceContext::from_words([0, 0, 5], true), None);
        let of = TraceContext::new([1; 16], [0; 8]).unwrap();
        assert_eq!((of.span_id(), of.span_digits()), (None, None));
    }
}
