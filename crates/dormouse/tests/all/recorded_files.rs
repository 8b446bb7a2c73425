//! A recorder's file is read as it was written; one that is cut, damaged or hostile says where.

use std::io::{Read, Write};

use dormouse_protocol::{
    FILE_MAGIC, FILE_VERSION, FileError, FileHead, FilePart, FileReader, FileWriter, FrameKind,
    MAX_FILE_ANSWER, Note, is_file,
};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

fn head() -> FileHead {
    FileHead { version: FILE_VERSION, seen: "a command".into(), pid: 7, ..FileHead::default() }
}

/// A file with an answer that takes several pieces, a note and records.
fn file() -> Vec<u8> {
    let mut writer = FileWriter::new(Vec::new(), &head()).unwrap();
    writer.answer("stat", 0, &"x".repeat(200_000)).unwrap();
    writer.note(&Note::Group { id: 1, name: "tea".into() }).unwrap();
    writer.records(8, 9, b"records").unwrap();
    writer.answer("tasks", 4096, &[1, 2]).unwrap();
    writer.missing("profile-report", "no memory").unwrap();
    writer.finish().unwrap()
}

/// The parts of a file, in words, and how it ended.
fn told(bytes: &[u8]) -> (Vec<String>, Option<FileError>) {
    let mut parts = Vec::new();
    let mut reader = match FileReader::new(bytes) {
        Ok(reader) => reader,
        Err(why) => return (parts, Some(why)),
    };
    loop {
        match reader.next() {
            Ok(Some(FilePart::Answer { name, from, json })) => {
                parts.push(format!("{name} {from} {}", json.len()));
            }
            Ok(Some(FilePart::Frame(frame))) => parts.push(format!("frame {} of {}", frame[4], frame.len())),
            Ok(Some(_)) => {}
            Ok(None) => return (parts, None),
            Err(why) => return (parts, Some(why)),
        }
    }
}

fn unpacked(file: &[u8]) -> Vec<u8> {
    let mut frames = Vec::new();
    GzDecoder::new(file).read_to_end(&mut frames).unwrap();
    frames
}

fn packed(frames: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(frames).unwrap();
    gzip.finish().unwrap()
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len() + 1).unwrap();
    [&length.to_le_bytes()[..], &[kind], payload].concat()
}

fn piece(name: &str, from: u64, is_last: u8, json: &[u8]) -> Vec<u8> {
    let length = u8::try_from(name.len()).unwrap();
    let payload = [&[length][..], name.as_bytes(), &from.to_le_bytes(), &[is_last], json].concat();
    frame(FrameKind::Answer as u8, &payload)
}

#[test]
fn files_are_read_as_written() {
    let file = file();
    assert!(is_file(&file) && is_file(&file[..FILE_MAGIC]) && !is_file(&file[..FILE_MAGIC - 1]));
    assert!(!is_file(&packed(b"")) && !is_file(b""));
    let (parts, end) = told(&file);
    assert!(end.is_none(), "{end:?}");
    let note = parts[1].clone();
    assert_eq!(parts, ["stat 0 200002", &note, "frame 2 of 24", "tasks 4096 5", "missing 1 43"]);
    assert!(note.starts_with("frame 1 of "));
    assert_eq!(FileReader::new(&file[..]).unwrap().head(), &head());
}

#[test]
fn a_file_that_is_cut_says_so() {
    let file = file();
    for cut in 0..file.len() {
        let (_, end) = told(&file[..cut]);
        assert!(end.is_some(), "whole without its last {} bytes", file.len() - cut);
    }
    let frames = unpacked(&file);
    for cut in (0..frames.len()).step_by(97) {
        // Between two frames nothing is missing as far as frames can tell.
        let (_, end) = told(&packed(&frames[..cut]));
        assert!(end.is_none_or(|why| why.at <= cut as u64));
    }
}

#[test]
fn what_is_no_file_is_named() {
    let head = piece("file", 0, 1, &serde_json::to_vec(&head()).unwrap());
    let newer =
        piece("file", 0, 1, br#"{"version":9,"seen":"","real_ns":0,"mono_ns":0,"pid":1,"program":""}"#);
    let spaces = vec![b' '; 65_536];
    let long: Vec<u8> =
        (0..=MAX_FILE_ANSWER / spaces.len()).flat_map(|_| piece("stat", 0, 0, &spaces)).collect();
    for (frames, part) in [
        (vec![], "does not begin with a head"),
        (b"not a file at all".to_vec(), "a frame of"),
        (piece("stat", 0, 1, b"{}"), "does not begin with a head"),
        (piece("file", 0, 1, b"{}"), "its head does not parse"),
        (newer, "the file is of format 9"),
        ([&head[..], &0_u32.to_le_bytes()].concat(), "a frame of 0 bytes"),
        ([&head[..], &u32::MAX.to_le_bytes()].concat(), "a frame of 4294967295 bytes"),
        ([&head[..], &100_u32.to_le_bytes(), b"x"].concat(), "cut off"),
        ([&head[..], &frame(3, b"\x09st")].concat(), "an answer of 3 bytes"),
        (
            [&head[..], &piece("stat", 0, 0, b"{"), &piece("tasks", 0, 1, b"}")].concat(),
            "in the midst of `stat`",
        ),
        ([&head[..], &piece("stat", 0, 0, b"{")].concat(), "ends in its midst"),
        ([&head[..], &piece("stat", 0, 0, b"{"), &frame(1, b"{}")].concat(), "ends in its midst"),
        ([&head[..], &long].concat(), "`stat` has more than 16777216 bytes"),
    ] {
        let (_, end) = told(&packed(&frames));
        let why = end.unwrap_or_else(|| panic!("{part}")).to_string();
        assert!(why.contains(part) && why.starts_with("at byte "), "{part}: {why}");
    }
}

#[test]
fn answers_and_frames_of_newer_services_pass() {
    let head = piece("file", 0, 1, &serde_json::to_vec(&head()).unwrap());
    let (parts, end) = told(&packed(&[&head[..], &piece("weather", 3, 1, b"1"), &frame(77, b"??")].concat()));
    assert!(end.is_none());
    assert_eq!(parts, ["weather 3 1", "frame 77 of 7"]);
}
