//! Which services get a session when there are more services than sessions.
//!
//! 1. Those of this user and of root come first.
//! 2. Other users share the rest: each gets one session in turn, until there are none left. So a
//!    user with a thousand processes takes no session from another user.
//! 3. Within a user, services that have answered come first, and services that had time to answer
//!    and have not come last.
//!
//! The choice is made anew from each list of processes, so a service that comes later and has a
//! better claim gets its session at the next list.

use std::collections::{BTreeMap, BTreeSet};

use super::Identity;
use crate::user;

/// A process that could have a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) identity: Identity,
    pub(super) uid: u32,
    pub(super) priority: Priority,
}

/// The priority of a process among those of its user, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Priority {
    Answers,
    New,
    /// It had time to say hello, and has not.
    Mute,
}

/// Chooses the processes that get the sessions.
pub(super) fn choose(candidates: &[Candidate], sessions: usize) -> BTreeSet<Identity> {
    let mut of_users: BTreeMap<u32, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        of_users.entry(candidate.uid).or_default().push(*candidate);
    }
    let mut claims = Vec::new();
    for (uid, mut own) in of_users {
        own.sort_by_key(|candidate| (candidate.priority, candidate.identity));
        let is_other = user::distance(uid) > 1;
        // The turn in which it gets a session: all of this user and root in the first.
        claims.extend(own.iter().zip(1..).map(|(of, turn)| (if is_other { turn } else { 0 }, of.identity)));
    }
    claims.sort_unstable();
    claims.into_iter().take(sessions).map(|(_, identity)| identity).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(uid: u32, pids: std::ops::Range<u32>, priority: Priority) -> impl Iterator<Item = Candidate> {
        pids.map(move |pid| Candidate { identity: (pid, 1), uid, priority })
    }

    #[test]
    fn one_user_takes_no_session_of_others() {
        let [eve, bob] = [40_001, 40_002];
        let mut all: Vec<_> = some(eve, 1..1100, Priority::New).collect();
        assert_eq!(choose(&all, 1024).len(), 1024);
        all.extend(some(0, 2000..2003, Priority::New).chain(some(bob, 3000..3010, Priority::Mute)));
        let chosen = choose(&all, 1024);
        assert_eq!(chosen.len(), 1024);
        assert!((2000..2003).chain(3000..3010).all(|pid| chosen.contains(&(pid, 1))));
    }

    #[test]
    fn those_that_answer_keep_their_sessions() {
        let eve = 40_001;
        let all: Vec<_> = some(eve, 1..5, Priority::Mute)
            .chain(some(eve, 5..7, Priority::New))
            .chain(some(eve, 7..9, Priority::Answers))
            .collect();
        let chosen = |sessions| choose(&all, sessions).into_iter().map(|(pid, _)| pid).collect::<Vec<_>>();
        assert_eq!(chosen(3), [5, 7, 8]);
        assert_eq!(chosen(5), [1, 5, 6, 7, 8]);
    }
}
