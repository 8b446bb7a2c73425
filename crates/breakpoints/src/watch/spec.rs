//! The description of a watch.

use dormouse_sys::perf::Access;

/// The longest name, in bytes.
const LONGEST_NAME: usize = 128;

/// The default limit of hits per second: a tenth of a processor, at 10 us for each hit.
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
    /// Describes a watch of accesses to `len` bytes at `addr`. With [`Access::Execute`] it watches
    /// the instruction at `addr`, and `len` does not matter.
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

    /// Gives the watch a name, of which 128 bytes are kept.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        let end = (0..=name.len().min(LONGEST_NAME)).rev().find(|&end| name.is_char_boundary(end));
        name[..end.unwrap_or(0)].clone_into(&mut self.name);
        self
    }

    /// The name of the watch.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The accesses that count as hits.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Reports only hits that change the value.
    ///
    /// A hit reads the value after the write, and compares it with that of the last hit. If another
    /// thread writes in between, its change may be seen by the first of the two hits, and the
    /// second is left out: one is reported for both. The same holds for [`Self::equals`].
    #[must_use]
    pub fn changed(mut self) -> Self {
        self.filter.changed = true;
        self
    }

    /// Reports only hits after which the value is this one. At most 8 bytes have a value: for a
    /// longer range the watch is refused.
    #[must_use]
    pub fn equals(mut self, value: u64) -> Self {
        self.filter.equals = Some(value);
        self
    }

    /// Compares only these bits of the value, in [`Self::changed`] and [`Self::equals`]. Refused as
    /// the latter is.
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

    /// Ends the watch after this many hits that pass the filters.
    #[must_use]
    pub fn max_hits(mut self, hits: u64) -> Self {
        self.max_hits = hits;
        self
    }

    /// Disarms the watch for a while when there are more hits per second than this. The default is
    /// 10,000.
    ///
    /// A hit takes some 10 us of its thread, so from 100,000 on no time is left for its work.
    /// A watch of bytes that dormouse's handler touches itself hits whenever the handler returns,
    /// until it rests. If the limit is more than the handler can make (`u32::MAX` in any case), the
    /// thread gets no further until the watch is dropped: clients of the agent get at most 50,000.
    #[must_use]
    pub fn rate(mut self, hits_per_second: u32) -> Self {
        self.rate = hits_per_second;
        self
    }

    /// Lets the watch take turns with other watches in the registers that pinned ones leave.
    #[must_use]
    pub fn flexible(mut self) -> Self {
        self.flexible = true;
        self
    }

    /// Lets the watch also take the register that is reserved for debuggers.
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
