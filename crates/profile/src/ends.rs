//! Where the stacks of a profile end: at the first function of a thread, or at code whose caller
//! was not found.
//!
//! The outermost frame of a stack that is not whole stands for what is missing, and says why: it is
//! an address at which no code can be ([`StackEnd::address`]). So every format shows the reason
//! without a place of its own for it.

use std::collections::HashMap;
use std::fmt;

use dormouse_protocol::profile::{Profile, ProfileKind, WallState};
use dormouse_unwind::CopyEnd;

/// Objects that are listed.
const MOST_OBJECTS: usize = 3;

/// From this share of whole stacks on, nothing needs to be done.
const WHOLE_PERCENT: u64 = 99;

/// An address, at which there can be no code, that stands for the functions missing from a stack,
/// of which there are `frames`.
pub fn deeper_than(frames: usize) -> u64 {
    DEEPER + (frames as u64).min(MOST_FRAMES)
}

/// An address at which no code can be: a sample in the kernel's code that has no other frame.
pub(crate) const IN_KERNEL: u64 = DEEPER - 1;

/// The kernel's addresses begin here.
pub(crate) const USER_END: u64 = 1 << 63;

/// Below the addresses of [`WallState`].
const DEEPER: u64 = u64::MAX - 16 - MOST_FRAMES;
const MOST_FRAMES: u64 = 0xffff;

/// Whether the address stands for functions for which there was no room.
pub(crate) fn is_deeper(address: u64) -> bool {
    (DEEPER..=DEEPER + MOST_FRAMES).contains(&address)
}

/// The name of an address that stands for frames.
pub(crate) fn stand_in(address: u64) -> Option<String> {
    match StackEnd::at(address) {
        Some(StackEnd::Cut) => Some(format!("(deeper than {} frames)", address - DEEPER)),
        Some(why) => Some(format!("(caller unknown: {})", why.name())),
        None => (address == IN_KERNEL).then(|| "(in the kernel)".to_owned()),
    }
}

/// Why a stack does not lead to the first function of its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StackEnd {
    /// It goes on behind what was copied, or has more functions than are followed.
    Cut,
    /// The code there has no unwind table, and its frame pointer leads nowhere.
    NoTable,
    /// The table has no rule that can be followed, or leads nowhere.
    NoRule,
    /// Nothing had been learned about a function, and its frame pointer leads nowhere.
    Unlearned,
    /// The tables of the process cannot be read.
    Unread,
    /// The thread sleeps, and the kernel does not show the register that leads to the caller.
    NoRegister,
    /// The kernel's copy ended at a page of the stack that was never used.
    Unused,
}

impl StackEnd {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::Cut,
        Self::NoTable,
        Self::NoRule,
        Self::Unlearned,
        Self::Unread,
        Self::NoRegister,
        Self::Unused,
    ];

    /// Why the functions in a copied stack do not lead to the first one of the thread; `None`: they
    /// do. `goes_on`: the stack does so behind the copy.
    pub(crate) fn of_copy(end: CopyEnd, goes_on: bool) -> Option<Self> {
        match end {
            CopyEnd::Outermost => None,
            CopyEnd::Enough => Some(Self::Cut),
            CopyEnd::Copy if goes_on => Some(Self::Cut),
            // Behind the stack there is no caller.
            CopyEnd::Copy | CopyEnd::NoRule => Some(Self::NoRule),
            CopyEnd::NoTable => Some(Self::NoTable),
            CopyEnd::Unlearned => Some(Self::Unlearned),
        }
    }

    /// The outermost frame of a stack that ends so, behind this many functions.
    pub fn address(self, frames: usize) -> u64 {
        if self == Self::Cut { deeper_than(frames) } else { IN_KERNEL - self as u64 }
    }

    /// The reason for which an address stands.
    pub fn at(address: u64) -> Option<Self> {
        let place = IN_KERNEL.checked_sub(address).and_then(|place| usize::try_from(place).ok());
        let why = || place.filter(|&place| place > 0).and_then(|place| Self::ALL.get(place)).copied();
        if is_deeper(address) { Some(Self::Cut) } else { why() }
    }

    /// The reason in a word or two.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cut => "cut",
            Self::NoTable => "no unwind table",
            Self::NoRule => "no unwind rule",
            Self::Unlearned => "not learned yet",
            Self::Unread => "tables unread",
            Self::NoRegister => "register not shown",
            Self::Unused => "unused page of the stack",
        }
    }

    /// The change that makes such stacks whole.
    pub fn fix(self) -> &'static str {
        match self {
            Self::Cut => {
                "reduce its recursion; if the profile was taken from outside, build dormouse into the service: \
                 it learns its functions, and follows them without copies"
            }
            Self::NoTable => "have the code that is generated at run time keep frame pointers",
            Self::NoRule => {
                "give its assembly unwind information (.cfi directives), or have it keep frame pointers"
            }
            Self::Unlearned => "take a longer profile: each function is learned when it is first met",
            Self::Unread => "run this as root, or with CAP_SYS_PTRACE",
            Self::NoRegister => "build that code with frame pointers",
            Self::Unused => {
                "build dormouse into the program, or make the large array of a function on the way smaller: \
                 the kernel copies a stack up to the first page that was never used"
            }
        }
    }
}

