//! See `dormouse_fuzz::profile`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dormouse_fuzz::profile::check(bytes));
