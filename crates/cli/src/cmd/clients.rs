//! `dormouse clients`: who looks into a service, and what it does for each.

use dormouse_protocol::{ClientRow, Clients, ClientsRequest};
use serde::{Deserialize, Serialize};

use crate::client::session::Subject;
use crate::duration::short;
use crate::exit::{Exit, Outcome};
use crate::output::{Context, HEAD};
use crate::render::table::Table;
use crate::text::{clean, count};
use crate::verb::Asked;
#[cfg(feature = "serve")]
use crate::verb::Offer;

/// List who is connected to a service, and what it does for each
///
/// DOES is what the service does for a client until it disconnects, and what may cost it something:
/// it counts, takes times of tasks or a profile, watches, traces, holds keys on.
#[derive(Debug, clap::Args, Deserialize)]
pub(crate) struct Request {}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Document<'a> {
    pid: u32,
    #[serde(flatten)]
    answer: &'a Clients,
}

impl Asked for Request {
    const NAME: &'static str = "clients";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::reading::<Self>());

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        let mut session = subject.session(context.patience)?;
        let answer = session.call(ClientsRequest {})?;
        if context.json {
            context.document(&Document { pid: session.pid(), answer: &answer })?;
        } else {
            context.text(table(&answer.clients).render(HEAD))?;
        }
        Ok(Exit::Ok)
    }
}

fn table(clients: &[ClientRow]) -> Table {
    let mut table = Table::new([">PID", ">UID", "CLIENT", ">CONNECTED", "DOES"]);
    for client in clients {
        let does = if client.asks { "lists this".to_owned() } else { does(client) };
        table.row([
            client.pid.to_string(),
            client.uid.to_string(),
            clean(&client.client),
            short(client.connected_ms.saturating_mul(1_000_000)),
            does,
        ]);
    }
    table
}

fn does(client: &ClientRow) -> String {
    let keys = (client.keys > 0).then(|| format!("holds {} on", count(client.keys as u64, "key")));
    let all: Vec<String> = client.does.iter().map(|what| clean(what)).chain(keys).collect();
    if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_shows_what_is_done_for_it() {
        let idle = ClientRow { pid: 7, client: "dormouse keys 0.1.0".into(), ..ClientRow::default() };
        let busy = ClientRow {
            does: vec!["counts task-clock".into(), "takes times of tasks".into()],
            keys: 1,
            connected_ms: 3_200,
            ..idle.clone()
        };
        let asks = ClientRow { asks: true, ..idle.clone() };
        let text = anstream::adapter::strip_str(&table(&[idle, busy, asks]).render(HEAD)).to_string();
        assert_eq!(
            text,
            "\
PID  UID  CLIENT               CONNECTED  DOES
  7    0  dormouse keys 0.1.0       0 ns  nothing
  7    0  dormouse keys 0.1.0     3.20 s  counts task-clock, takes times of tasks, holds 1 key on
  7    0  dormouse keys 0.1.0       0 ns  lists this
"
        );
    }
}
