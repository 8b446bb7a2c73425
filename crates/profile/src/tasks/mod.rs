//! Profiles by task: what each sample works for, by the names in its stack, in any program of Rust.
//!
//! Runtimes poll each type of future by a function of its own, and servers call each handler so.
//! The name of such a function contains the type, in line tables and in symbols of the v0 mangling.
//! So a profile that was taken from outside, of a program without dormouse, shows axum's and
//! actix's handlers, methods of tonic, tasks, closures of `spawn_blocking`, jobs of rayon, threads,
//! and the runtime itself.
//!
//! # Limits
//!
//! Only what was spawned is a task: futures of one `select!` or `JoinSet` share theirs. Routes have
//! no names in the program; their handlers have.

mod path;
mod work;

use std::collections::{BTreeMap, HashMap};

use dormouse_protocol::profile::{Profile, ProfileGroup};

use crate::ends::StackEnd;
use crate::symbols::{SourceFrame, Symbols};
use work::{Mark, Reading, Step, Unnamed, Work};

/// The name of what has no task.
const NO_TASK: &str = "(no task)";

/// The task of each sample of a profile.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    names: Vec<String>,
    /// The index of the name of each sample.
    of: Vec<u32>,
    /// The use in the main column of what has no name, by its reason.
    unnamed: BTreeMap<Unnamed, u64>,
    total: u64,
}

impl Tasks {
    /// Finds the task of each sample.
    ///
    /// # Cost
    ///
    /// Parses the names of each address once.
    pub fn of(profile: &Profile, symbols: &Symbols) -> Tasks {
        let works = works(profile, symbols);
        let (mut tasks, mut numbers) = (Tasks::default(), HashMap::new());
        for sample in &profile.samples {
            let at = (sample.stack as usize).checked_sub(1);
            let work =
                at.map_or(&Err(Unnamed::NoStack), |at| works.get(at).unwrap_or(&Err(Unnamed::NoStack)));
            let value = sample.values[profile.kind.main_column()];
            tasks.total = tasks.total.saturating_add(value);
            let name = match work {
                Ok(Work(name)) => name.clone(),
                Err(why) => {
                    let sum = tasks.unnamed.entry(why.kind()).or_default();
                    *sum = sum.saturating_add(value);
                    match why {
                        Unnamed::NoTypes(Some(own)) => format!("task in {own}"),
                        _ => NO_TASK.to_owned(),
                    }
                }
            };
            let number = *numbers.entry(name).or_insert_with_key(|name| {
                tasks.names.push(name.clone());
                tasks.names.len() as u32 - 1
            });
            tasks.of.push(number);
        }
        tasks
    }

    /// The name of the task of a sample, by the sample's index.
    pub fn name(&self, sample: usize) -> Option<&str> {
        self.names.get(*self.of.get(sample)? as usize).map(String::as_str)
    }

    /// The use in the main column whose task is known, and all of it.
    pub fn named(&self) -> (u64, u64) {
        (self.total.saturating_sub(self.unnamed.values().sum()), self.total)
    }

    /// The profile with tasks in place of groups.
    #[must_use]
    pub fn regroup(&self, profile: &Profile) -> Profile {
        let named = |name: &String| ProfileGroup { name: name.clone(), ..ProfileGroup::default() };
        let groups = std::iter::once(ProfileGroup::default()).chain(self.names.iter().map(named)).collect();
        let mut profile = Profile { groups, ..profile.clone() };
        profile.coverage.in_groups = self.named().0;
        for (sample, task) in profile.samples.iter_mut().zip(&self.of) {
            sample.group = task + 1;
        }
        profile
    }

    /// Sentences: how much has a name, and why the rest has none.
    pub fn notes(&self) -> Vec<String> {
        let share = |value: u64| value as f64 * 100.0 / self.total.max(1) as f64;
        let (named, _) = self.named();
        let known = format!("tasks: {:.1} % of it has the name of its task", share(named));
        let missing = self.unnamed.iter().filter(|(_, sum)| share(**sum) >= 0.05);
        let missing = missing.map(|(why, sum)| format!("no task is known for {:.1} %: {why}", share(*sum)));
        std::iter::once(known).chain(missing).collect()
    }
}

/// The work of each stack of the profile, by its node.
fn works<'s>(profile: &Profile, symbols: &'s Symbols) -> Vec<Result<Work, Unnamed>> {
    let mut steps: HashMap<u64, Vec<Step<'s>>> = HashMap::new();
    let mut readings: Vec<(Reading<'s>, Flaw)> = Vec::with_capacity(profile.stacks.len());
    for (index, node) in profile.stacks.iter().enumerate() {
        // A node comes after its parent.
        let parent = (node.parent as usize).checked_sub(1).filter(|&parent| parent < index);
        let (mut reading, mut flaw) = parent.map_or_else(Default::default, |parent| readings[parent].clone());
        let here = steps.entry(node.address).or_insert_with(|| {
            let frames = symbols.get(node.address).iter().rev();
            let step = |frame: &'s SourceFrame| Step {
                name: &frame.function,
                mark: Mark::of(&frame.function, symbols.own()),
                is_own: symbols.own().is_own(&frame.function, Some(&frame.file)),
            };
            frames.map(step).collect()
        });
        for step in here.iter() {
            reading.enter(step);
        }
        flaw.is_cut |= StackEnd::at(node.address).is_some();
        let is_in_program = || profile.mapping(node.address).is_some_and(|it| it.path == profile.program);
        flaw.is_bare |= here.is_empty() && is_in_program();
        readings.push((reading, flaw));
    }
    let work = |(reading, flaw): &(Reading<'_>, Flaw)| match reading.work() {
        // The function that names the task may be among those that are missing.
        Err(Unnamed::NoTask | Unnamed::NoTypes(_)) if flaw.is_cut => Err(Unnamed::Cut),
        Err(Unnamed::NoTask) if flaw.is_bare => Err(Unnamed::NoNames),
        work => work,
    };
    readings.iter().map(work).collect()
}

/// The flaws of a stack.
#[derive(Debug, Clone, Copy, Default)]
struct Flaw {
    is_cut: bool,
    /// Functions of the program without names.
    is_bare: bool,
}
