//! The share of time for which a watch was armed, over turns and rests, until its end.
//!
//! Time is an argument: nanoseconds of one clock. A reading by another thread may be a little older
//! than the last change; then it gets the state after the change.

/// The armed time of one watch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    begun: u64,
    /// When the watch was over.
    ended: Option<u64>,
    /// Since when it is armed, if it is.
    armed_since: Option<u64>,
    /// In earlier times.
    armed_ns: u64,
}

impl Share {
    /// A watch that is not armed yet.
    pub(crate) fn new(now: u64) -> Self {
        Self { begun: now, ended: None, armed_since: None, armed_ns: 0 }
    }

    /// Armed from now on, or not. A watch that is over stays disarmed.
    pub(crate) fn set_armed(&mut self, now: u64, is_armed: bool) {
        if is_armed == self.is_armed() || self.ended.is_some() {
            return;
        }
        self.armed_ns = self.armed_ns(now);
        self.armed_since = is_armed.then_some(now);
    }

    /// Over: neither time goes on.
    pub(crate) fn end(&mut self, now: u64) {
        self.set_armed(now, false);
        self.ended.get_or_insert(now);
    }

    /// Whether it is armed.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed_since.is_some()
    }

    /// How long it was armed.
    pub(crate) fn armed_ns(&self, now: u64) -> u64 {
        self.armed_ns + self.armed_since.map_or(0, |since| now.saturating_sub(since))
    }

    /// How long it has lived.
    pub(crate) fn wall_ns(&self, now: u64) -> u64 {
        self.ended.unwrap_or(now).saturating_sub(self.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_armed_time_before_the_end_counts() {
        let mut share = Share::new(10);
        let both = |share: &Share, now| (share.armed_ns(now), share.wall_ns(now));
        assert_eq!(both(&share, 15), (0, 5));
        share.set_armed(20, true);
        share.set_armed(25, true);
        assert_eq!(both(&share, 30), (10, 20));
        assert_eq!(both(&share, 19), (0, 9), "a look that is older than the change");
        share.set_armed(30, false);
        share.set_armed(50, true);
        share.end(60);
        share.end(70);
        share.set_armed(80, true);
        assert_eq!(both(&share, 100), (20, 50));
    }
}
