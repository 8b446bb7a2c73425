//! Places that are recorded, with a lookout that learns the functions in them.

use std::io;

use dormouse_sys::process::identity;
use dormouse_waits::Placing;

use crate::lookout::{LOOKOUT, Watched};

/// Places are recorded as long as it lives. The lookout learns meanwhile.
#[derive(Debug)]
pub(crate) struct Placed {
    // In this order: the lookout ends when places are requested no longer.
    _placing: Placing,
    _lookout: Option<LookoutNeed>,
}

/// There is a lookout.
#[derive(Debug)]
struct LookoutNeed {
    process: u64,
}

impl Placed {
    /// Begins to record places. Without the lookout nothing is learned.
    ///
    /// # Errors
    ///
    /// Those of [`Placing::start`].
    pub(crate) fn start() -> io::Result<Self> {
        let placing = Placing::start()?;
        let begun = LOOKOUT.begin_later(|_| ());
        let lookout = begun.is_ok().then(|| LookoutNeed { process: identity::id() });
        Ok(Self { _placing: placing, _lookout: lookout })
    }
}

impl Drop for LookoutNeed {
    fn drop(&mut self) {
        // A child of a fork has no lookout.
        if self.process == identity::id() {
            LOOKOUT.end(Watched::NOTHING);
        }
    }
}
