//! See `dormouse_fuzz::recorded_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dormouse_fuzz::recorded_file::check(bytes));
