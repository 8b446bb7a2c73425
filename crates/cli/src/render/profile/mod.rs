//! Profiles as text: functions by group, and what is missing.

pub(crate) mod coverage;
pub(crate) mod text;
pub(crate) mod uses;
