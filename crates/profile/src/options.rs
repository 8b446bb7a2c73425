//! The kind of a profile, and its rate.

use dormouse_sys::heap::Heap;

use dormouse_protocol::profile::ProfileKind;

/// The kind of a profile, and its rate.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The kind of profile.
    pub kind: ProfileKind,
    /// Samples per second of CPU time of each thread ([`ProfileKind::Cpu`]).
    pub hz: u32,
    /// Average number of bytes between two samples ([`ProfileKind::Alloc`]). Each sample costs
    /// about a microsecond, an allocation between them some nanoseconds. While several profiles are
    /// taken, all get the samples of the finest.
    pub bytes: u64,
    /// Whether allocations since the profile began that are still live are reported separately
    /// ([`ProfileKind::Alloc`]). Then each free costs some nanoseconds, too.
    pub live: bool,
    /// The allocator of the process ([`ProfileKind::Alloc`]): `dormouse_events::heap()`.
    pub heap: Option<&'static dyn Heap>,
    /// One in this many faults of a thread is a sample ([`ProfileKind::Faults`]). A sample costs
    /// some microseconds.
    pub faults: u32,
    /// Changes nothing: callers in code without frame pointers are always found, by the unwind
    /// tables that compilers write for exceptions.
    pub unwind: bool,
    /// Whether the profile records when each sample was taken ([`crate::Profile::timeline`]).
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
