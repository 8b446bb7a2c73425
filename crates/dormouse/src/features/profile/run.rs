//! A profile that is being taken.

use std::thread;
use std::time::Duration;

use dormouse_events::{Counting, Event};
use dormouse_keys::{Key, Selector, SelectorError};
use dormouse_profile::{Error, Profile, ProfileKind, Profiling};
use dormouse_sys::perf;

use super::account::{self, Account};
use super::scale::{retain, scale};
use super::spec::ProfileSpec;
use super::wall::{Wall, WallReading, picture};
use crate::core::group::Group;

/// The most samples a second.
pub(crate) const MAX_HZ: u32 = 1_000;

/// The fewest bytes between two samples of allocations.
pub(crate) const MIN_BYTES: u64 = 1024;

/// Why a profile cannot be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// This system or this process offers no way to take it.
    #[error(transparent)]
    Unavailable(#[from] Error),
    /// A list of globs that does not parse.
    #[error(transparent)]
    Globs(#[from] SelectorError),
    /// A list of globs that matches no group.
    #[error("no group matches `{globs}`; a group is there from its first task on")]
    NoGroup {
        /// The list.
        globs: String,
        /// The groups there are.
        groups: Vec<&'static str>,
    },
    /// A rate that no profile has.
    #[error("`{what}` is {value}, and must be {bounds}")]
    Rate {
        /// The name of the setting.
        what: &'static str,
        /// Its invalid value.
        value: u64,
        /// The values that it may have.
        bounds: String,
    },
}

/// A profile that is being taken; see the [module](super). It ends when this is dropped.
///
/// Any number of them may run at once, each with its own rate and groups.
///
/// ```no_run
/// use std::time::Duration;
///
/// use dormouse::profile::{ProfileRun, ProfileSpec};
///
/// let run = ProfileRun::start(&ProfileSpec::cpu().groups("GET *"))?;
/// std::thread::sleep(Duration::from_secs(5)); // meanwhile others work
/// println!("{} stacks", run.read().samples.len());
/// # Ok::<(), dormouse::ProfileError>(())
/// ```
#[derive(Debug)]
#[must_use = "the profile ends when this is dropped"]
pub struct ProfileRun {
    kind: ProfileKind,
    profiling: Profiling,
    wanted: Option<Selector>,
    /// For a profile of wall time, of which the rest is the part on a CPU. With the times when it
    /// began.
    wall: Option<(Wall, WallReading)>,
    /// When it began.
    before: Account,
    /// Why groups are not counted.
    uncounted: Option<String>,
    counting: Option<Counting>,
    /// The keys that it shares with other profiles of allocations.
    shared: Vec<&'static Key>,
}

impl ProfileRun {
    /// Begins to take a profile.
    ///
    /// # Errors
    ///
    /// If a rate or a list of globs is invalid, or this process or system does not support the
    /// profile.
    ///
    /// # Cost
    ///
    /// The cost of [`start_counting`](crate::start_counting), and a few system calls for each
    /// thread, on a thread of dormouse's for which this one waits.
    pub fn start(spec: &ProfileSpec) -> Result<Self, ProfileError> {
        check(spec)?;
        let wall = (spec.kind() == ProfileKind::Wall).then(Wall::start).transpose()?;
        let mut options = spec.options.clone();
        if wall.is_some() {
            options.kind = ProfileKind::Cpu;
        }
        let kind = options.kind;
        let wanted = spec.groups.as_deref().map(selector).transpose()?;
        let events: Vec<Event> = account::events(kind).into_iter().flatten().collect();
        // From here on each task reads the clock: its first steps, which allocate, are not for a
        // thread of the host's. (Under a filter they might end the process.)
        if events.contains(&Event::TASK_CLOCK) && !perf::is_filtered() {
            dormouse_clock::prepare();
        }
        // A process whose groups cannot be counted can be sampled all the same.
        let (counting, uncounted) = match crate::core::group::start_counting(&events) {
            Ok(counting) => (Some(counting), None),
            Err(why) => (None, Some(why.to_string())),
        };
        let profiling = Profiling::start(&options)?;
        let wall = wall.map(|wall| (wall, WallReading::now()));
        let before = Account::read(kind);
        let shared = match kind {
            ProfileKind::Alloc => dormouse_events::sampling_keys(options.live),
            _ => Vec::new(),
        };
        Ok(Self { kind, profiling, wanted, wall, before, uncounted, counting, shared })
    }

    /// The keys that it alone keeps on, each once for each lease.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'static Key> {
        let times = self.wall.iter().flat_map(|(wall, _)| wall.keys()).copied();
        self.counting.iter().flat_map(Counting::keys).chain(times)
    }

    /// The keys that it keeps on together with others of its kind, each once for each lease.
    pub(crate) fn shared_keys(&self) -> &[&'static Key] {
        &self.shared
    }

    /// The profile so far.
    ///
    /// # Cost
    ///
    /// Visits every thread, and copies the table of stacks: milliseconds.
    pub fn read(&self) -> Profile {
        let mut profile = self.profiling.read();
        let mut used = Account::read(self.kind).since(&self.before);
        let times = self.wall.as_ref().map(|(_, before)| WallReading::now().since(before));
        if let Some(why) = &self.uncounted {
            profile.coverage.notes.push(format!(
                "groups are not counted here ({why}), so the samples of a group are an estimate of its total"
            ));
            used.is_counted = false;
        } else if !used.is_counted {
            let note =
                "counts of groups were suspended meanwhile: a group's samples are an estimate of its total";
            profile.coverage.notes.push(note.to_owned());
        }
        scale(&mut profile, &used);
        if let Some(times) = times {
            profile = picture(profile, times);
        }
        if let Some(wanted) = &self.wanted {
            retain(&mut profile, |name| matches(wanted, name));
        }
        profile
    }

    /// Takes a profile for this time, on the calling thread, which sleeps meanwhile.
    ///
    /// # Errors
    ///
    /// See [`ProfileRun::start`].
    pub fn take(spec: &ProfileSpec, length: Duration) -> Result<Profile, ProfileError> {
        let run = Self::start(spec)?;
        thread::sleep(length);
        Ok(run.read())
    }
}

