//! See `dormouse_fuzz::trace_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dormouse_fuzz::trace_file::check(bytes));
