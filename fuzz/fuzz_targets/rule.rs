//! See `dormouse_fuzz::rule`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dormouse_fuzz::rule::check(bytes));
