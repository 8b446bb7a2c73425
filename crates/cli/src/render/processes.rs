//! Processes with dormouse in them, as JSON.

use dormouse_protocol::Hello;
use serde::Serialize;

use crate::exit::Report;

/// A list of them.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Listing<'a> {
    pub(crate) processes: Vec<ProcessRow<'a>>,
}

/// A process, and what its agent reports about itself.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ProcessRow<'a> {
    pub(crate) pid: u32,
    /// When it began, in clock ticks after boot: a later process may have the same `pid`.
    pub(crate) start_ticks: u64,
    pub(crate) name: &'a str,
    pub(crate) uid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) agent: Option<&'a Hello>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<Refused<'a>>,
}

/// Why an agent refuses.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Refused<'a> {
    pub(crate) kind: &'static str,
    pub(crate) message: &'a str,
}

impl<'a> Refused<'a> {
    /// For that reason.
    pub(crate) fn of(report: &'a Report) -> Refused<'a> {
        Refused { kind: report.exit.word(), message: &report.message }
    }
}
