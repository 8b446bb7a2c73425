//! The names of addresses.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::profile::{Profile, Sample};

/// Stands for the stack of work of which there is an account and no sample.
pub const NO_SAMPLE: &str = "(no sample)";

/// Stands for the stack of samples whose stack is not known.
pub const STACK_UNKNOWN: &str = "(stack unknown)";

/// A function at an address. Where functions are inlined there are several at one address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceFrame {
    /// Its name, demangled.
    pub function: String,
    /// The file of its source; empty if nobody knows.
    pub file: String,
    /// The line in it; 0 if nobody knows.
    pub line: u32,
    /// Whether it is inlined into the one that follows.
    pub inlined: bool,
}

/// A frame of a sample, with a name in any case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named<'a> {
    /// The function; or the file and the offset in it (`libfoo.so+0x1234`), which is the same in
    /// every run; or the address; or [`NO_SAMPLE`], [`STACK_UNKNOWN`].
    pub name: Cow<'a, str>,
    /// The address; 0 if no stack is known.
    pub address: u64,
    /// The function, if anything is known of it.
    pub frame: Option<&'a SourceFrame>,
}

/// The state of a task while time passes: the outermost frame of each stack of a wall profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WallState {
    /// In a poll, on a CPU. The stacks are samples.
    OnCpu,
    /// In a poll, and not on a CPU: the kernel runs another thread, or the poll blocks. There are
    /// no stacks.
    Stalled,
    /// Woken, and not polled yet. There are no stacks.
    Runnable,
    /// Neither. The stacks are those at which leaves took wakers; the time is counted.
    Awaiting,
}

impl WallState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::OnCpu, Self::Stalled, Self::Runnable, Self::Awaiting];

    /// The address that stands for it, at which no code can be.
    pub fn address(self) -> u64 {
        u64::MAX - 15 + self as u64
    }

    /// The state for which an address stands.
    pub fn at(address: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.address() == address)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::OnCpu => "on CPU",
            Self::Stalled => "stalled",
            Self::Runnable => "runnable",
            Self::Awaiting => "awaiting",
        }
    }
}

/// Functions by address, for the encoders. Each [`WallState`] has its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbols {
    by_address: HashMap<u64, Vec<SourceFrame>>,
}

impl Default for Symbols {
    fn default() -> Self {
        let frame =
            |state: WallState| SourceFrame { function: state.name().into(), ..SourceFrame::default() };
        Self { by_address: WallState::ALL.map(|state| (state.address(), vec![frame(state)])).into() }
    }
}

impl Symbols {
    /// Names an address: the innermost function first.
    pub fn insert(&mut self, address: u64, frames: Vec<SourceFrame>) {
        self.by_address.insert(address, frames);
    }

    /// The functions at an address, the innermost first; empty if it has no name.
    pub fn get(&self, address: u64) -> &[SourceFrame] {
        self.by_address.get(&address).map_or(&[], Vec::as_slice)
    }

    /// The frames of a sample, inlined ones too, the innermost first. A stack that is not known is
    /// one frame that says so.
    pub fn stack<'a>(&'a self, profile: &'a Profile, sample: &Sample) -> Vec<Named<'a>> {
        let mut stack = Vec::new();
        for address in profile.stack(sample.stack) {
            let frames = self.get(address);
            stack.extend(frames.iter().map(|frame| Named {
                name: Cow::Borrowed(frame.function.as_str()),
                address,
                frame: Some(frame),
            }));
            if frames.is_empty() {
                stack.push(Named { name: place(profile, address).into(), address, frame: None });
            }
        }
        if stack.is_empty() {
            stack.push(Named { name: missing(profile, sample).into(), address: 0, frame: None });
        }
        stack
    }
}

/// The name in place of the stack of a sample that has none.
pub(crate) fn missing(profile: &Profile, sample: &Sample) -> &'static str {
    let counts_samples = profile.kind.columns()[0].name == "samples";
    if counts_samples && sample.values[0] > 0 { STACK_UNKNOWN } else { NO_SAMPLE }
}

/// The file at an address, and the offset in it.
pub(crate) fn place(profile: &Profile, address: u64) -> String {
    let Some(mapping) = profile.mapping(address) else { return format!("{address:#x}") };
    let offset = (address - mapping.start).wrapping_add(mapping.offset);
    let file = mapping.path.rsplit('/').next().unwrap_or_default();
    if file.is_empty() { format!("{address:#x}") } else { format!("{file}+{offset:#x}") }
}
