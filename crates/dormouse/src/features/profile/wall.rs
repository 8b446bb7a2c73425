//! The wall time of groups by place: running, runnable and awaiting in one profile.
//!
//! The times of a group are the account's (`dormouse_waits::read`), and so is the time of its waits
//! at each place; only its time on a CPU is sampled. So the samples of a group add up to the wall
//! time of its tasks, except for rounding.
//!
//! The profile has a length of its own, from before the first reading of those times to after the
//! last, so no task has more time than that. Each of these readings is next to one of the account
//! of CPU time: polls between the two would be shown as stalled.
//!
//! A wait at several places at once is shared among them. A wait that began before the profile may
//! have no place: then its stack consists only of the state.

use std::collections::HashMap;
use std::time::Instant;

use dormouse_keys::Key;
use dormouse_profile::{
    Error, NO_GROUP, Node, Profile, ProfileGroup, ProfileKind, Sample, Values, WallState, deeper_than,
};
use dormouse_waits::places::{PlaceCoverage, WalkEnd, place, place_coverage};
use dormouse_waits::{GroupWaits, Histograms, Waiting, read_each};

use super::scale::{fit, prune, unknown_thread};
use crate::core::group::Group;
use crate::features::learning::Placed;

/// Times are taken for a profile as long as this lives.
#[derive(Debug)]
pub(super) struct Wall {
    waiting: Waiting,
    _placed: Placed,
}

/// The sums of a group so far. Its histograms would have 9 KB.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    poll_ns: u64,
    runnable_ns: u64,
    await_ns: u64,
    /// Waits from a wake to a poll.
    delays: u64,
}

impl Times {
    fn since(self, before: Self) -> Self {
        Self {
            poll_ns: self.poll_ns.saturating_sub(before.poll_ns),
            runnable_ns: self.runnable_ns.saturating_sub(before.runnable_ns),
            await_ns: self.await_ns.saturating_sub(before.await_ns),
            delays: self.delays.saturating_sub(before.delays),
        }
    }
}

impl From<&GroupWaits> for Times {
    fn from(of: &GroupWaits) -> Self {
        let &GroupWaits { poll_ns, runnable_ns, await_ns, ref delays, .. } = of;
        Self { poll_ns, runnable_ns, await_ns, delays: delays.count() }
    }
}

/// The times so far, or the difference of two such readings.
#[derive(Debug)]
pub(super) struct WallReading {
    /// When it began (of a difference: the first one), and when the times of all groups were read.
    pub(super) at: [Instant; 2],
    groups: HashMap<u32, Times>,
    /// Waits and nanoseconds by group and place.
    places: HashMap<(u32, u32), [u64; 2]>,
    missing: PlaceCoverage,
}

impl WallReading {
    pub(super) fn now() -> Self {
        let begun = Instant::now();
        let times = dormouse_waits::times_by_place();
        let mut groups = HashMap::with_capacity(dormouse_waits::groups());
        read_each(Histograms::All, |of| _ = groups.insert(of.group, of.into()));
        Self {
            at: [begun, Instant::now()],
            groups,
            places: times.into_iter().map(|of| ((of.group, of.place), [of.waits, of.ns])).collect(),
            missing: place_coverage(),
        }
    }

    pub(super) fn since(self, before: &Self) -> Self {
        let mut now = self;
        now.at[0] = before.at[0];
        for (id, of) in &mut now.groups {
            if let Some(before) = before.groups.get(id) {
                *of = of.since(*before);
            }
        }
        for (key, of) in &mut now.places {
            let before = before.places.get(key).copied().unwrap_or_default();
            *of = [of[0].saturating_sub(before[0]), of[1].saturating_sub(before[1])];
        }
        // A forked child begins again.
        now.missing.unknown = now.missing.unknown.saturating_sub(before.missing.unknown);
        now.missing.unlearned = now.missing.unlearned.saturating_sub(before.missing.unlearned);
        now.missing.no_room = now.missing.no_room.saturating_sub(before.missing.no_room);
        now
    }
}

impl Wall {
    pub(super) fn start() -> Result<Self, Error> {
        let waiting = Waiting::start().map_err(|why| Error::Unavailable(why.to_string()))?;
        let placed = Placed::start()
            .map_err(|why| Error::Unavailable(format!("there is no room for the places of waits: {why}")))?;
        Ok(Self { waiting, _placed: placed })
    }

    /// The keys that it keeps on.
    pub(super) fn keys(&self) -> &[&'static Key] {
        self.waiting.keys()
    }
}

/// The picture of these times, of which `cpu` is the part on a CPU.
pub(super) fn picture(cpu: Profile, times: WallReading) -> Profile {
    let names: HashMap<u32, &str> = Group::all().iter().map(|group| (group.id(), group.name())).collect();
    let mut picture = Picture::of(cpu);
    // The account of CPU time began after these times did, and was read before they were.
    let length = times.at[1] - times.at[0];
    picture.profile.duration_ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    let mut groups: Vec<(u32, Times)> = times.groups.into_iter().collect();
    groups.sort_unstable_by_key(|(id, _)| *id);
    for (id, of) in groups {
        let wall = of.poll_ns + of.runnable_ns + of.await_ns;
        if wall > 0 {
            let group = picture.group(id, names.get(&id).copied(), wall);
            picture.polls((group, id), of.poll_ns);
            picture.add(group, WallState::Runnable, &[], [of.delays, of.runnable_ns, 0, 0]);
            picture.awaits((group, id), of.await_ns, &times.places);
        }
    }
    picture.finish(times.missing)
}

