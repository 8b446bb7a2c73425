//! See `dormouse_fuzz::object_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dormouse_fuzz::object_file::check(bytes));