impl fmt::Display for StackEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cut => "the stack is longer than its copy, or has more functions than are followed",
            Self::NoTable => "code without an unwind table, such as generated code",
            Self::NoRule => "code whose caller its table does not give, such as hand-written assembly",
            Self::Unlearned => "code that was met for the first time",
            Self::Unread => "its unwind tables cannot be read",
            Self::NoRegister => {
                "code whose caller needs a register that is not shown of a thread that sleeps"
            }
            Self::Unused => "an array on the stack has a page that was never used, and the copy ends there",
        })
    }
}

/// Stacks that end at one object for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectEnd {
    /// The object's file name, or `[unknown]`.
    pub object: String,
    /// Why they end there.
    pub why: StackEnd,
    /// Their number.
    pub stacks: u64,
}

/// How many stacks of a profile are whole, and where the others end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StackEnds {
    /// Number of stacks. A sample without code of the process, as of a thread of the kernel's, has
    /// none.
    pub stacks: u64,
    /// Number of those that end at the first function of a thread.
    pub whole: u64,
    /// Where the others end; most first.
    pub others: Vec<ObjectEnd>,
}

impl StackEnds {
    /// Finds where the stacks of a profile end. In a profile of wall time these are the samples of
    /// running tasks. In one of allocations a row does not have the number of its stacks, so
    /// nothing is listed.
    pub fn of(profile: &Profile) -> Self {
        let mut in_kernel: u64 = 0;
        let mut sums: HashMap<(&str, StackEnd), u64> = HashMap::new();
        let counted = profile.samples.iter().filter(|_| profile.kind != ProfileKind::Alloc);
        for sample in counted.filter(|sample| sample.values[0] > 0) {
            let mut frames = Outermost::default();
            profile.stack(sample.stack).for_each(|address| frames.put(address));
            let Outermost { why, function, state: None | Some(WallState::OnCpu) } = frames else { continue };
            let Some(why) = why else {
                let has_no_stack = function >= USER_END;
                in_kernel = in_kernel.saturating_add(if has_no_stack { sample.values[0] } else { 0 });
                continue;
            };
            let object = profile.mapping(function).map_or("", |mapping| &mapping.path);
            let object = object.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("[unknown]");
            let sum = sums.entry((object, why)).or_default();
            *sum = sum.saturating_add(sample.values[0]);
        }
        let end =
            |((object, why), stacks): ((&str, _), _)| ObjectEnd { object: object.to_owned(), why, stacks };
        let mut others: Vec<_> = sums.into_iter().map(end).collect();
        others.sort_by(|a, b| (b.stacks, &a.object, a.why).cmp(&(a.stacks, &b.object, b.why)));
        let stacks = profile.coverage.samples.saturating_sub(in_kernel);
        Self { stacks, whole: profile.coverage.ended.min(stacks), others }
    }

    /// Whether nearly all stacks are whole.
    pub fn are_well(&self) -> bool {
        self.whole.saturating_mul(100) >= self.stacks.saturating_mul(WHOLE_PERCENT)
    }

    /// A sentence for each of the objects at which most stacks end that are not whole, and what to
    /// do unless nearly all are.
    pub fn sentences(&self) -> Vec<String> {
        let sentence = |ObjectEnd { object, why, stacks }: &ObjectEnd| {
            let what = if *stacks == 1 { "stack ends" } else { "stacks end" };
            let fix = if self.are_well() { String::new() } else { format!("; {}", why.fix()) };
            format!("{stacks} {what} in {object} ({why}){fix}")
        };
        self.others.iter().take(MOST_OBJECTS).map(sentence).collect()
    }
}

/// The outermost frames of a stack.
#[derive(Default)]
struct Outermost {
    function: u64,
    why: Option<StackEnd>,
    state: Option<WallState>,
}

impl Outermost {
    /// Goes on to the next outer frame.
    fn put(&mut self, address: u64) {
        self.state = WallState::at(address);
        if self.state.is_none() {
            self.why = StackEnd::at(address);
            self.function = if self.why.is_none() { address } else { self.function };
        }
    }
}

