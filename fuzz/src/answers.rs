//! An agent's answer becomes what the command expects or an error, and can be written again.

use dormouse_protocol::{FileHead, FileMappings, Note, Notice, Verb, for_each_verb};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes are an answer, of whichever kind.
///
/// # Panics
///
/// When an answer that was read cannot be read again after it was written.
pub fn check(bytes: &[u8]) {
    macro_rules! all {
        ($($name:ident($module:ident::$request:ident),)*) => {
            $(again::<<dormouse_protocol::$request as Verb>::Answer>(bytes);)*
        };
    }
    for_each_verb!(all);
    again::<Note>(bytes);
    again::<Notice>(bytes);
    again::<FileHead>(bytes);
    again::<FileMappings>(bytes);
}

fn again<T: DeserializeOwned + Serialize>(bytes: &[u8]) {
    if let Ok(answer) = serde_json::from_slice::<T>(bytes) {
        let written = serde_json::to_vec(&answer).expect("our own types serialise");
        assert!(serde_json::from_slice::<T>(&written).is_ok(), "{}", written.escape_ascii());
    }
}
