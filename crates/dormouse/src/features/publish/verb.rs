//! Publishing for a client that has the key on.

use dormouse_keys::Key;
use dormouse_protocol::{Code, WireError};

use super::{KEY_NAME, Publishing};
use crate::agent::{Client, ClientState, Companion};

/// Threads publish behind the key, and the process has a page as long as a client holds the key.
pub(crate) const COMPANION: Companion = Companion {
    key: KEY_NAME,
    is_clients: "groups are published as long as a client is connected: leave out `keep` and `for`, or start \
                 the service with DORMOUSE_PUBLISH=1",
    begin,
    end: |client| client.states.end::<Publishing>(),
};

impl ClientState for Publishing {
    fn what(&self) -> String {
        "has the process context published".to_owned()
    }

    fn keys(&self) -> Vec<&'static Key> {
        Publishing::keys(self).to_vec()
    }
}

fn begin(client: &mut Client) -> Result<(), WireError> {
    if client.states.get::<Publishing>().is_none() {
        let publishing =
            Publishing::for_client().map_err(|why| WireError::new(Code::Keys, why.to_string()))?;
        client.states.add(publishing);
    }
    Ok(())
}
