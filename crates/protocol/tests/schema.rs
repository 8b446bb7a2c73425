//! The schema of the protocol is the one that `docs/protocol.schema.json` has, from which others
//! write clients. `DORMOUSE_BLESS=1` writes the file.

use dormouse_protocol::{Notice, Verb, WireError, for_each_verb};
use dormouse_testkit::{assert_committed, pretty};
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
        ($($name:ident($module:ident::$request:ident),)*) => {
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
    pretty(whole)
}

#[test]
fn the_schema_is_the_committed_one() {
    assert_committed("docs/protocol.schema.json", &schema());
}
