//! `watch` and `slots`: watches for clients, and the holders of the debug registers.

use dormouse_breakpoints::{self as breakpoints, HeldSlot};
use dormouse_protocol::{
    Code, HeldBy, SlotOwner, SlotRow, SlotsAnswer, SlotsRequest, WatchReportRequest, WatchRequest, WatchRow,
    Watching, WireError,
};
use dormouse_sys::perf;

use super::client::{ClientWatch, SPARE, group_name};
use crate::agent::{Answered, Asked, Client, Peer};
use crate::core::asleep::{Part, check};
use crate::core::group::Group;

/// Watches of one client: more than there are registers, since flexible ones share them.
const MAX_WATCHES: usize = 16;

/// Watches of all clients.
const MAX_IN_ALL: usize = 64;

/// The most hits a second that a client may ask for: each takes a thread of the service ten
/// microseconds. (The service's own code may ask for more.)
const MAX_RATE: u32 = 50_000;

/// Ends the watches of all clients.
pub(crate) fn end_all(clients: &mut [Client]) {
    for client in clients {
        client.states.end::<ClientWatch>();
    }
}

/// Whether a client has a watch.
pub(crate) fn has_any(clients: &[Client]) -> bool {
    clients.iter().any(|client| watches(client) > 0)
}

impl Answered for WatchRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<Watching, WireError> {
        check(Part::Watches)?;
        let all = asked.clients.iter().map(watches).sum::<usize>();
        if watches(asked.client()) >= MAX_WATCHES || all >= MAX_IN_ALL {
            let message = format!(
                "a connection may have {MAX_WATCHES} watches and all together {MAX_IN_ALL}: end one of them"
            );
            return Err(WireError::new(Code::Busy, message));
        }
        if self.rate_per_s.is_some_and(|rate| rate > MAX_RATE) {
            let message =
                format!("a service is interrupted for at most {MAX_RATE} hits per second: ask for fewer");
            return Err(WireError::new(Code::BadWatch, message));
        }
        if self.rate_per_s == Some(0) || self.max_hits == Some(0) {
            let message = "a rate or a maximum of 0 hits shows none: ask for 1 or more";
            return Err(WireError::new(Code::BadWatch, message));
        }
        if self.name.contains(char::is_control) {
            return Err(WireError::new(Code::BadWatch, "the name of a watch has a control character"));
        }
        let group = self.group.as_deref().map(group_id).transpose()?;
        let watch = ClientWatch::arm(&self, group).map_err(|why| wire_error(&why, asked.clients))?;
        let answer = Watching { number: watch.number() };
        asked.client().states.add(watch);
        Ok(answer)
    }
}

impl Answered for WatchReportRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<WatchRow, WireError> {
        check(Part::Watches)?;
        let Self { number } = self;
        let watch = asked.client().states.all_mut().find(|watch: &&mut ClientWatch| watch.number() == number);
        let none = || WireError::new(Code::BadWatch, format!("this connection has no watch {number}"));
        watch.map(ClientWatch::report).ok_or_else(none)
    }
}

impl Answered for SlotsRequest {
    /// The watches that take registers, with their holders.
    fn answer(self, asked: &mut Asked<'_>) -> Result<SlotsAnswer, WireError> {
        let row = |held: HeldSlot| SlotRow {
            holder: owner(held.number, asked.clients),
            number: held.number,
            name: held.name,
            registers: held.slots,
            group: held.group.and_then(group_name),
            flexible: held.is_flexible,
        };
        Ok(SlotsAnswer {
            registers: breakpoints::registers(),
            spare: SPARE,
            held: breakpoints::held().into_iter().map(row).collect(),
        })
    }
}

/// How many watches a client has.
fn watches(client: &Client) -> usize {
    client.states.all::<ClientWatch>().count()
}

/// The number of a group that is there: a client makes none.
fn group_id(name: &str) -> Result<u32, WireError> {
    let all = Group::all();
    all.iter().find(|group| group.name() == name).map(|group| group.id()).ok_or_else(|| WireError {
        near: all.iter().map(|group| group.name().to_owned()).collect(),
        ..WireError::new(
            Code::NoGroup,
            format!("no group is named {name:?}; a group is there from its first task on"),
        )
    })
}

/// The holder of a watch: a client of this agent, or else the service's own code.
fn owner(number: u32, clients: &[Client]) -> SlotOwner {
    let has = |client: &&Client| client.states.all().any(|watch: &ClientWatch| watch.number() == number);
    match clients.iter().find(has).map(|client| client.peer) {
        Some(Peer { uid, pid }) => SlotOwner { by: HeldBy::Client, uid, pid },
        None => SlotOwner { by: HeldBy::Service, uid: rustix::process::geteuid().as_raw(), pid: 0 },
    }
}

fn wire_error(why: &breakpoints::Error, clients: &[Client]) -> WireError {
    use breakpoints::Error as E;
    let message = match why {
        E::NoRegister { name, asked, free, holders } if !holders.is_empty() => {
            let holder = |held: &HeldSlot| {
                let SlotOwner { by, uid, pid } = owner(held.number, clients);
                match by {
                    // No watch, but the register that is left to debuggers.
                    _ if held.number == 0 => held.name.clone(),
                    HeldBy::Client => format!("{} ({}, process {pid} of user {uid})", held.name, held.slots),
                    _ => format!("{} ({}, the service)", held.name, held.slots),
                }
            };
            let holders: Vec<String> = holders.iter().map(holder).collect();
            let registers = if *asked == 1 { "debug register" } else { "debug registers" };
            format!(
                "{name} needs {asked} {registers}, and {free} are free: release {}",
                holders.join(", or ")
            )
        }
        E::Thread { tid, thread, source } if thread.is_empty() => {
            format!("thread {tid} cannot be watched, so no thread is: {source}")
        }
        _ => why.to_string(),
    };
    let code = match why {
        E::Unwatchable { .. } => Code::BadWatch,
        E::Processor
        | E::Filtered
        | E::Signal(_)
        | E::Copies(_)
        | E::Thread {
            source:
                perf::Error::Denied { .. }
                | perf::Error::NoEvents(_)
                | perf::Error::NoPmu(_)
                | perf::Error::TooOld { .. },
            ..
        } => Code::NoWatching,
        E::NoRegister { .. } | E::Thread { source: perf::Error::NoSlot(_), .. } => Code::NoSlot,
        // At another moment it may do.
        _ => Code::Busy,
    };
    WireError::new(code, message)
}
