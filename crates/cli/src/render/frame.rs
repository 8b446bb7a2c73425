//! A function of a stack, with its line.

use serde::Serialize;

/// A function, and a line of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct CodeFrame {
    pub(crate) function: String,
    pub(crate) inlined: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<u32>,
    /// Whether it is the program's own code, where that was asked.
    #[serde(skip)]
    pub(crate) is_own: bool,
}
