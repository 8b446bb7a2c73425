//! The places where tasks wait, for a client that requests them part by part.

use dormouse_protocol::{PlaceRow, PlacesPart};
use dormouse_waits::places::{self, place_coverage};

use crate::core::rows::place_row;

/// Places in one answer: half a kilobyte each as text.
const PLACES: usize = 512;

/// The places from this number on.
pub(crate) fn part(from: u32) -> PlacesPart {
    let missing = place_coverage();
    let mut places: Vec<PlaceRow> = places::places(from).take(PLACES + 1).map(place_row).collect();
    let next = places.get(PLACES).map(|next| next.number);
    places.truncate(PLACES);
    PlacesPart { places, unknown: missing.unknown, no_room: missing.no_room, next }
}
