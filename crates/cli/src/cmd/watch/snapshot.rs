//! A snapshot of a watch.

use dormouse_breakpoints::UserStack;
use dormouse_protocol::WatchRow;
use serde::Serialize;

/// The result of a watch so far.
#[derive(Debug)]
pub(crate) struct WatchSnapshot {
    pub(crate) row: WatchRow,
    /// The reason why hits are counted only.
    pub(crate) counts_only: Option<String>,
    /// Hits that were to be printed one by one, and were not: there was no room for them.
    pub(crate) unprinted: u64,
    /// Copied stacks of places that are new since the previous snapshot, each with the place's
    /// address.
    pub(crate) copied: Vec<(u64, UserStack)>,
    /// Why there will be no further snapshot; `None` if there will be one.
    pub(crate) end: Option<End>,
    /// Whether hits are left out: a filter was asked for, or a register may watch more than that.
    pub(crate) is_filtered: bool,
    pub(crate) is_outside: bool,
    /// Whether the hits that `--max` limits have been reached.
    pub(crate) is_at_max: bool,
}

impl WatchSnapshot {
    /// Whether there was a hit that the filters let pass. One that was counted and never examined
    /// may be one; one whose signal is on its way is none yet.
    pub(crate) fn is_hit(&self) -> bool {
        let is_each_one = !self.is_filtered || self.counts_only.is_some();
        self.row.passed > 0 || self.row.lost > 0 || is_each_one && self.row.hits > 0
    }

    /// Why values could not be read, and what to change.
    pub(crate) fn unread_why(&self) -> &'static str {
        match (self.is_outside, self.end) {
            (true, Some(_)) => "they came just before the end",
            (true, None) => "not mapped any more, or not to be read without CAP_SYS_PTRACE",
            (false, _) => "their threads pass a filter (seccomp), or it is not mapped any more",
        }
    }
}

/// The end of a watch that was not asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum End {
    /// The process has ended.
    Exit,
    /// It executes another program.
    Exec,
    /// Its agent has closed the connection, and the process lives: it executes another program, has
    /// unloaded dormouse, or had no memory for this client.
    HungUp,
}
