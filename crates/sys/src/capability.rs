//! One line of the report on what dormouse can do in this process.

use std::borrow::Cow;

/// Whether a capability is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It works without limits.
    Ok,
    /// It works, with a limit that the detail names.
    Limited,
    /// It does not work here.
    Unavailable,
}

/// A capability of this process: whether it is available, what was observed, and the one setting
/// that would change it.
#[derive(Debug, Clone)]
pub struct Capability {
    /// The capability's name, such as `keys.write`.
    pub name: &'static str,
    /// Whether the capability is available.
    pub state: State,
    /// The observation, in words.
    pub detail: Cow<'static, str>,
    /// The one setting to change, if there is one.
    pub fix: Option<Cow<'static, str>>,
}

impl Capability {
    /// A capability that works.
    pub fn ok(name: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { name, state: State::Ok, detail: detail.into(), fix: None }
    }

    /// A capability that works with a limit.
    pub fn limited(name: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { name, state: State::Limited, detail: detail.into(), fix: None }
    }

    /// A capability that does not work here.
    pub fn unavailable(name: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { name, state: State::Unavailable, detail: detail.into(), fix: None }
    }

    /// Adds the setting to change.
    #[must_use]
    pub fn with_fix(mut self, fix: impl Into<Cow<'static, str>>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}
