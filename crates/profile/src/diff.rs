//! Comparing two profiles, stack by stack.
//!
//! Addresses differ between runs, so two stacks are the same if the names in them are. The two
//! profiles may differ in length; the comparison is by use per second.

use std::collections::HashMap;

#[cfg(doc)]
use dormouse_protocol::profile::Column;
use dormouse_protocol::profile::{NO_GROUP, Node, Profile, ProfileGroup, Sample, Thread, Values};

use crate::error::Error;
use crate::symbols::{SourceFrame, Symbols};

/// Two profiles, stack by stack.
///
/// It is itself a profile, of all stacks that either side has, with one more list of values: code
/// that shows a profile can show a difference.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Diff {
    /// All stacks. Values, duration and coverage are the new profile's; addresses are numbers of
    /// names, and there is one thread, without a name.
    pub profile: Profile,
    /// The names.
    pub symbols: Symbols,
    /// The old values of each of [`Profile::samples`].
    pub old: Vec<Values>,
    /// How long the old profile took, in nanoseconds.
    pub old_duration_ns: u64,
}

impl Diff {
    /// Joins two profiles by group and by the names in stacks.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`] if they are of different kinds.
    pub fn between(old: (&Profile, &Symbols), new: (&Profile, &Symbols)) -> Result<Self, Error> {
        if old.0.kind != new.0.kind {
            let (old, new) = (old.0.kind.name(), new.0.kind.name());
            return Err(Error::Unreadable(format!("the old profile is of {old}, the new one of {new}")));
        }
        let mut join = Join::new(new.0, old.0.duration_ns);
        for (profile, symbols, is_old) in [(new.0, new.1, false), (old.0, old.1, true)] {
            join.add(profile, symbols, is_old);
        }
        Ok(join.diff)
    }

    /// The factor that makes old values of a column comparable with new ones: it makes both sides
    /// equally long. If the length of one is unknown, it makes their totals equal. It is 1 for what
    /// does not grow with time ([`Column::is_level`]).
    ///
    /// # Panics
    ///
    /// If there is no such column.
    pub fn scale(&self, column: usize) -> f64 {
        if self.profile.kind.columns()[column].is_level() {
            return 1.0;
        }
        let (mut new, mut old) = (self.profile.duration_ns as f64, self.old_duration_ns as f64);
        if new == 0.0 || old == 0.0 {
            new = self.profile.samples.iter().map(|it| it.values[column] as f64).sum();
            old = self.old.iter().map(|it| it[column] as f64).sum();
        }
        if new == 0.0 || old == 0.0 { 1.0 } else { new / old }
    }

    /// The growth of a row of [`Profile::samples`]: its value in the main column minus the old one,
    /// scaled.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn change(&self, sample: usize) -> f64 {
        let main = self.profile.main_column();
        let new = self.profile.samples[sample].values[main];
        new as f64 - self.old[sample][main] as f64 * self.scale(main)
    }
}

struct Join {
    diff: Diff,
    groups: HashMap<String, u32>,
    /// The numbers of names, which stand for addresses.
    names: HashMap<String, u64>,
    nodes: HashMap<Node, u32>,
    /// The rows, by group and stack.
    rows: HashMap<(u32, u32), usize>,
}

impl Join {
    fn new(new: &Profile, old_duration_ns: u64) -> Self {
        let profile = Profile {
            kind: new.kind,
            live: new.live,
            unix_ns: new.unix_ns,
            duration_ns: new.duration_ns,
            period: new.period,
            pid: new.pid,
            program: new.program.clone(),
            groups: vec![ProfileGroup::default()],
            threads: vec![Thread::default()],
            coverage: new.coverage.clone(),
            ..Profile::default()
        };
        Self {
            diff: Diff { profile, old_duration_ns, ..Diff::default() },
            groups: HashMap::from([(String::new(), NO_GROUP)]),
            names: HashMap::new(),
            nodes: HashMap::new(),
            rows: HashMap::new(),
        }
    }

    fn add(&mut self, profile: &Profile, symbols: &Symbols, is_old: bool) {
        let groups: Vec<u32> = profile.groups.iter().map(|it| self.group(it)).collect();
        if !is_old {
            for (it, &group) in profile.groups.iter().zip(&groups) {
                self.diff.profile.groups[group as usize].total = it.total;
            }
        }
        for sample in &profile.samples {
            let group = groups.get(sample.group as usize).copied().unwrap_or(NO_GROUP);
            let stack = self.stack(profile, symbols, sample);
            let rows = &mut self.diff.profile.samples;
            let row = *self.rows.entry((group, stack)).or_insert_with(|| {
                rows.push(Sample { group, thread: 0, stack, values: [0; 4] });
                self.diff.old.push([0; 4]);
                rows.len() - 1
            });
            let values = if is_old { &mut self.diff.old[row] } else { &mut rows[row].values };
            for (sum, value) in values.iter_mut().zip(sample.values) {
                *sum = sum.saturating_add(value);
            }
        }
    }

    fn group(&mut self, group: &ProfileGroup) -> u32 {
        let groups = &mut self.diff.profile.groups;
        let next = groups.len() as u32;
        *self.groups.entry(group.name.clone()).or_insert_with(|| {
            groups.push(ProfileGroup { id: group.id, name: group.name.clone(), total: None });
            next
        })
    }

    fn stack(&mut self, profile: &Profile, symbols: &Symbols, sample: &Sample) -> u32 {
        let mut stack = 0;
        for frame in symbols.stack(profile, sample).into_iter().rev() {
            let known = self.names.get(&*frame.name).copied();
            let address = known.unwrap_or_else(|| {
                let number = self.names.len() as u64 + 1;
                self.names.insert(frame.name.to_string(), number);
                let file = frame.frame.map(|it| it.file.clone()).unwrap_or_default();
                let function = frame.name.into_owned();
                self.diff
                    .symbols
                    .insert(number, vec![SourceFrame { function, file, line: 0, inlined: false }]);
                number
            });
            let stacks = &mut self.diff.profile.stacks;
            let node = Node { parent: stack, address };
            stack = *self.nodes.entry(node).or_insert_with(|| {
                stacks.push(node);
                stacks.len() as u32
            });
        }
        stack
    }
}
