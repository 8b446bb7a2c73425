//! Profiles of a service, as its agent takes them.

use dormouse::profile::Profile;
use dormouse::wire::{Hello, Op, ProfileBegun, ProfilePart, ProfileWish};

use super::Client;
use crate::exit::{Exit, Failure, Outcome};

/// The most rows of a profile that are read: far more than an agent keeps.
const MAX_ROWS: usize = 16 << 20;

/// Has the agent begin a profile, which ends with the connection; its number.
pub(crate) fn begin(client: &mut Client, hello: &Hello, wish: &ProfileWish) -> Outcome<u32> {
    if !hello.ops.iter().any(|op| op == "profile") {
        let message = format!("its dormouse ({}) knows no profiles", hello.version);
        return Err(Failure::new(Exit::Unsupported, message).hint("build the service with a newer dormouse"));
    }
    let begun: ProfileBegun = client.call(Op::Profile(wish.clone()))?;
    Ok(begun.number)
}

/// The profile so far.
pub(crate) fn read(client: &mut Client, number: u32) -> Outcome<Profile> {
    let mut from = 0;
    let mut whole = Profile::default();
    loop {
        let answer: ProfilePart = client.call(Op::ProfileReport { number, from })?;
        let next = answer.next;
        if from == 0 {
            whole = answer.part;
        } else {
            answer.join(&mut whole);
        }
        let rows = whole.stacks.len() + whole.samples.len() + whole.timeline.len();
        match next {
            None => return Ok(whole),
            // Each part brings something, up to a bound.
            Some(next) if next > from && rows <= MAX_ROWS => from = next,
            Some(_) => return Err(client.nonsense("a profile without an end")),
        }
    }
}
