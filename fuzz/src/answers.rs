//! An agent's answer becomes what the command expects or an error, and can be written again.

use dormouse::wire;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes are an answer, of whichever kind.
///
/// # Panics
///
/// When an answer that was read cannot be read again after it was written.
pub fn check(bytes: &[u8]) {
    again::<wire::Hello>(bytes);
    again::<wire::Keys>(bytes);
    again::<wire::Changed>(bytes);
    again::<wire::Tracing>(bytes);
    again::<wire::Note>(bytes);
    again::<wire::Notice>(bytes);
    again::<wire::Stat>(bytes);
    again::<wire::Events>(bytes);
    again::<wire::CountAnswer>(bytes);
    again::<wire::WaitsBegun>(bytes);
    again::<wire::PlacesPart>(bytes);
    again::<wire::TasksPart>(bytes);
    again::<wire::LongPollsPart>(bytes);
    again::<wire::ProfileBegun>(bytes);
    again::<wire::ProfilePart>(bytes);
    again::<wire::Watching>(bytes);
    again::<wire::WatchRow>(bytes);
    again::<wire::SlotsAnswer>(bytes);
    again::<wire::RecordAnswer>(bytes);
    again::<wire::TriggersAnswer>(bytes);
    again::<wire::Doctor>(bytes);
    again::<wire::FileHead>(bytes);
    again::<wire::FileMappings>(bytes);
}

fn again<T: DeserializeOwned + Serialize>(bytes: &[u8]) {
    if let Ok(answer) = serde_json::from_slice::<T>(bytes) {
        let written = serde_json::to_vec(&answer).expect("our own types serialise");
        assert!(serde_json::from_slice::<T>(&written).is_ok(), "{}", written.escape_ascii());
    }
}
