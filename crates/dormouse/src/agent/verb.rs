//! Requests, and the agent's answers.

use dormouse_protocol::{Code, Each, Memory, Op, PROTOCOL, Request, Verb, WireError, for_each_verb};
use serde::Deserialize;

use super::client::Client;
use super::place::Place;
use super::request::bad;
use super::state::ClientState;
use crate::core::asleep::asleep;
use crate::core::memory;

/// One client's request, among all clients.
pub(crate) struct Asked<'a> {
    pub(crate) clients: &'a mut [Client],
    pub(crate) at: usize,
    pub(crate) place: &'a Place,
    pub(crate) companions: &'static [Companion],
}

impl Asked<'_> {
    pub(crate) fn client(&mut self) -> &mut Client {
        &mut self.clients[self.at]
    }
}

/// The work of a feature for a client that holds its key: the key alone does nothing.
#[derive(Debug)]
pub(crate) struct Companion {
    /// The name of the key.
    pub(crate) key: &'static str,
    /// The refusal for a client that wants the key on for longer than it is connected.
    pub(crate) is_clients: &'static str,
    /// Begins, unless the client has it already.
    pub(crate) begin: fn(&mut Client) -> Result<(), WireError>,
    pub(crate) end: fn(&mut Client),
}

/// An operation as the agent carries it out.
pub(crate) trait Answered: Verb {
    fn answer(self, asked: &mut Asked<'_>) -> Result<Self::Answer, WireError>;
}

/// The fields that every version of the protocol has: they distinguish another version from
/// garbage.
#[derive(Deserialize)]
struct Envelope {
    v: u32,
    #[serde(default)]
    id: u64,
}

/// Answers one line of a client. A line that is no request closes the connection.
pub(super) fn answer(mut asked: Asked<'_>, line: &[u8]) {
    let (id, op) = match read(line) {
        Ok(Request { id, op, .. }) => (id, op),
        Err((id, why)) => return asked.client().refuse(id, why),
    };
    if asked.client().greeted.is_none() && !matches!(op, Op::Hello(_)) {
        return asked.client().refuse(id, bad("the first request of a connection is `hello`"));
    }
    macro_rules! carry_out {
        ($($name:ident($module:ident::$request:ident),)*) => {
            match op {
                $(Op::$name(request) => asked.carry_out(id, request),)*
            }
        };
    }
    for_each_verb!(carry_out);
}

/// The request in a line, else the refusal with the request's id.
fn read(line: &[u8]) -> Result<Request, (u64, WireError)> {
    let Envelope { v, id } = serde_json::from_slice(line).map_err(|why| {
        (0, bad(format!(
            "not a request ({why}): a request is one line as {{\"v\":1,\"id\":1,\"op\":\"hello\",\"client\":\"…\"}}"
        )))
    })?;
    if v != PROTOCOL {
        let message = format!(
            "this service speaks protocol {PROTOCOL} (dormouse {}), the request is of protocol {v}: use a matching dormouse command",
            env!("CARGO_PKG_VERSION")
        );
        return Err((id, WireError::new(Code::Version, message)));
    }
    serde_json::from_slice(line).map_err(|why| (id, bad(format!("not a request: {why}"))))
}

impl Asked<'_> {
    fn carry_out<V: Answered>(&mut self, id: u64, request: V) {
        if !has_memory(V::MEMORY, self.client()) {
            self.client().gone = true;
            return;
        }
        let refusal = asleep().filter(|_| !V::WHILE_ASLEEP);
        let refusal = refusal.map(|asleep| WireError::new(Code::Asleep, format!("dormouse is {asleep}")));
        let answer = refusal.map_or_else(|| request.answer(self), Err);
        self.client().answer(id, answer);
    }
}

/// Whether the memory that an operation needs is there, with the keys, groups and threads that the
/// service has now.
fn has_memory(needs: Memory, client: &Client) -> bool {
    memory::is_there(needs.bytes)
        && needs.each.iter().all(|each| match each {
            Each::Key => memory::is_there_for_keys(),
            Each::Group => memory::is_there_for_groups(),
            Each::Thread => memory::is_there_for_threads(),
            Each::GroupTimes => memory::is_there(client.states.iter().map(ClientState::answer_bytes).sum()),
            Each::GroupWithTimes => memory::is_there(memory::of_times()),
            Each::LockLine => memory::is_there(memory::of_locks()),
        })
}