struct Picture {
    profile: Profile,
    nodes: HashMap<Node, u32>,
    /// The rows of each group on a CPU, by its number.
    on_cpu: HashMap<u32, Vec<Sample>>,
    nobody: u32,
    /// Waits at places of whose functions some had no room.
    cut: u64,
}

impl Picture {
    fn of(mut profile: Profile) -> Self {
        let nobody = unknown_thread(&mut profile);
        let state = |state: WallState| Node { parent: 0, address: state.address() };
        let mut stacks: Vec<Node> = WallState::ALL.into_iter().map(state).collect();
        let more = stacks.len() as u32;
        let below = |stack: u32| if stack == 0 { 1 } else { stack + more };
        stacks.extend(profile.stacks.iter().map(|node| Node { parent: below(node.parent), ..*node }));
        let mut on_cpu: HashMap<u32, Vec<Sample>> = HashMap::new();
        for sample in std::mem::take(&mut profile.samples) {
            let id = profile.groups.get(sample.group as usize).map_or(0, |group| group.id);
            on_cpu.entry(id).or_default().push(Sample { stack: below(sample.stack), ..sample });
        }
        let nodes = stacks.iter().zip(1..).map(|(node, number)| (*node, number)).collect();
        profile.kind = ProfileKind::Wall;
        profile.stacks = stacks;
        profile.groups = vec![ProfileGroup::default()];
        profile.timeline = Vec::new();
        // The wall time of a process is not defined.
        (profile.coverage.total, profile.coverage.in_groups) = (0, 0);
        Self { profile, nodes, on_cpu, nobody, cut: 0 }
    }

    /// The index of the group with that number and name. Those past the table of times have none.
    fn group(&mut self, id: u32, name: Option<&str>, wall: u64) -> u32 {
        self.profile.coverage.in_groups += wall;
        let Some(name) = name else { return NO_GROUP };
        self.profile.groups.push(ProfileGroup { id, name: name.to_owned(), total: Some(wall) });
        self.profile.groups.len() as u32 - 1
    }

    fn add(&mut self, group: u32, state: WallState, place: &[u64], values: Values) {
        let mut stack = state as u32 + 1;
        for &address in place.iter().rev() {
            let node = Node { parent: stack, address };
            stack = *self.nodes.entry(node).or_insert_with(|| {
                self.profile.stacks.push(node);
                self.profile.stacks.len() as u32
            });
        }
        if values[1] > 0 {
            self.profile.samples.push(Sample { group, thread: self.nobody, stack, values });
        }
    }

    /// Polls: as much of them as the group has used a CPU, by its samples; the rest is stalled.
    fn polls(&mut self, (group, id): (u32, u32), poll_ns: u64) {
        let first = self.profile.samples.len();
        // Of work in no group, and of scopes beside tasks, there is no wall time.
        let rows = self.on_cpu.remove(&id).filter(|_| group != NO_GROUP).unwrap_or_default();
        let used: u64 = rows.iter().map(|row| row.values[1]).sum();
        self.profile.samples.extend(rows.into_iter().map(|row| Sample { group, ..row }));
        let rows: Vec<usize> = (first..self.profile.samples.len()).collect();
        if used > poll_ns {
            fit(&mut self.profile, group, &rows, 1, poll_ns);
        }
        self.add(group, WallState::Stalled, &[], [0, poll_ns.saturating_sub(used), 0, 0]);
    }

    fn awaits(&mut self, (group, id): (u32, u32), await_ns: u64, places: &HashMap<(u32, u32), [u64; 2]>) {
        let first = self.profile.samples.len();
        let mut places: Vec<_> = places.iter().filter(|(key, _)| key.0 == id).collect();
        places.sort_unstable();
        let mut known = 0;
        let mut waits_unknown = 0;
        for (&(_, number), &[waits, ns]) in places {
            if let Some(place) = place(number) {
                let is_cut = place.end == WalkEnd::Enough;
                let mut stack = place.stack;
                if is_cut {
                    stack.insert(place.inner, deeper_than(stack.len()));
                }
                self.add(group, WallState::Awaiting, &stack, [waits, ns, 0, 0]);
                self.cut += if is_cut { waits } else { 0 };
                known += ns;
            } else {
                waits_unknown += waits;
            }
        }
        let rows: Vec<usize> = (first..self.profile.samples.len()).collect();
        if known > await_ns {
            // The two readings are not of one moment.
            fit(&mut self.profile, group, &rows, 1, await_ns);
        }
        let unknown = await_ns.saturating_sub(known);
        self.add(group, WallState::Awaiting, &[], [waits_unknown, unknown, 0, 0]);
    }

    fn finish(mut self, missing: PlaceCoverage) -> Profile {
        let notes = &mut self.profile.coverage.notes;
        if missing.unknown > 0 {
            notes.push(format!(
                "{} waits have no place: the unwind tables do not lead to the caller of the code that waits",
                missing.unknown
            ));
        }
        if missing.unlearned > 0 {
            notes.push(format!(
                "{} waits have no place: functions of their stacks had not been met before",
                missing.unlearned
            ));
        }
        if missing.no_room > 0 {
            notes.push(format!("{} waits have no place: the table of places is full", missing.no_room));
        }
        if self.cut > 0 {
            notes.push(format!(
                "the stacks of {} waits are cut: functions in the middle had no room",
                self.cut
            ));
        }
        let known = dormouse_waits::living().count() as u64;
        let alive: u64 = Group::all().into_iter().map(|group| group.tasks().alive()).sum();
        if alive > known {
            notes.push(format!(
                "{} tasks have waited since before times were taken, and are not in it",
                alive - known
            ));
        }
        self.profile.samples.retain(|sample| sample.values[1] > 0);
        prune(&mut self.profile);
        self.profile
    }
}