/// `of 1000 stacks 998 end at the first function of a thread; 2 in libfoo.so (…)`.
impl fmt::Display for StackEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stacks, whole, others } = self;
        write!(f, "of {stacks} stacks {whole} end at the first function of a thread")?;
        let mut most = others.iter().take(MOST_OBJECTS);
        most.try_for_each(|ObjectEnd { object, why, stacks }| write!(f, "; {stacks} in {object} ({why})"))
    }
}

#[cfg(test)]
mod tests {
    use dormouse_protocol::profile::{MappedRange, Node, ProfileCoverage, Sample};

    use super::*;

    #[test]
    fn frames_that_stand_for_others_say_so() {
        assert_eq!(stand_in(IN_KERNEL).as_deref(), Some("(in the kernel)"));
        for frames in [0, 127, 0xffff] {
            let name = stand_in(deeper_than(frames));
            assert_eq!(name, Some(format!("(deeper than {frames} frames)")));
        }
        for why in StackEnd::ALL {
            assert_eq!(StackEnd::at(why.address(7)), Some(why));
        }
        assert_eq!(
            stand_in(StackEnd::NoRule.address(7)).as_deref(),
            Some("(caller unknown: no unwind rule)")
        );
        assert!(WallState::ALL.iter().all(|state| stand_in(state.address()).is_none()));
        assert!(WallState::at(deeper_than(usize::MAX)).is_none());
        assert_eq!([0, 1 << 47, StackEnd::Unused.address(0) - 1].map(stand_in), [None, None, None]);
    }

    /// Stacks of two functions of `libtea.so`: whole, cut, without a rule, and waits.
    fn profile() -> Profile {
        let marks = [
            WallState::OnCpu.address(),
            WallState::Awaiting.address(),
            deeper_than(1),
            StackEnd::NoRule.address(1),
        ];
        let mut stacks: Vec<_> = marks.map(|address| Node { parent: 0, address }).into();
        // Each at a function; then below a state and without a rule.
        stacks.extend([3, 4, 0].map(|parent| Node { parent, address: 17 }));
        let no_rule = StackEnd::NoRule.address(1);
        stacks.extend(
            [(1, no_rule), (8, 16), (2, no_rule), (10, 16)].map(|(parent, address)| Node { parent, address }),
        );
        let sample = |stack, met| Sample { stack, values: [met, 0, 0, 0], ..Sample::default() };
        Profile {
            stacks,
            samples: vec![
                sample(5, 2),
                sample(6, 5),
                sample(7, 90),
                sample(0, 1),
                sample(9, 1),
                sample(11, 70),
            ],
            mappings: vec![MappedRange {
                start: 16,
                end: 32,
                path: "/x/libtea.so".into(),
                ..MappedRange::default()
            }],
            coverage: ProfileCoverage { samples: 98, ended: 90, ..ProfileCoverage::default() },
            ..Profile::default()
        }
    }

    #[test]
    fn a_sample_in_the_kernel_has_no_stack() {
        let mut profile = profile();
        let stacks = StackEnds::of(&profile).stacks;
        profile.coverage.samples += 100;
        let (kernel, user) = (USER_END + 64, 17);
        // Alone, as the marker of one, and with the function that made the call.
        for (addresses, met) in [(vec![kernel], 60), (vec![IN_KERNEL], 30), (vec![user, kernel], 10)] {
            let mut parent = 0;
            for address in addresses {
                profile.stacks.push(Node { parent, address });
                parent = profile.stacks.len() as u32;
            }
            profile.samples.push(Sample { stack: parent, values: [met, 0, 0, 0], ..Sample::default() });
        }
        profile.coverage.ended += 10;
        let ends = StackEnds::of(&profile);
        assert_eq!((ends.stacks, ends.whole), (stacks + 10, 100));
        profile.coverage.ended += 8;
        assert!(StackEnds::of(&profile).are_well());
    }

    #[test]
    fn stacks_end_where_their_outermost_function_lies() {
        let mut profile = profile();
        let ends = StackEnds::of(&profile);
        let why = [(StackEnd::NoRule, 6), (StackEnd::Cut, 2)];
        let right = why.map(|(why, stacks)| ObjectEnd { object: "libtea.so".to_owned(), why, stacks });
        assert_eq!(ends.others, right);
        assert!(
            ends.to_string().starts_with("of 98 stacks 90 end at the first function of a thread; 6 in lib")
        );
        let sentences = ends.sentences();
        assert!(sentences[0].starts_with("6 stacks end in libtea.so (code whose caller"), "{sentences:?}");
        assert!(sentences[0].ends_with(StackEnd::NoRule.fix()), "{sentences:?}");
        profile.coverage.ended = 98;
        assert!(StackEnds::of(&profile).sentences()[0].ends_with(')'), "nothing has to be done");
        profile.kind = ProfileKind::Alloc;
        assert_eq!(StackEnds::of(&profile).others, []);
    }
}
