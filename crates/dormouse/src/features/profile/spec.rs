//! The choice of what to profile, and how often.

use dormouse_profile::{Options, ProfileKind};
use dormouse_protocol::ProfileRequest;

/// The choice of what to profile, and how often.
///
/// ```
/// use dormouse::profile::{ProfileKind, ProfileSpec};
///
/// let spec = ProfileSpec::alloc().bytes(64 * 1024).live().groups("GET *,!GET /health");
/// assert_eq!(spec.kind(), ProfileKind::Alloc);
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct ProfileSpec {
    pub(super) options: Options,
    pub(super) groups: Option<String>,
}

impl ProfileSpec {
    /// A profile of that kind, at its default rate, of all groups and of work in no group.
    pub fn new(kind: ProfileKind) -> Self {
        let mut options = Options::default();
        options.kind = kind;
        options.heap = Some(dormouse_events::heap());
        Self { options, groups: None }
    }

    /// A profile of CPU time.
    pub fn cpu() -> Self {
        Self::new(ProfileKind::Cpu)
    }

    /// A profile of allocations, which [`Alloc`](crate::Alloc) sees if it is the global allocator.
    pub fn alloc() -> Self {
        Self::new(ProfileKind::Alloc)
    }

    /// A profile of page faults.
    pub fn faults() -> Self {
        Self::new(ProfileKind::Faults)
    }

    /// A profile of the wall time of tasks: on a CPU, stalled in a poll, runnable, and awaiting
    /// something at a place, which is the stack of the function that waits ([`WallState`]).
    ///
    /// [`WallState`]: crate::profile::WallState
    pub fn wall() -> Self {
        Self::new(ProfileKind::Wall)
    }

    /// Sets the samples per second of CPU time of each thread. The kernel's tick limits them to 100
    /// to 1,000.
    pub fn hz(mut self, hz: u32) -> Self {
        self.options.hz = hz;
        self
    }

    /// Sets the average number of bytes between two samples of allocations.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.options.bytes = bytes;
        self
    }

    /// Reports live allocations separately.
    pub fn live(mut self) -> Self {
        self.options.live = true;
        self
    }

    /// Changes nothing: callers in code without frame pointers are always found.
    pub fn unwind(mut self) -> Self {
        self.options.unwind = true;
        self
    }

    /// Records when each sample was taken.
    pub fn timeline(mut self) -> Self {
        self.options.timeline = true;
        self
    }

    /// Profiles only groups that this list of globs selects, such as `GET /*,!GET /health`,
    /// including groups that are made later. Without it the profile has all groups, and work in no
    /// group.
    pub fn groups(mut self, globs: &str) -> Self {
        self.groups = Some(globs.to_owned());
        self
    }

    /// The kind of samples.
    pub fn kind(&self) -> ProfileKind {
        self.options.kind
    }
}

impl ProfileSpec {
    /// The profile that a client asks for.
    pub(crate) fn of(request: &ProfileRequest) -> Self {
        let ProfileRequest { kind, hz, bytes, live, unwind, timeline, group } = request;
        let mut spec = Self::new(*kind);
        let options = &mut spec.options;
        options.hz = hz.unwrap_or(options.hz);
        options.bytes = bytes.unwrap_or(options.bytes);
        (options.live, options.unwind, options.timeline) = (*live, *unwind, *timeline);
        spec.groups.clone_from(group);
        spec
    }
}
