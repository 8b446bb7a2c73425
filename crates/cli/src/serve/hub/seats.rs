//! Which services are served when there are more than seats.
//!
//! 1. Those of this user and of root come first.
//! 2. Other users share the rest: each gets one seat in turn, until there are none. So a user with
//!    a thousand processes takes none of another user's.
//! 3. Within a user, those that have answered come first, and those that were given time to and
//!    have not come last.
//!
//! The choice is made anew from each list of processes, so a seat that somebody with a better claim
//! needs becomes free with the next one.

use std::collections::{BTreeMap, BTreeSet};

use super::Identity;
use crate::user;

/// A process that could have a seat.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) identity: Identity,
    pub(super) uid: u32,
    pub(super) standing: Standing,
}

/// The standing of a process among those of its user, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    Answers,
    New,
    /// It had time to say hello, and has not.
    Mute,
}

/// Chooses the processes that get the seats.
pub(super) fn choose(candidates: &[Candidate], seats: usize) -> BTreeSet<Identity> {
    let mut of_users: BTreeMap<u32, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        of_users.entry(candidate.uid).or_default().push(*candidate);
    }
    let mut claims = Vec::new();
    for (uid, mut own) in of_users {
        own.sort_by_key(|candidate| (candidate.standing, candidate.identity));
        let is_other = user::distance(uid) > 1;
        // The turn in which it gets a seat: all of this user and root in the first.
        claims.extend(own.iter().zip(1..).map(|(of, turn)| (if is_other { turn } else { 0 }, of.identity)));
    }
    claims.sort_unstable();
    claims.into_iter().take(seats).map(|(_, identity)| identity).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(uid: u32, pids: std::ops::Range<u32>, standing: Standing) -> impl Iterator<Item = Candidate> {
        pids.map(move |pid| Candidate { identity: (pid, 1), uid, standing })
    }

    #[test]
    fn one_user_takes_no_seat_of_others() {
        let [eve, bob] = [40_001, 40_002];
        let mut all: Vec<_> = some(eve, 1..1100, Standing::New).collect();
        assert_eq!(choose(&all, 1024).len(), 1024);
        all.extend(some(0, 2000..2003, Standing::New).chain(some(bob, 3000..3010, Standing::Mute)));
        let chosen = choose(&all, 1024);
        assert_eq!(chosen.len(), 1024);
        assert!((2000..2003).chain(3000..3010).all(|pid| chosen.contains(&(pid, 1))));
    }

    #[test]
    fn those_that_answer_keep_their_seats() {
        let eve = 40_001;
        let all: Vec<_> = some(eve, 1..5, Standing::Mute)
            .chain(some(eve, 5..7, Standing::New))
            .chain(some(eve, 7..9, Standing::Answers))
            .collect();
        let chosen = |seats| choose(&all, seats).into_iter().map(|(pid, _)| pid).collect::<Vec<_>>();
        assert_eq!(chosen(3), [5, 7, 8]);
        assert_eq!(chosen(5), [1, 5, 6, 7, 8]);
    }
}
