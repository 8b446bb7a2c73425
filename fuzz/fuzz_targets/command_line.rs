//! See `dormouse_fuzz::command_line`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dormouse_fuzz::command_line::check(bytes));
