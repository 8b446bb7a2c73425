//! Records are read as they were written, and other bytes are refused.

use super::*;

fn one(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::new(RecordKind::Enter, 7, 123, 45, 6);
    fill(&mut writer);
    writer.finish().to_vec()
}

#[test]
fn what_is_written_is_read() {
    let mut bytes = one(|w| {
        w.signed(-1);
        w.unsigned(u64::MAX);
        w.float(0.5);
        w.boolean(true);
        w.text("tea");
        w.formatted(format_args!("{:?}", Some(1)));
        w.nothing();
    });
    bytes.extend(one(|_| {}));
    let records: Vec<_> = Reader::new(&bytes).collect::<Result<_, _>>().unwrap();
    assert_eq!(records.len(), 2);
    let first = &records[0];
    assert_eq!(
        (first.phase, first.probe, first.tsc, first.task, first.group),
        (RecordKind::Enter, 7, 123, 45, 6)
    );
    assert_eq!(
        first.values,
        [
            Field::Signed(-1),
            Field::Unsigned(u64::MAX),
            Field::Float(0.5),
            Field::Boolean(true),
            Field::Text("tea"),
            Field::Formatted("Some(1)"),
            Field::Nothing
        ]
    );
    assert!(!first.cut);
}

#[test]
fn long_text_is_cut_at_a_character() {
    let long = "é".repeat(MAX_RECORD);
    let bytes = one(|w| {
        w.text(&long);
        w.signed(1);
    });
    assert!(bytes.len() <= MAX_RECORD);
    let record = Reader::new(&bytes).next().unwrap().unwrap();
    assert!(record.cut);
    assert_eq!(record.values.len(), 1);
    let most = "x".repeat(MAX_RECORD - HEADER - 9 - 3 - 4);
    let bytes = one(|w| {
        w.signed(0);
        w.text(&most);
        w.signed(1);
        w.boolean(true);
    });
    let after = Reader::new(&bytes).next().unwrap().unwrap();
    assert!(after.cut && after.values.len() == 2, "nothing after a cut: {:?}", after.values);
    let Field::Text(text) = record.values[0] else { panic!("{:?}", record.values) };
    assert!(long.starts_with(text) && text.len() > MAX_RECORD - HEADER - 8);
}

#[test]
fn bytes_that_are_not_utf_8_are_replaced() {
    let bytes = one(|w| {
        w.lossy(b"tea \xff\xfe pot");
        w.lossy(&[0xff; MAX_RECORD]);
    });
    let record = Reader::new(&bytes).next().unwrap().unwrap();
    assert_eq!(record.values[0], Field::Text("tea \u{fffd}\u{fffd} pot"));
    let Field::Text(text) = record.values[1] else { panic!("{:?}", record.values) };
    assert!(record.cut && text.chars().all(|c| c == '\u{fffd}'));
}

#[test]
fn records_of_another_version_are_passed_over() {
    let mut bytes = one(|w| w.signed(1));
    bytes[2] = VERSION + 1;
    bytes.extend(one(|w| w.signed(2)));
    let records: Vec<_> = Reader::new(&bytes).collect::<Result<_, _>>().unwrap();
    assert_eq!(records[0].values, [Field::Signed(2)]);
    assert_eq!(records.len(), 1);
}

#[test]
fn control_characters_do_not_reach_a_terminal() {
    assert_eq!(Field::Text("a\u{1b}[2J").to_string(), "\"a\\u{1b}[2J\"");
    assert_eq!(Field::Formatted("a\u{1b}[2J").to_string(), "a\\u{1b}[2J");
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
        Reader::new(&bytes).count();
    }

    #[test]
    fn a_damaged_record_is_read_without_a_panic(at in 0usize..64, byte: u8) {
        let mut bytes = one(|w| { w.text("tea"); w.signed(3); });
        let at = at % bytes.len();
        bytes[at] = byte;
        let read: Vec<_> = Reader::new(&bytes).collect();
        // After an error there is nothing more.
        proptest::prop_assert!(read.iter().rev().skip(1).all(Result::is_ok));
    }
}
