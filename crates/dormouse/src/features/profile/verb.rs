//! `profile`: the profiles that clients have requested.
//!
//! A profile belongs to its connection, as a watch does: the agent drops it with the client, which
//! ends it. Reports are fetched one by one, and a report is sent in parts, so for a slow or silent
//! client one snapshot of a profile is kept here, which is bounded as the table of stacks is.
//!
//! # Cost
//!
//! Beginning takes a few system calls for each thread of the service, on a thread of ours for which
//! the agent waits; a snapshot takes a copy of the table. Other clients wait meanwhile; threads of
//! the host do not.

use dormouse_keys::Key;
use dormouse_profile::Profile;
use dormouse_protocol::{Code, ProfileBegun, ProfilePart, ProfileReportRequest, ProfileRequest, WireError};

use super::{ProfileError, ProfileRun, ProfileSpec};
use crate::agent::{Answered, Asked, Client, ClientState};
use crate::core::asleep::{Part, check};

/// Profiles of one client, and of all.
const MAX_PROFILES: usize = 4;
const MAX_IN_ALL: usize = 16;

/// Rows of a profile in one answer: some hundred bytes each as text.
const ROWS: usize = 4096;

/// A profile of a client.
#[derive(Debug)]
struct ClientProfile {
    number: u32,
    run: ProfileRun,
    /// The reading of which the client has had some parts.
    look: Option<Profile>,
}

impl ClientState for ClientProfile {
    fn what(&self) -> String {
        "takes a profile".to_owned()
    }

    fn keys(&self) -> Vec<&'static Key> {
        self.run.keys().collect()
    }

    fn shared_keys(&self) -> Vec<&'static Key> {
        self.run.shared_keys().to_vec()
    }
}

/// Ends the profiles of all clients.
pub(crate) fn end_all(clients: &mut [Client]) {
    for client in clients {
        client.states.end::<ClientProfile>();
    }
}

/// Whether a client takes a profile.
pub(crate) fn has_any(clients: &[Client]) -> bool {
    clients.iter().any(|client| client.states.get::<ClientProfile>().is_some())
}

impl Answered for ProfileRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<ProfileBegun, WireError> {
        check(Part::Profiles)?;
        let all = asked.clients.iter().flat_map(|client| client.states.all::<ClientProfile>()).count();
        let states = &mut asked.client().states;
        if states.all::<ClientProfile>().count() >= MAX_PROFILES || all >= MAX_IN_ALL {
            let message = format!(
                "a connection may have {MAX_PROFILES} profiles and all together {MAX_IN_ALL}: end one of them"
            );
            return Err(WireError::new(Code::Busy, message));
        }
        let run = ProfileRun::start(&ProfileSpec::of(&self)).map_err(wire_error)?;
        let number = states.all::<ClientProfile>().last().map_or(1, |last| last.number + 1);
        states.add(ClientProfile { number, run, look: None });
        Ok(ProfileBegun { number })
    }
}

impl Answered for ProfileReportRequest {
    /// A part of what one of the profiles has seen.
    fn answer(self, asked: &mut Asked<'_>) -> Result<ProfilePart, WireError> {
        check(Part::Profiles)?;
        let Self { number, from } = self;
        let mut profiles = asked.client().states.all_mut::<ClientProfile>();
        let Some(profile) = profiles.find(|profile| profile.number == number) else {
            let message = format!("this connection has no profile {number}");
            return Err(WireError::new(Code::NoProfile, message));
        };
        if from == 0 {
            profile.look = Some(profile.run.read());
        }
        let Some(look) = &mut profile.look else {
            return Err(WireError::new(Code::NoProfile, "no look at this profile goes on: begin with row 0"));
        };
        let part = ProfilePart::of(look, from, ROWS);
        if part.next.is_none() {
            profile.look = None;
        }
        Ok(part)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn wire_error(why: ProfileError) -> WireError {
    let code = match why {
        ProfileError::Globs(_) => Code::BadGlob,
        ProfileError::NoGroup { .. } => Code::NoGroup,
        ProfileError::Rate { .. } => Code::BadRequest,
        ProfileError::Unavailable(_) => Code::NoProfile,
    };
    let near = match &why {
        ProfileError::NoGroup { groups, .. } => groups.iter().map(|&name| name.to_owned()).collect(),
        _ => Vec::new(),
    };
    WireError { near, ..WireError::new(code, why.to_string()) }
}
