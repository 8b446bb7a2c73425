//! See `dormouse_fuzz::mappings`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dormouse_fuzz::mappings::check(bytes));
