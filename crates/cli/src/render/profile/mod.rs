//! Profiles for users and programs: functions by group, what is missing, JSON.

pub(crate) mod change;
mod coverage;
pub(crate) mod document;
pub(crate) mod text;
pub(crate) mod uses;
