//! The profiles that clients have requested.
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

use dormouse_profile::Profile;
use dormouse_protocol::{Code, ProfileBegun, ProfilePart, ProfileRequest, WireError};

use crate::features::profile::{ProfileError, ProfileRun, ProfileSpec};

/// Profiles of one client, and of all.
const MAX_PROFILES: usize = 4;
const MAX_IN_ALL: usize = 16;

/// Rows of a profile in one answer: some hundred bytes each as text.
const ROWS: usize = 4096;

/// A profile of a client.
#[derive(Debug)]
pub(super) struct ClientProfile {
    number: u32,
    pub(super) run: ProfileRun,
    /// The look of which the client has had some parts.
    look: Option<Profile>,
}

/// Begins a client's profile, if its own profiles and those of `all` clients are not too many.
pub(super) fn begin(
    profiles: &mut Vec<ClientProfile>,
    all: usize,
    wish: &ProfileRequest,
) -> Result<ProfileBegun, WireError> {
    if profiles.len() >= MAX_PROFILES || all >= MAX_IN_ALL {
        let message = format!(
            "a connection may have {MAX_PROFILES} profiles and all together {MAX_IN_ALL}: end one of them"
        );
        return Err(WireError::new(Code::Busy, message));
    }
    let run = ProfileRun::start(&spec(wish)).map_err(refusal)?;
    let number = profiles.last().map_or(1, |last| last.number + 1);
    profiles.push(ClientProfile { number, run, look: None });
    Ok(ProfileBegun { number })
}

/// A part of what one of these profiles has seen.
pub(super) fn report(
    profiles: &mut [ClientProfile],
    number: u32,
    from: u64,
) -> Result<ProfilePart, WireError> {
    let Some(profile) = profiles.iter_mut().find(|profile| profile.number == number) else {
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

fn spec(wish: &ProfileRequest) -> ProfileSpec {
    let mut spec = ProfileSpec::new(wish.kind);
    if let Some(hz) = wish.hz {
        spec = spec.hz(hz);
    }
    if let Some(bytes) = wish.bytes {
        spec = spec.bytes(bytes);
    }
    if wish.live {
        spec = spec.live();
    }
    if wish.unwind {
        spec = spec.unwind();
    }
    if wish.timeline {
        spec = spec.timeline();
    }
    if let Some(groups) = &wish.group {
        spec = spec.groups(groups);
    }
    spec
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn refusal(why: ProfileError) -> WireError {
    let code = match why {
        ProfileError::Globs(_) => Code::BadGlob,
        ProfileError::NoGroup { .. } => Code::NoGroup,
        ProfileError::Rate { .. } | ProfileError::Unwind { .. } => Code::BadRequest,
        ProfileError::Unavailable(_) => Code::NoProfile,
    };
    let near = match &why {
        ProfileError::NoGroup { groups, .. } => groups.iter().map(|&name| name.to_owned()).collect(),
        _ => Vec::new(),
    };
    WireError { near, ..WireError::new(code, why.to_string()) }
}
