//! The process context, by the *Reading Protocol* of OTEP 4719.

use std::collections::BTreeMap;
use std::fs;

use super::tracee::{bytes_of, memory};

/// The process context, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadProcess {
    /// The attributes of the resource that are text.
    pub resource: BTreeMap<String, String>,
    /// `threadlocal.schema_version`.
    pub schema: String,
    /// `threadlocal.attribute_key_map`.
    pub keys: Vec<String>,
}

const NAMES: [&str; 3] = ["[anon_shmem:OTEL_CTX]", "[anon:OTEL_CTX]", "/memfd:OTEL_CTX"];

/// The context of a process; `None` if it has none. Panics if one violates the standard, or if
/// there are two.
pub fn process_context(pid: u32) -> Option<ReadProcess> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let found: Vec<_> = maps
        .lines()
        .filter(|line| {
            let name = line.splitn(6, ' ').nth(5).unwrap_or_default().trim_start();
            NAMES.iter().any(|there| name.starts_with(there))
        })
        .collect();
    assert!(found.len() <= 1, "one context at most: {found:?}");
    let start = u64::from_str_radix(found.first()?.split('-').next()?, 16).unwrap();
    // It may be written anew, or be gone, meanwhile.
    (0..1000).find_map(|_| read(pid, start)).map(|payload| decode(&payload))
}

fn read(pid: u32, start: u64) -> Option<Vec<u8>> {
    let [signature] = memory::<[u8; 8], 1>(pid, start)?;
    assert_eq!(&signature, b"OTEL_CTX");
    let [version, size] = memory::<u32, 2>(pid, start + 8)?;
    assert_eq!(version, 2);
    let time = || memory::<u64, 1>(pid, start + 16).filter(|&[time]| time != 0);
    let before = time()?;
    let [payload] = memory::<u64, 1>(pid, start + 24)?;
    let payload = bytes_of(pid, payload, size as usize)?;
    (time()? == before).then_some(payload)
}

fn decode(payload: &[u8]) -> ReadProcess {
    let (mut resource, mut attributes) = (BTreeMap::new(), BTreeMap::new());
    for (field, value) in fields(payload) {
        match field {
            1 => {
                for (field, attribute) in fields(value) {
                    assert_eq!(field, 1, "attributes of the resource");
                    let (key, value) = attribute_of(attribute);
                    let twice = resource.insert(key, text(value));
                    assert_eq!(twice, None, "keys are unique");
                }
            }
            2 => {
                let (key, value) = attribute_of(value);
                attributes.insert(key, value);
            }
            other => panic!("field {other} of the context"),
        }
    }
    let keys = one(attributes["threadlocal.attribute_key_map"], 5);
    let keys = fields(keys).into_iter().map(|(field, value)| {
        assert_eq!(field, 1, "values of the array");
        text(value)
    });
    let schema = text(attributes["threadlocal.schema_version"]);
    ReadProcess { resource, schema, keys: keys.collect() }
}

/// Key and value of a `KeyValue`.
fn attribute_of(attribute: &[u8]) -> (String, &[u8]) {
    let of = |wanted| fields(attribute).into_iter().find(|(field, _)| *field == wanted).unwrap().1;
    (utf8(of(1)), of(2))
}

/// The text of an `AnyValue`.
fn text(value: &[u8]) -> String {
    utf8(one(value, 1))
}

fn one(message: &[u8], field: u64) -> &[u8] {
    let fields = fields(message);
    assert_eq!((fields.len(), fields[0].0), (1, field));
    fields[0].1
}

pub(super) fn utf8(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// The fields of a message that has none but messages and text.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut all = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        assert_eq!(tag & 7, 2, "a field with a length");
        let length = varint(&mut message) as usize;
        let (value, rest) = message.split_at(length);
        all.push((tag >> 3, value));
        message = rest;
    }
    all
}

fn varint(message: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = message.split_first().expect("a number");
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}
