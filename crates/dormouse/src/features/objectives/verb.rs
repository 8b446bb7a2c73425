//! `objectives`: the objectives of a client, which end with its connection.

use dormouse_keys::Key;
use dormouse_protocol::{GroupObjective, ObjectivesBegun, ObjectivesRequest, WireError};

use super::{Objectives, ObjectivesError, chosen};
use crate::agent::request::{bad, wire_error};
use crate::agent::{Answered, Asked, ClientState};
use crate::core::asleep::{Part, check};

impl ClientState for Objectives {
    fn what(&self) -> String {
        "counts requests by objectives".to_owned()
    }

    fn keys(&self) -> Vec<&'static Key> {
        Objectives::keys(self).to_vec()
    }

    fn ends_with_memory(&self) -> bool {
        true
    }
}

impl Answered for ObjectivesRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<ObjectivesBegun, WireError> {
        check(Part::Times)?;
        let states = &mut asked.client().states;
        if self.objectives.is_empty() {
            states.end::<Objectives>();
            return Ok(ObjectivesBegun { groups: 0 });
        }
        let read: Result<Vec<GroupObjective>, _> = self.objectives.iter().map(|text| text.parse()).collect();
        let begun = read.map_err(ObjectivesError::from).and_then(chosen).and_then(Objectives::start);
        let objectives = begun.map_err(|why| match why {
            ObjectivesError::Keys(why) => wire_error(why),
            why => bad(why.to_string()),
        })?;
        let groups = objectives.groups();
        // This ends what the client had counted before.
        states.set(objectives);
        Ok(ObjectivesBegun { groups })
    }
}
