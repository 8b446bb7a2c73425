//! The files of a known timeline, as text.

use dormouse::record::{Field, RecordKind};
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

#[test]
fn a_cut_slice_has_its_rest_for_perfetto() {
    let mut builder = known::builder();
    let call = |phase, at, values: &[_]| known::record(phase, known::BREW, at, (11, 5), values);
    let all = [
        known::enter(0, (11, 5)),
        call(RecordKind::Enter, 10, &[]),
        known::exit(20, (11, 5), 20),
        call(RecordKind::Exit, 100, &[Field::Unsigned(90_000)]),
    ];
    known::add(&mut builder, 4001, &all);
    let mut file = Vec::new();
    encode::perfetto(&builder.finish(), &mut file).unwrap();
    assert!(wire_text(&file).contains("longer_ns"), "its slice ends with the poll");
}

#[test]
fn a_parent_keeps_its_digits_for_firefox() {
    const PARENT: u64 = (1 << 55) + 1;
    let mut builder = known::builder();
    known::add(&mut builder, 4001, &[known::begin(0, (11, 5), PARENT, true)]);
    let mut file = Vec::new();
    encode::firefox(builder.finish(), &mut file).unwrap();
    let json: serde_json::Value = serde_json::from_reader(GzDecoder::new(&file[..])).unwrap();
    assert!(json.to_string().contains(&format!("\"{PARENT}\"")), "{json:#}");
}
