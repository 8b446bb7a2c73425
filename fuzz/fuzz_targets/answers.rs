//! See `dormouse_fuzz::answers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dormouse_fuzz::answers::check(bytes));
