//! Profiles of a service, as its agent takes them.

use dormouse::profile::Profile;
use dormouse_protocol::{ProfileBegun, ProfilePart, ProfileReportRequest, ProfileRequest};

use super::Client;
use super::room::AnswerRoom;
use crate::exit::Outcome;

/// The most rows of a profile that are read: far more than an agent keeps.
const MAX_ROWS: usize = 16 << 20;

/// Has the agent begin a profile, which ends with the connection; its number.
pub(crate) fn begin(client: &mut Client, request: &ProfileRequest) -> Outcome<u32> {
    let begun: ProfileBegun = client.call(request.clone())?;
    Ok(begun.number)
}

/// The profile so far.
pub(crate) fn read(client: &mut Client, number: u32) -> Outcome<Profile> {
    let mut from = 0;
    let mut whole = Profile::default();
    // The one that was read before is there until this one is whole.
    let _before = client.keep_room();
    let mut rooms: Option<AnswerRoom> = None;
    loop {
        let answer: ProfilePart = client.call(ProfileReportRequest { number, from })?;
        AnswerRoom::collect(&mut rooms, client.keep_room());
        let next = answer.next;
        if from == 0 {
            whole = answer.part;
        } else {
            answer.join(&mut whole);
        }
        let rows = whole.stacks.len() + whole.samples.len() + whole.timeline.len();
        match next {
            None => {
                client.hold_room(rooms);
                return Ok(whole);
            }
            // Each part brings something, up to a bound.
            Some(next) if next > from && rows <= MAX_ROWS => from = next,
            Some(_) => return Err(client.nonsense("a profile without an end")),
        }
    }
}
