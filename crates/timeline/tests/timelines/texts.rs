//! The files of a known timeline, as text.

use dormouse_testkit::wire_text;
use dormouse_timeline::encode;
use flate2::read::GzDecoder;

use crate::known;

#[test]
fn known_timeline_has_known_firefox_json() {
    let mut file = Vec::new();
    encode::firefox(known::timeline(), &mut file).unwrap();
    let json: serde_json::Value = serde_json::from_reader(GzDecoder::new(&file[..])).unwrap();
    insta::assert_snapshot!(serde_json::to_string_pretty(&json).unwrap());
}

#[test]
fn known_timeline_has_known_perfetto_fields() {
    let mut file = Vec::new();
    encode::perfetto(&known::timeline(), &mut file).unwrap();
    insta::assert_snapshot!(wire_text(&file));
}
