//! Profiles as files: what they carry, what others read in them, and how two of them differ.

#![cfg(feature = "files")]

mod consumers;
mod differences;
mod files;
mod known;
#[cfg(not(dormouse_fallback))]
mod real;
mod round_trip;
