//! The description of a watch.

use dormouse_sys::perf::Access;

/// The longest name, in bytes.
const LONGEST_NAME: usize = 128;

/// Hits a second that a watch may have unless it says otherwise: a tenth of a processor, at 10 us a
/// hit.
const RATE: u32 = 10_000;

/// The description of a watch.
#[derive(Debug, Clone)]
pub struct WatchSpec {
    pub(crate) addr: usize,
    pub(crate) len: usize,
    pub(crate) access: Access,
    pub(crate) name: String,
    pub(crate) filter: Filter,
    pub(crate) max_hits: u64,
    pub(crate) rate: u32,
    pub(crate) flexible: bool,
    pub(crate) all_slots: bool,
    pub(crate) event: Option<u32>,
}

/// The hits that are reported.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Filter {
    pub(crate) changed: bool,
    pub(crate) equals: Option<u64>,
    pub(crate) mask: Option<u64>,
    pub(crate) group: Option<u32>,
}

impl WatchSpec {
    /// Accesses to `len` bytes at `addr`; for [`Access::Execute`] the instruction there, of
    /// whatever length.
    pub fn new(addr: usize, len: usize, access: Access) -> Self {
        Self {
            addr,
            len,
            access,
            name: format!("{addr:#x}"),
            filter: Filter::default(),
            max_hits: u64::MAX,
            rate: RATE,
            flexible: false,
            all_slots: false,
            event: None,
        }
    }

    /// Gives it a name, of which 128 bytes are kept.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        let end = (0..=name.len().min(LONGEST_NAME)).rev().find(|&end| name.is_char_boundary(end));
        name[..end.unwrap_or(0)].clone_into(&mut self.name);
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The accesses.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Reports only hits that change the value.
    ///
    /// A hit reads the value after the write, and compares it with that of the last hit. If another
    /// thread writes in between, its change may be found by the first of the two, and the second
    /// hit is left out: one is reported for both. So is it with [`Self::equals`].
    #[must_use]
    pub fn changed(mut self) -> Self {
        self.filter.changed = true;
        self
    }

    /// Reports only hits after which the value is this one.
    #[must_use]
    pub fn equals(mut self, value: u64) -> Self {
        self.filter.equals = Some(value);
        self
    }

    /// Looks only at these bits of the value, in [`Self::changed`] and [`Self::equals`].
    #[must_use]
    pub fn masked(mut self, mask: u64) -> Self {
        self.filter.mask = Some(mask);
        self
    }

    /// Reports only hits while a task of this group runs.
    #[must_use]
    pub fn in_group(mut self, group: u32) -> Self {
        self.filter.group = Some(group);
        self
    }

    /// Ends the watch after so many hits that pass the filters.
    #[must_use]
    pub fn max_hits(mut self, hits: u64) -> Self {
        self.max_hits = hits;
        self
    }

    /// Disarms the watch for a while when more hits come than this. The default is 10,000.
    ///
    /// A hit takes its thread some 10 us, so from 100,000 on nothing is left for its work. At no
    /// limit (`u32::MAX`) a watch of bytes that dormouse's handler touches itself hits whenever the
    /// handler returns, until it is dropped: clients of the agent get at most 50,000.
    #[must_use]
    pub fn rate(mut self, hits_per_second: u32) -> Self {
        self.rate = hits_per_second;
        self
    }

    /// Shares the registers that others leave, in turns.
    #[must_use]
    pub fn flexible(mut self) -> Self {
        self.flexible = true;
        self
    }

    /// Takes also the register that is left to debuggers.
    #[must_use]
    pub fn all_slots(mut self) -> Self {
        self.all_slots = true;
        self
    }

    /// Calls the hook of [`crate::on_hit`] with this number at each hit that passes the filters.
    #[must_use]
    pub fn event(mut self, number: u32) -> Self {
        self.event = Some(number);
        self
    }
}
