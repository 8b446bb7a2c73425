//! Stands in for the unwinder where dormouse is built without its feature `unwind`.

use super::Reach;
use crate::Error;

/// None is ever made.
#[derive(Debug)]
pub(crate) enum Tables {}

impl Tables {
    pub(crate) fn of(_: u32) -> Result<Self, Error> {
        let why = "callers are found by tables where dormouse is built with its feature `unwind`";
        Err(Error::Unavailable(why.into()))
    }

    pub(crate) fn is_code(&self, _: u64) -> bool {
        match *self {}
    }

    pub(crate) fn follow(&mut self, _: [u64; 4], _: &[u8]) -> (&[u64], Reach) {
        match *self {}
    }
}
