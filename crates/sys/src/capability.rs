//! One line of the report on the capabilities of this process.

use std::borrow::Cow;

/// The verdict on a capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// As it should be.
    Ok,
    /// Works, with a limit that the detail names.
    Limited,
    /// Does not work here.
    Unavailable,
}

/// A capability of this process: the verdict, the observation, and the one setting that would
/// change it.
#[derive(Debug, Clone)]
pub struct Capability {
    /// Its name, such as `keys.write`.
    pub name: &'static str,
    /// The verdict.
    pub state: State,
    /// The observation.
    pub detail: Cow<'static, str>,
    /// The one setting to change, where there is one.
    pub fix: Option<Cow<'static, str>>,
}

impl Capability {
    /// Something that works.
    pub fn ok(name: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { name, state: State::Ok, detail: detail.into(), fix: None }
    }

    /// Something that works with a limit.
    pub fn limited(name: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { name, state: State::Limited, detail: detail.into(), fix: None }
    }

    /// Something that does not work here.
    pub fn unavailable(name: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { name, state: State::Unavailable, detail: detail.into(), fix: None }
    }

    /// Adds the setting that would change the verdict.
    #[must_use]
    pub fn with_fix(mut self, fix: impl Into<Cow<'static, str>>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}
