//! See `dormouse_fuzz::network`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dormouse_fuzz::network::check(bytes));
