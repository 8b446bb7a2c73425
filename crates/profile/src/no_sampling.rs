//! Stands in for the samplers where there are none: in the checkers' builds, and where sites are
//! not patched on purpose.

use dormouse_sys::Capability;

use crate::thread_stack::{NoStack, ThreadStack};
use crate::{Error, Options, Profile};

/// The reason.
const WHY: &str = "this build takes no profiles";

pub(crate) fn capability() -> Capability {
    Capability::unavailable("profile.cpu", WHY)
}

pub(crate) fn spent_ns() -> u64 {
    0
}

/// None is ever made.
#[derive(Debug)]
pub(crate) enum Session {}

impl Session {
    pub(crate) fn start(_: &Options) -> Result<Self, Error> {
        Err(Error::Unavailable(WHY.into()))
    }

    pub(crate) fn read(&self) -> Result<Profile, Error> {
        match *self {}
    }
}

/// None is ever made.
#[derive(Debug)]
pub(crate) enum StackSource {}

impl StackSource {
    pub(crate) fn new() -> Result<Self, NoStack> {
        Err(NoStack::Refused("this build reads no stacks of threads".into()))
    }

    pub(crate) fn read(&mut self, _: u32, _: bool) -> Result<ThreadStack, NoStack> {
        match *self {}
    }
}
