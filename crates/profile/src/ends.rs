//! Where the stacks of a profile end: at the first function of a thread, or at code whose caller
//! was not found.

use std::collections::HashMap;
use std::fmt;

use dormouse_protocol::profile::Profile;
use dormouse_unwind::{CallerWay, FrameRule, ProcessTables};

use crate::symbols::is_deeper;

/// Objects that are listed.
const MOST_OBJECTS: usize = 3;

/// Why a stack does not end at the first function of its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StackEnd {
    /// It goes on behind what was copied, or has more functions than are followed.
    Cut,
    /// The code there has no unwind table.
    NoTable,
    /// The table has no rule that can be followed, or leads nowhere.
    NoRule,
    /// The tables of the process cannot be read.
    Unread,
}

impl StackEnd {
    /// The change that makes such stacks whole.
    pub fn fix(self) -> &'static str {
        match self {
            Self::Cut => {
                "build dormouse into the service: it learns its functions, and follows them without copies; or \
                 reduce its recursion"
            }
            Self::NoTable => "have the code that is generated at run time keep frame pointers",
            Self::NoRule => {
                "give its assembly unwind information (.cfi directives), or have it keep frame pointers"
            }
            Self::Unread => "run this as root, or with CAP_SYS_PTRACE",
        }
    }
}

impl fmt::Display for StackEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cut => "the stack is longer than its copy, or has more than 1,024 functions",
            Self::NoTable => "code without an unwind table, such as generated code",
            Self::NoRule => "code whose caller its table does not give, such as hand-written assembly",
            Self::Unread => "its unwind tables cannot be read",
        })
    }
}

/// How many stacks of a profile are whole, and where the others end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StackEnds {
    /// Number of stacks.
    pub stacks: u64,
    /// Number of those that end at the first function of a thread.
    pub whole: u64,
    /// Objects at which the others end, why, and how many; most first.
    pub others: Vec<(String, StackEnd, u64)>,
}

impl StackEnds {
    /// Finds where the stacks of a profile end, while its process exists.
    ///
    /// # Cost
    ///
    /// Reads the unwind table's entry of each outermost function from the memory of the process.
    pub fn of(profile: &Profile) -> Self {
        let stacks = profile.coverage.samples;
        let whole = profile.coverage.ended.min(stacks);
        if whole == stacks {
            return Self { stacks, whole, others: Vec::new() };
        }
        let mut tables = ProcessTables::of(profile.pid).ok();
        let mut sums: HashMap<(String, StackEnd), u64> = HashMap::new();
        for sample in &profile.samples {
            let mut frames: Vec<u64> = profile.stack(sample.stack).collect();
            let is_cut = frames.pop_if(|outermost| is_deeper(*outermost)).is_some();
            let Some(outermost) = frames.pop() else { continue };
            let way = tables.as_mut().map(|tables| tables.tables().code(outermost));
            let why = match way {
                _ if is_cut => StackEnd::Cut,
                Some(CallerWay::Ruled(FrameRule::Outermost)) => continue,
                Some(CallerWay::Ruled(_)) => StackEnd::NoRule,
                Some(CallerWay::Linked | CallerWay::None | CallerWay::Unlearned) => StackEnd::NoTable,
                None => StackEnd::Unread,
            };
            let object = profile.mapping(outermost).map_or("", |mapping| &mapping.path);
            let object = object.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("[unknown]");
            *sums.entry((object.to_owned(), why)).or_default() += sample.values[0];
        }
        let mut others: Vec<_> = sums.into_iter().map(|((object, why), sum)| (object, why, sum)).collect();
        others.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
        others.truncate(MOST_OBJECTS);
        Self { stacks, whole, others }
    }
}

/// `of 1000 stacks 998 end at the first function of a thread; 2 in libfoo.so (…)`.
impl fmt::Display for StackEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stacks, whole, others } = self;
        write!(f, "of {stacks} stacks {whole} end at the first function of a thread")?;
        others.iter().try_for_each(|(object, why, sum)| write!(f, "; {sum} in {object} ({why})"))
    }
}

#[cfg(test)]
mod tests {
    use dormouse_protocol::profile::{MappedRange, Node, ProfileCoverage, Sample};

    use super::*;
    use crate::symbols::deeper_than;

    #[test]
    fn stacks_end_where_their_outermost_function_lies() {
        let sample = |stack, met| Sample { stack, values: [met, 0, 0, 0], ..Sample::default() };
        let profile = Profile {
            pid: std::process::id(),
            // Nothing is mapped at 16; the stack of the second node is cut.
            stacks: vec![
                Node { parent: 0, address: 16 },
                Node { parent: 0, address: deeper_than(1) },
                Node { parent: 2, address: 17 },
            ],
            samples: vec![sample(1, 2), sample(3, 5), sample(0, 1)],
            mappings: vec![MappedRange {
                start: 16,
                end: 32,
                path: "/x/libtea.so".into(),
                ..MappedRange::default()
            }],
            coverage: ProfileCoverage { samples: 10, ended: 2, ..ProfileCoverage::default() },
            ..Profile::default()
        };
        let ends = StackEnds::of(&profile);
        let why = [("libtea.so", StackEnd::Cut, 5), ("libtea.so", StackEnd::NoTable, 2)];
        assert_eq!(ends.others, why.map(|(object, why, sum)| (object.to_owned(), why, sum)));
        assert!(
            ends.to_string().starts_with("of 10 stacks 2 end at the first function of a thread; 5 in lib")
        );
    }
}
