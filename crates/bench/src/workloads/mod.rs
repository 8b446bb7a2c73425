//! The workloads. Each adds its cases, has them measured, and compares, judges and explains the
//! rows.

pub(crate) mod alloc;
pub(crate) mod breakpoint;
pub(crate) mod clock;
pub(crate) mod groups;
pub(crate) mod keys;
pub(crate) mod maps;
pub(crate) mod metrics;
pub(crate) mod poll;
pub(crate) mod pound;
pub(crate) mod profile;
pub(crate) mod record;
pub(crate) mod switch;
pub(crate) mod teaparty;
pub(crate) mod waits;
