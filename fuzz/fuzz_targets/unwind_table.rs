//! See `dormouse_fuzz::unwind_table`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dormouse_fuzz::unwind_table::check(bytes));
