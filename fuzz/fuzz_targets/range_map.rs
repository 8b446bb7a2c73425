//! See `dormouse_fuzz::range_map`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dormouse_fuzz::range_map::check(bytes));
