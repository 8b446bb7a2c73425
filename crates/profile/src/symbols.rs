//! The names of addresses.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use dormouse_protocol::profile::{Profile, Sample, WallState};

use crate::ends::stand_in;
use crate::own::OwnCode;

/// Stands for the stack of work that the account contains but no sample.
pub const NO_SAMPLE: &str = "(not sampled)";

/// Stands for the stack of samples whose stack is unknown.
pub const STACK_UNKNOWN: &str = "(stack unknown)";

/// The smallest share of a profile, as a divisor, for which a note reports that an object lacks
/// names.
const LEAST_NOTED: u64 = 20;

/// A function at an address. With inlining there are several at one address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceFrame {
    /// The function's name, demangled.
    pub function: String,
    /// The file of the function's source; empty if unknown.
    pub file: String,
    /// The line in the file; 0 if unknown.
    pub line: u32,
    /// Whether the function is inlined into the one that follows.
    pub inlined: bool,
}

/// A frame of a sample, always with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named<'a> {
    /// The function; or the file and the offset in it (`libfoo.so+0x1234`), which is the same in
    /// every run; or the address; or [`NO_SAMPLE`], [`STACK_UNKNOWN`].
    pub name: Cow<'a, str>,
    /// The address; 0 if the stack is unknown.
    pub address: u64,
    /// The function, if it is known.
    pub frame: Option<&'a SourceFrame>,
}

/// Functions by address, for the encoders. Each [`WallState`] has a name already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbols {
    by_address: HashMap<u64, Vec<SourceFrame>>,
    lacks: HashMap<u64, String>,
    own: OwnCode,
}

impl Default for Symbols {
    fn default() -> Self {
        let frame =
            |state: WallState| SourceFrame { function: state.name().into(), ..SourceFrame::default() };
        let by_address = WallState::ALL.map(|state| (state.address(), vec![frame(state)])).into();
        Self { by_address, lacks: HashMap::new(), own: OwnCode::default() }
    }
}

impl Symbols {
    /// Adds the functions of an address, the innermost first.
    pub fn insert(&mut self, address: u64, frames: Vec<SourceFrame>) {
        self.by_address.insert(address, frames);
    }

    /// The functions at an address, the innermost first; empty if it has no name.
    pub fn get(&self, address: u64) -> &[SourceFrame] {
        self.by_address.get(&address).map_or(&[], Vec::as_slice)
    }

    /// Sets why the functions or lines of an address are not known: `libfoo.so: no debug
    /// information`.
    pub fn insert_lack(&mut self, address: u64, why: String) {
        self.lacks.insert(address, why);
    }

    /// Returns why the functions or lines of an address are not known. `None` if they are known, or
    /// if the reason is not.
    pub fn lack(&self, address: u64) -> Option<&str> {
        self.lacks.get(&address).map(String::as_str)
    }

    /// Adds a note to the profile for each object without names or lines that contains more than a
    /// twentieth of it.
    pub fn note_lacks(&self, profile: &mut Profile) {
        let column = profile.kind.main_column();
        let (mut all, mut sums) = (0_u64, BTreeMap::<&str, u64>::new());
        for sample in &profile.samples {
            let value = sample.values[column];
            all = all.saturating_add(value);
            if let Some(why) = profile.stack(sample.stack).next().and_then(|address| self.lack(address)) {
                let sum = sums.entry(why).or_default();
                *sum = sum.saturating_add(value);
            }
        }
        for (why, sum) in sums {
            let notes = &mut profile.coverage.notes;
            if sum > all / LEAST_NOTED && !notes.iter().any(|note| note == why) {
                notes.push(why.to_owned());
            }
        }
    }

    /// Sets the rule for which functions are the program's own.
    pub fn set_own(&mut self, own: OwnCode) {
        self.own = own;
    }

    /// The rule for which functions are the program's own.
    pub fn own(&self) -> &OwnCode {
        &self.own
    }

    /// The frames of a sample including inlined ones, the innermost first. An unknown stack is one
    /// frame with the name [`STACK_UNKNOWN`].
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
    let Some(mapping) = profile.mapping(address) else {
        return stand_in(address).unwrap_or_else(|| format!("{address:#x}"));
    };
    let offset = (address - mapping.start).wrapping_add(mapping.offset);
    let file = mapping.path.rsplit('/').next().unwrap_or_default();
    if file.is_empty() { format!("{address:#x}") } else { format!("{file}+{offset:#x}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Node;

    #[test]
    fn objects_without_names_are_told_once() {
        let mut symbols = Symbols::default();
        symbols.insert_lack(1, "liba.so: no debug information".to_owned());
        symbols.insert_lack(2, "liba.so: no debug information".to_owned());
        symbols.insert_lack(3, "libb.so: its file cannot be read".to_owned());
        let sample = |stack, ns| Sample { stack, values: [1, ns, 0, 0], ..Sample::default() };
        let mut profile = Profile {
            stacks: [1, 2, 3, 4].map(|address| Node { parent: 0, address }).into(),
            samples: vec![sample(1, 30), sample(2, 30), sample(3, 50), sample(4, 890)],
            ..Profile::default()
        };
        symbols.note_lacks(&mut profile);
        symbols.note_lacks(&mut profile);
        assert_eq!(profile.coverage.notes, ["liba.so: no debug information"], "a twentieth is too little");
    }
}
