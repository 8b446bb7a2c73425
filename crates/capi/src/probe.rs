//! The record of an awake `DORMOUSE_PROBE`.
//!
//! # Safety
//!
//! C's promises, by their numbers in `lib.rs`; the header's macros keep them.
#![allow(unsafe_code)]

use dormouse::Probe;
use dormouse::macros::point;
use dormouse::record::Writer;

use crate::call::contained;

/// `enum dormouse_value_kind`, as numbers: C may pass another one. Any other, as 0, is no value.
pub(crate) mod kind {
    pub(crate) const SIGNED: u32 = 1;
    pub(crate) const UNSIGNED: u32 = 2;
    pub(crate) const FLOAT: u32 = 3;
    pub(crate) const BOOLEAN: u32 = 4;
    pub(crate) const TEXT: u32 = 5;
}

/// `struct dormouse_value`.
#[repr(C)]
pub(crate) struct Value {
    pub(crate) kind: u32,
    pub(crate) reserved: u32,
    pub(crate) of: Payload,
}

/// The value of a [`kind`].
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Payload {
    signed: i64,
    unsigned: u64,
    float: f64,
    text: Text,
}

/// `struct dormouse_text`, of any lifetime.
#[derive(Clone, Copy)]
#[repr(C)]
struct Text {
    start: *const u8,
    length: usize,
}

impl Value {
    /// # Safety
    ///
    /// The payload must be that of the kind, and text must have the given length.
    unsafe fn put(&self, into: &mut Writer) {
        // SAFETY: the kind determines the payload, by this function's contract; every bit pattern
        // is a valid number.
        unsafe {
            match self.kind {
                kind::SIGNED => into.signed(self.of.signed),
                kind::UNSIGNED => into.unsigned(self.of.unsigned),
                kind::FLOAT => into.float(self.of.float),
                kind::BOOLEAN => into.boolean(self.of.unsigned != 0),
                kind::TEXT if !self.of.text.start.is_null() => {
                    into.lossy(std::slice::from_raw_parts(self.of.text.start, self.of.text.length));
                }
                _ => into.nothing(),
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_record(probe: *const Probe, values: *const Value, count: usize) {
    // SAFETY: promise 2 for the probe, whose size is read first; 5 for the `count` values.
    contained((), || unsafe {
        if probe.is_null()
            || !probe.is_aligned()
            || (probe.cast::<u32>().read() as usize) < size_of::<Probe>()
        {
            return;
        }
        let values = if values.is_null() { &[] } else { std::slice::from_raw_parts(values, count) };
        point(&*probe, |writer| values.iter().for_each(|value| value.put(writer)));
    });
}
