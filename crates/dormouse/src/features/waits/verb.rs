//! `waits` and `places`: times of tasks that a client has taken, and the places where tasks wait.

use dormouse_keys::Key;
use dormouse_protocol::{PlaceRow, PlacesPart, PlacesRequest, WaitsBegun, WaitsRequest, WireError};
use dormouse_waits::places::{self, place_coverage};

use super::taking::ClientWaits;
use crate::agent::request::wire_error;
use crate::agent::{Answered, Asked, ClientState};
use crate::core::asleep::{Part, check};
use crate::core::memory;
use crate::core::rows::place_row;

/// Places in one answer: half a kilobyte each as text.
const PLACES: usize = 512;

impl ClientState for ClientWaits {
    fn what(&self) -> String {
        "takes times of tasks".to_owned()
    }

    fn keys(&self) -> Vec<&'static Key> {
        ClientWaits::keys(self).to_vec()
    }

    fn answer_bytes(&self) -> usize {
        memory::of_times()
    }

    fn ends_with_memory(&self) -> bool {
        true
    }
}

impl Answered for WaitsRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<WaitsBegun, WireError> {
        check(Part::Times)?;
        let (waits, answer) = ClientWaits::begin(self).map_err(wire_error)?;
        // This ends what the client had taken before.
        asked.client().states.set(waits);
        Ok(answer)
    }
}

impl Answered for PlacesRequest {
    fn answer(self, _: &mut Asked<'_>) -> Result<PlacesPart, WireError> {
        Ok(places_part(self.from))
    }
}

/// The places from this number on.
pub(crate) fn places_part(from: u32) -> PlacesPart {
    let missing = place_coverage();
    let mut places: Vec<PlaceRow> = places::places(from).take(PLACES + 1).map(place_row).collect();
    let next = places.get(PLACES).map(|next| next.number);
    places.truncate(PLACES);
    PlacesPart {
        places,
        unknown: missing.unknown,
        unlearned: missing.unlearned,
        no_room: missing.no_room,
        next,
    }
}
