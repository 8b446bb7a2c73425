//! The schema of the protocol is the one that `docs/protocol.schema.json` has, from which others
//! write clients. `DORMOUSE_BLESS=1` writes the file.

use std::path::Path;

use dormouse_protocol::{Notice, Verb, WireError, for_each_verb};
use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Value, json};

/// One operation: its request without `v`, `id` and `op`, and its answer.
fn of<V: Verb + JsonSchema>(generator: &mut SchemaGenerator) -> (String, Value)
where
    V::Answer: JsonSchema,
{
    let verb = json!({
        "request": generator.subschema_for::<V>(),
        "answer": generator.subschema_for::<V::Answer>(),
        "announced_as": V::ANNOUNCED_AS,
        "longest_answer_bytes": V::LONGEST_ANSWER,
    });
    (V::NAME.to_owned(), verb)
}

fn schema() -> String {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    macro_rules! all {
        ($($name:ident($request:ident),)*) => {
            [$(of::<dormouse_protocol::$request>(&mut generator)),*]
        };
    }
    let verbs: serde_json::Map<String, Value> = for_each_verb!(all).into_iter().collect();
    let lines = json!({
        "error": generator.subschema_for::<WireError>(),
        "notice": generator.subschema_for::<Notice>(),
    });
    let definitions = generator.take_definitions(true);
    let whole = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dormouse's protocol",
        "version": dormouse_protocol::PROTOCOL,
        "lines": lines,
        "verbs": verbs,
        "$defs": definitions,
    });
    serde_json::to_string_pretty(&sorted(whole)).unwrap() + "\n"
}

/// With fields in the order of their names: other crates of a build may ask for theirs.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: std::collections::BTreeMap<_, _> = fields.into_iter().collect();
            fields.into_iter().map(|(name, value)| (name, sorted(value))).collect()
        }
        Value::Array(values) => values.into_iter().map(sorted).collect(),
        value => value,
    }
}

#[test]
fn the_schema_is_the_committed_one() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.schema.json"));
    let is = schema();
    if std::env::var_os("DORMOUSE_BLESS").is_some() {
        std::fs::write(path, &is).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    let differs = is.lines().zip(committed.lines()).position(|(is, committed)| is != committed);
    assert!(
        is == committed,
        "the protocol has changed from line {:?} of its schema on: run this test with DORMOUSE_BLESS=1, \
         and see that the change only adds",
        differs.map(|line| line + 1)
    );
}
