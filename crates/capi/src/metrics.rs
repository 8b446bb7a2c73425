//! Metrics: groups counted for as long as C wants, and rendered for a route of the host's own.
//!
//! # Safety
//!
//! C's promises, by their numbers in `lib.rs`.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{self, NonNull};

use dormouse::Group;
use dormouse::metrics::{Metrics, MetricsFormat, MetricsSpec};

use crate::call::{answer, contained, memory_for, owned};
use crate::error::{Code, Error, Refusal};

/// `struct dormouse_metrics_spec`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Measured {
    pub(crate) size: u32,
    pub(crate) flags: u32,
}

/// `enum dormouse_metrics_format`.
pub(crate) const FORMATS: [(u32, MetricsFormat, &CStr); 3] = [
    (1, MetricsFormat::OpenMetrics, c"application/openmetrics-text; version=1.0.0; charset=utf-8"),
    (2, MetricsFormat::Text, c"text/plain; version=0.0.4; charset=utf-8"),
    (
        3,
        MetricsFormat::Protobuf,
        c"application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
    ),
];

/// `enum dormouse_metrics_flags`.
pub(crate) const WAITS: u32 = 1;

/// `struct dormouse_metrics`: what is counted, and its last rendering.
#[derive(Debug)]
pub(crate) struct CountedMetrics {
    metrics: Metrics,
    rendered: Vec<u8>,
}

/// Room for what a rendering allocates, in keys of `memory_for`: 32 KiB for each group and for the
/// process, for its histograms and their lines.
const EACH: usize = 64;

fn memory() -> Result<(), Refusal> {
    memory_for(EACH * (Group::most() + 1))
}

/// The format of this number.
fn format(number: u32) -> Option<&'static (u32, MetricsFormat, &'static CStr)> {
    FORMATS.iter().find(|(known, ..)| *known == number)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_metrics_begin(
    spec: *const Measured,
    metrics: *mut *mut CountedMetrics,
    error: *mut Error,
) -> Code {
    // SAFETY: promises 1 and 3 for the specification, 1 for the place of the metrics, 3 for the
    // error.
    unsafe {
        answer(error, || {
            let none = Refusal::Invalid("no place for the metrics: the pointer is NULL");
            let place = NonNull::new(metrics).ok_or(none)?;
            let is_known = !spec.is_null()
                && spec.is_aligned()
                && spec.cast::<u32>().read() as usize >= size_of::<Measured>();
            if !is_known {
                return Err(Refusal::Invalid(
                    "no specification: the pointer is NULL, or it was not initialised by DORMOUSE_METRICS_SPEC_INIT",
                ));
            }
            let flags = spec.read().flags;
            if flags & !WAITS != 0 {
                return Err(Refusal::Invalid("a flag is none of enum dormouse_metrics_flags"));
            }
            memory()?;
            let counted = MetricsSpec::new();
            let counted = if flags & WAITS == 0 { counted } else { counted.waits() };
            let metrics = Metrics::start(&counted)?;
            place.write(Box::into_raw(Box::new(CountedMetrics { metrics, rendered: Vec::new() })));
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_metrics_read(
    metrics: *mut CountedMetrics,
    wanted: u32,
    bytes: *mut *const c_void,
    length: *mut usize,
    error: *mut Error,
) -> Code {
    // SAFETY: promise 4 for the metrics, 1 for the places, 3 for the error.
    unsafe {
        answer(error, || {
            let held = metrics.as_mut().ok_or(Refusal::Invalid("no metrics: the pointer is NULL"))?;
            let (Some(bytes), Some(length)) = (NonNull::new(bytes), NonNull::new(length)) else {
                let none = "no place for the bytes or their number: a pointer is NULL";
                return Err(Refusal::Invalid(none));
            };
            let none = Refusal::Invalid("the format is none of enum dormouse_metrics_format");
            let (_, format, _) = format(wanted).ok_or(none)?;
            memory()?;
            held.rendered = held.metrics.exposition().encode(*format);
            bytes.write(held.rendered.as_ptr().cast());
            length.write(held.rendered.len());
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_metrics_accepted(accept: *const c_char) -> u32 {
    contained(FORMATS[1].0, || {
        // SAFETY: promise 5.
        let accept = (!accept.is_null()).then(|| unsafe { CStr::from_ptr(accept) });
        // A header in another encoding requests no known format.
        let accepted = MetricsFormat::accepted(accept.and_then(|accept| accept.to_str().ok()));
        FORMATS.iter().find(|(_, format, _)| *format == accepted).map_or(FORMATS[1].0, |found| found.0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dormouse_metrics_content_type(wanted: u32) -> *const c_char {
    contained(ptr::null(), || format(wanted).map_or(ptr::null(), |(_, _, text)| text.as_ptr()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_metrics_end(metrics: *mut CountedMetrics) {
    // SAFETY: promise 4.
    contained((), || drop(unsafe { owned(metrics) }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_types_are_those_of_the_formats() {
        for (_, format, text) in FORMATS {
            assert_eq!(text.to_str(), Ok(format.content_type()));
        }
    }
}
