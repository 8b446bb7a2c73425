//! The requested objectives.

use std::str::FromStr;

use dormouse::keys::Selector;
use dormouse_protocol::{GroupObjective, ObjectivesRequest};

use crate::client::Client;
use crate::exit::Outcome;
use crate::text::read_by_text;

/// Objectives of groups: `GET /*: 99.9% < 250ms; POST *: 99% < 1s`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObjectiveList(Vec<GroupObjective>);

impl FromStr for ObjectiveList {
    type Err = String;

    fn from_str(list: &str) -> Result<ObjectiveList, String> {
        let all = GroupObjective::list(list).map_err(|why| why.to_string())?;
        for of in &all {
            Selector::parse(&of.groups).map_err(|why| format!("the objective `{of}`: {why}"))?;
        }
        Ok(ObjectiveList(all))
    }
}

read_by_text!(ObjectiveList);

impl ObjectiveList {
    /// Has a service count its requests by them as long as the conversation lasts.
    pub(crate) fn ask(&self, client: &mut Client) -> Outcome<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let objectives = self.0.iter().map(ToString::to_string).collect();
        client.call(ObjectivesRequest { objectives }).map(drop)
    }

    /// Whether there is any.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
