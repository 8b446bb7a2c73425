//! The groups of one layer, or of one middleware: limits how many groups clients can create.

use crate::core::group::{Group, cut};
use crate::core::registry::{OTHER, Place};

/// The default limit of groups that a layer makes.
pub const DEFAULT_BOUND: usize = 64;

/// The groups of one layer, without a lock: a name is in the first place from its hash on that was
/// free when it was added.
#[derive(Debug)]
pub(in crate::adapt) struct Groups {
    known: Box<[Place]>,
    other: Place,
}

impl Groups {
    pub(in crate::adapt) fn new(bound: usize) -> Self {
        Self { known: (0..bound).map(|_| Place::new()).collect(), other: Place::new() }
    }

    /// The group of that name, or `other` if there is room for no more.
    pub(in crate::adapt) fn named(&self, name: &str) -> Group {
        let name = cut(name);
        for place in self.way(name) {
            match place.get() {
                Some(group) if group.name == name => return Group(group),
                Some(_) => {}
                None => return self.add(name),
            }
        }
        self.other()
    }

    /// The places in which a name may be. A few bytes distinguish most routes, and are read faster
    /// than all.
    fn way(&self, name: &str) -> impl Iterator<Item = &Place> {
        let byte = |at: usize| name.as_bytes().get(at).map_or(0, |byte| usize::from(*byte));
        let (length, places) = (name.len(), self.known.len().max(1));
        let hash = length + 7 * byte(length / 2) + 31 * byte(length.saturating_sub(3));
        let (before, from) = self.known.split_at(hash % places);
        from.iter().chain(before)
    }

    fn other(&self) -> Group {
        Group(self.other.get_or_init(|| Group::new(OTHER).0))
    }

    #[cold]
    fn add(&self, name: &str) -> Group {
        let group = Group::new(name);
        // If the process has as many groups as it can have, this is `other`, and not worth a place.
        if group.name() != name {
            return group;
        }
        // All requests of one name try the same places, so the name gets one of them.
        let took = |place: &Place| Group(place.get_or_init(|| group.0)) == group;
        if self.way(name).any(took) { group } else { self.other() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_bound_are_other() {
        let groups = Groups::new(2);
        for _ in 0..2 {
            for (name, group) in [("route a", "route a"), ("route b", "route b"), ("route c", "other")] {
                assert_eq!(groups.named(name).name(), group);
            }
        }
        assert!(!Group::all().iter().any(|group| group.name() == "route c"));
        assert_eq!(Groups::new(0).named("route d").name(), "other");
    }

    #[test]
    fn a_long_name_takes_one_place() {
        let groups = Groups::new(2);
        let long = "PROPFIND".repeat(10_000);
        let group = groups.named(&long);
        assert_eq!((group.name().len(), groups.named(&long)), (crate::core::group::MAX_NAME, group));
        assert_eq!(groups.known.iter().filter(|place| place.get().is_some()).count(), 1);
    }
}
