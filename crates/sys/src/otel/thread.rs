//! The context of a thread in the standard's form: text of one attribute, and no span.
//!
//! A context is complete before a thread shows it, and never changes. So readers, who read a thread
//! while it is stopped, need no more than the address.
//!
//! # References
//!
//! OTEP 4947, *Thread-Local Context Record*.

/// Room for an attribute's value, in bytes.
pub const MAX_VALUE: usize = 128;

/// The bytes of the context. Values of up to 34 bytes fit into its first cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ThreadContext {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    valid: u8,
    trace_flags: u8,
    attrs_data_size: u16,
    /// The index of the attribute's key in the process context.
    key: u8,
    length: u8,
    value: [u8; MAX_VALUE],
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(ThreadContext, span_id) == 16 && offset_of!(ThreadContext, valid) == 24);
    assert!(offset_of!(ThreadContext, trace_flags) == 25 && offset_of!(ThreadContext, attrs_data_size) == 26);
    assert!(offset_of!(ThreadContext, key) == 28 && offset_of!(ThreadContext, value) == 30);
    assert!(MAX_VALUE <= u8::MAX as usize);
};

impl ThreadContext {
    /// A context without a span, and with one attribute: the one whose key has index 0.
    pub fn of(value: &str) -> Self {
        let fits = MAX_VALUE.min(value.len());
        let whole = (0..=fits).rev().find(|&at| value.is_char_boundary(at)).unwrap_or(0);
        let mut bytes = [0; MAX_VALUE];
        bytes[..whole].copy_from_slice(&value.as_bytes()[..whole]);
        Self {
            trace_id: [0; 16],
            span_id: [0; 8],
            valid: 1,
            trace_flags: 0,
            attrs_data_size: 2 + whole as u16,
            key: 0,
            length: whole as u8,
            value: bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_cut_between_characters() {
        let context = ThreadContext::of("GET /menu");
        assert_eq!((context.valid, context.attrs_data_size, context.length), (1, 11, 9));
        assert_eq!(&context.value[..10], b"GET /menu\0");
        let context = ThreadContext::of(&format!("a{}", "ä".repeat(MAX_VALUE)));
        assert_eq!((context.attrs_data_size, context.length), (129, 127));
    }
}