fn check(spec: &ProfileSpec) -> Result<(), ProfileError> {
    let (hz, bytes) = (spec.options.hz, spec.options.bytes);
    match spec.kind() {
        ProfileKind::Cpu | ProfileKind::Wall if !(1..=MAX_HZ).contains(&hz) => {
            Err(ProfileError::Rate { what: "hz", value: hz.into(), bounds: format!("from 1 to {MAX_HZ}") })
        }
        ProfileKind::Alloc if bytes < MIN_BYTES => {
            Err(ProfileError::Rate { what: "bytes", value: bytes, bounds: format!("at least {MIN_BYTES}") })
        }
        _ => Ok(()),
    }
}

/// The groups that a list of globs selects, which are some.
fn selector(globs: &str) -> Result<Selector, ProfileError> {
    let selector = Selector::parse(globs)?;
    let groups: Vec<_> = Group::all().into_iter().map(Group::name).collect();
    if groups.iter().any(|name| matches(&selector, name)) {
        return Ok(selector);
    }
    Err(ProfileError::NoGroup { globs: globs.to_owned(), groups })
}

fn matches(selector: &Selector, group: &str) -> bool {
    // A group is defined at no line.
    selector.matches_at(group, "", 0)
}

#[cfg(all(test, not(dormouse_fallback)))]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn wall_times_begin_after_the_preparation() {
        dormouse_testkit::in_child(|| {
            let run = ProfileRun::start(&ProfileSpec::wall()).unwrap();
            // As long as the sampler has run, which was begun before.
            let read = Instant::now();
            let ran = Duration::from_nanos(run.profiling.read().duration_ns);
            let (_, before) = run.wall.as_ref().unwrap();
            assert!(before.at[0] + ran >= read, "{:?} ago, of {ran:?}", before.at[0].elapsed());
            assert_eq!(WallReading::now().since(before).at[0], before.at[0]);
        });
    }
}
