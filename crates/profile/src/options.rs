//! The kind of a profile, and its rate.

use dormouse_sys::heap::Heap;

use dormouse_protocol::profile::ProfileKind;

/// The kind of a profile, and its rate.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The kind of samples.
    pub kind: ProfileKind,
    /// Samples a second of CPU time of each thread ([`ProfileKind::Cpu`]).
    pub hz: u32,
    /// Bytes between two samples, on average ([`ProfileKind::Alloc`]). Each sample costs about a
    /// microsecond, an allocation between them some nanoseconds. While several profiles are taken,
    /// all have the samples of the finest.
    pub bytes: u64,
    /// Whether allocations since the profile began that are still there are told apart
    /// ([`ProfileKind::Alloc`]). Then each free costs some nanoseconds, too.
    pub live: bool,
    /// The allocator of the process ([`ProfileKind::Alloc`]): `dormouse_events::heap()`.
    pub heap: Option<&'static dyn Heap>,
    /// Each how many faults of a thread one is a sample ([`ProfileKind::Faults`]). A sample costs
    /// some microseconds.
    pub faults: u32,
    /// Whether callers are found by the tables that compilers write for exceptions, too, for code
    /// without frame pointers ([`ProfileKind::Cpu`]; feature `unwind`). Then a sample copies up to
    /// 32 KiB of its thread's stack, and the sampler finds the callers in the copy, from which each
    /// stack goes that has more there. It costs a microsecond or two a sample, memory as long as
    /// the tables of all code while such a profile is taken, and 1 MB for each processor, 8 at
    /// most, for good.
    pub unwind: bool,
    /// Whether the profile says when each sample was taken ([`crate::Profile::timeline`]).
    pub timeline: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kind: ProfileKind::Cpu,
            hz: 99,
            bytes: 512 * 1024,
            live: false,
            heap: None,
            faults: 16,
            unwind: false,
            timeline: false,
        }
    }
}

impl Options {
    /// The distance of two samples, in nanoseconds of a thread's CPU time.
    pub(crate) fn period_ns(&self) -> u64 {
        1_000_000_000 / u64::from(self.hz.clamp(1, 10_000))
    }
}
