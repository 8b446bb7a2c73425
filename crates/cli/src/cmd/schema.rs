//! The schema of what `--json` writes is the one that `docs/json.schema.json` has, from which
//! others write programs. `DORMOUSE_BLESS=1` writes the file.

use std::collections::BTreeMap;

use dormouse_testkit::{assert_committed, pretty};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

use crate::output::{ErrorBody, JsonDocument, SCHEMA};

/// The documents of a subcommand.
pub(super) struct Documents {
    pub(super) command: &'static str,
    pub(super) own: Vec<Schema>,
    /// Subcommands whose documents it writes, too.
    pub(super) like: &'static [&'static str],
}

/// The schema of a document.
pub(super) fn of<T: JsonDocument>(generator: &mut SchemaGenerator) -> Schema {
    T::json_schema(generator)
}

fn schema() -> String {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let documents = |mut of: Documents| {
        let like = of.like.iter().map(|other| json!({ "$ref": format!("#/commands/{}", name(other)) }));
        let all: Vec<Value> = of.own.drain(..).map(Value::from).chain(like).collect();
        (!all.is_empty()).then(|| (name(of.command), json!({ "anyOf": all })))
    };
    let commands: BTreeMap<String, Value> =
        super::documents(&mut generator).into_iter().filter_map(documents).collect();
    let error = ErrorBody::json_schema(&mut generator);
    let whole = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What dormouse --json writes: each line is a document, with the field \"schema\" in front",
        "schema": SCHEMA,
        "commands": commands,
        "error": error,
        "$defs": generator.take_definitions(true),
    });
    pretty(whole)
}

fn name(command: &str) -> String {
    command.to_ascii_lowercase()
}

#[test]
fn the_schema_of_documents_is_the_committed_one() {
    assert_committed("docs/json.schema.json", &schema());
}

#[test]
fn each_definition_has_its_own_name() {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    let defined = schema["$defs"].as_object().unwrap();
    let digit = |last: char| last.is_ascii_digit();
    let is_second =
        |name: &&String| name.ends_with(digit) && defined.contains_key(name.trim_end_matches(digit));
    let twice: Vec<&String> = defined.keys().filter(is_second).collect();
    assert!(twice.is_empty(), "two types have one name: {twice:?}");
}
