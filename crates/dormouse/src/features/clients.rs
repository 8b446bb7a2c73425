//! `clients`: who is connected, and what the agent does for each.

use dormouse_protocol::{ClientRow, Clients, ClientsRequest, WireError};

use crate::agent::{Answered, Asked, Client, ClientState, Peer};

impl Answered for ClientsRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<Clients, WireError> {
        let at = asked.at;
        let row = |(number, client)| ClientRow { asks: number == at, ..row(client) };
        Ok(Clients { clients: asked.clients.iter().enumerate().map(row).collect() })
    }
}

fn row(client: &Client) -> ClientRow {
    let Peer { uid, pid } = client.peer;
    let traces = client.is_streaming().then(|| "traces".to_owned());
    ClientRow {
        uid,
        pid,
        client: client.name.clone(),
        connected_ms: u64::try_from(client.since.elapsed().as_millis()).unwrap_or(u64::MAX),
        asks: false,
        does: client.states.iter().map(ClientState::what).chain(traces).collect(),
        keys: client.held(),
    }
}
