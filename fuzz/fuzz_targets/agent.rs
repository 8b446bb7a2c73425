//! See `dormouse_fuzz::agent`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dormouse_fuzz::agent::check(bytes));
