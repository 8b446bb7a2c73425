//! Files of the repository that a test generates and compares.

use std::path::Path;

use serde_json::Value;

/// Fails unless the file at `path`, relative to the root of the repository, has this text. With
/// `DORMOUSE_BLESS=1` it writes the file instead.
#[track_caller]
pub fn assert_committed(path: &str, text: &str) {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path);
    if std::env::var_os("DORMOUSE_BLESS").is_some() {
        std::fs::write(&file, text).unwrap_or_else(|error| panic!("{path}: {error}"));
        return;
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    let (mut is, mut was) = (text.lines(), committed.lines());
    let differs = (1..).find_map(|line| match (is.next(), was.next()) {
        (None, None) => Some(None),
        (is, was) if is == was => None,
        (is, was) => Some(Some((line, is, was))),
    });
    if let Some(Some((line, is, was))) = differs {
        panic!("{path}:{line} is\n{is:?}, and was\n{was:?}\nDORMOUSE_BLESS=1 writes the file anew");
    }
}

/// JSON on several lines, with the keys of each object sorted.
pub fn pretty(value: Value) -> String {
    serde_json::to_string_pretty(&sorted(value)).unwrap_or_default() + "\n"
}

/// With keys in the order of their names: other crates of a build may ask for another.
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
