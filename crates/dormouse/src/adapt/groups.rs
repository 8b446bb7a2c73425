//! The groups of one layer, or of one middleware: limits how many groups clients can create.

use crate::core::group::{Group, cut};
use crate::core::registry::{OTHER, Place};

/// The default limit of groups that a layer makes.
pub const DEFAULT_BOUND: usize = 64;

/// The groups of one layer, in the order of their first requests. A service has few routes, so a
/// look through them beats a map behind a lock that all workers share.
#[derive(Debug)]
pub(in crate::adapt) struct Groups {
    /// Filled from the front.
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
        for place in &self.known {
            match place.get() {
                Some(group) if group.name == name => return Group(group),
                Some(_) => {}
                None => return self.add(name),
            }
        }
        self.other()
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
        if self.known.iter().any(took) { group } else { self.other() }
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
        assert!(groups.known[1].get().is_none());
    }
}
