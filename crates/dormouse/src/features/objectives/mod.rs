//! Objectives: the share of a group's requests that is to be answered within a time, and how many
//! were.

mod verb;

use std::sync::Arc;
use std::time::Instant;

use dormouse_keys::{Key, Selector, near_among};
use dormouse_protocol::{GroupObjective, Objective, ObjectiveError};
use dormouse_sys::Capability;
use dormouse_waits::Waiting;

use crate::core::group::Group;
use crate::core::objectives::{Chosen, NAME_GROUPS, ObjectiveLeases, UNMATCHED, begin, settle, unmatched};

/// How many groups are named that an objective may have meant.
const NEAR: usize = 3;

/// Requests are counted by objectives as long as this lives; see [`objectives`] and
/// [`Group::objective`].
///
/// In a forked child, one that the parent made has no effect.
///
/// ```
/// let objectives = dormouse::objectives("GET *: 99% < 1s")?;
/// println!("{} groups have it now", objectives.groups());
/// drop(objectives); // From now on nobody counts.
/// # Ok::<(), dormouse::ObjectivesError>(())
/// ```
#[derive(Debug)]
#[must_use = "requests are counted by the objectives as long as it lives"]
pub struct Objectives {
    // In this order: the counts end before the times from which they are made.
    leases: ObjectiveLeases,
    settles: Settles,
    waiting: Waiting,
    groups: u64,
}

/// Groups that begin while leases end get the others' objectives when this is dropped.
#[derive(Debug)]
struct Settles;

impl Drop for Settles {
    fn drop(&mut self) {
        settle(Group::all_of_groups);
    }
}

/// Why requests cannot be counted by an objective. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectivesError {
    /// It is invalid.
    #[error(transparent)]
    Objective(#[from] ObjectiveError),
    /// Its globs are invalid.
    #[error("the objective `{objective}`: {why}")]
    Globs {
        /// The objective.
        objective: String,
        /// The fault of its globs.
        why: String,
    },
    /// A group, or the process, has as many as it can have.
    #[error("{why}")]
    NoRoom {
        /// Which group, and what it has.
        why: String,
    },
    /// The static key of times cannot be switched.
    #[error("no times of tasks are taken, so requests cannot be counted by objectives: {0}")]
    Keys(#[from] dormouse_keys::Error),
}

impl Group {
    /// Counts the group's requests by an objective, such as `99.9% < 250ms`, until the guard is
    /// dropped: those that met it, and those that missed it. Times of tasks are taken meanwhile.
    ///
    /// A request has met the objective if it was answered within the time, and did not fail. One
    /// that failed has missed it (outcome `error` or `panicked`), and so has one that was cancelled
    /// after that time. One that was cancelled before does not count. An objective never changes
    /// how requests are served.
    ///
    /// ```
    /// use dormouse::Group;
    ///
    /// let menu = Group::new("GET /menu");
    /// let objective = menu.objective("99.9% < 250ms")?;
    /// menu.scope(|| { /* a request */ });
    /// let counted = menu.read_objectives()[0];
    /// assert_eq!(counted.met + counted.missed, 1);
    /// # drop(objective);
    /// # Ok::<(), dormouse::ObjectivesError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the objective is invalid, if the group has eight others, or if no times can be taken.
    ///
    /// # Cost
    ///
    /// The cost of [`Waiting::start`]; and for each request that ends, a comparison and an atomic
    /// addition for each objective of its group.
    pub fn objective(self, objective: &str) -> Result<Objectives, ObjectivesError> {
        Objectives::start(vec![(Chosen::One(self.id()), objective.parse()?)])
    }
}

/// Counts the requests of all groups that match by these objectives, also those of groups that come
/// later; see [`Group::objective`]. A list has a `;` between two.
///
/// ```
/// dormouse::objectives("GET /*: 99.9% < 250ms; POST /orders,PUT *: 99% < 1s")?.keep();
/// # Ok::<(), dormouse::ObjectivesError>(())
/// ```
///
/// # Errors
///
/// The first one that is invalid; else see [`Group::objective`]. Then none is counted.
///
/// # Cost
///
/// See [`Group::objective`]; and a comparison of each group's name with each objective.
pub fn objectives(list: &str) -> Result<Objectives, ObjectivesError> {
    Objectives::start(chosen(GroupObjective::list(list)?)?)
}

/// The objectives with their groups.
fn chosen(all: Vec<GroupObjective>) -> Result<Vec<(Chosen, Objective)>, ObjectivesError> {
    let chosen = |of: GroupObjective| match Selector::parse(&of.groups) {
        Ok(globs) => Ok((Chosen::Matching(Arc::new(globs)), of.objective)),
        Err(why) => Err(ObjectivesError::Globs { objective: of.to_string(), why: why.to_string() }),
    };
    all.into_iter().map(chosen).collect()
}

/// The objectives that match no group, though they were set a while ago, as they were given.
pub(crate) fn unmatched_objectives() -> Vec<GroupObjective> {
    let unmatched = unmatched(Instant::now(), Group::all_of_groups).into_iter();
    let given = |(globs, objective): (Arc<Selector>, _)| GroupObjective {
        groups: globs.as_str().to_owned(),
        objective,
    };
    unmatched.map(given).collect()
}

/// The checks that `doctor` shows of them.
pub(crate) fn unmatched_checks() -> impl Iterator<Item = Capability> {
    unmatched_objectives().into_iter().map(|of| {
        let all = Group::all();
        let near = near_among(&of.groups, all.iter().map(|group| group.name()), NEAR);
        let near = if near.is_empty() { String::new() } else { format!("; near: {}", near.join(", ")) };
        let detail = format!("objective `{of}`: no group matches so far{near}");
        Capability::limited(UNMATCHED, detail).with_fix(NAME_GROUPS)
    })
}

impl Objectives {
    fn start(wanted: Vec<(Chosen, Objective)>) -> Result<Self, ObjectivesError> {
        let waiting = Waiting::start()?;
        let begun = begin(wanted, Group::all_of_groups);
        let (leases, groups) = begun.map_err(|why| ObjectivesError::NoRoom { why: why.to_string() })?;
        Ok(Self { leases, settles: Settles, waiting, groups })
    }

    /// How many groups had one of the objectives when this began.
    pub fn groups(&self) -> u64 {
        self.groups
    }

    /// Lets requests be counted until the process ends.
    pub fn keep(self) {
        let Self { leases, settles, waiting, .. } = self;
        std::mem::forget((leases, settles));
        waiting.keep();
    }

    /// The keys that it keeps on.
    fn keys(&self) -> &[&'static Key] {
        self.waiting.keys()
    }
}
