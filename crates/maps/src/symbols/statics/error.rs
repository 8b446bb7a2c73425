//! Why a static variable is not found.

use std::io;
use std::sync::Arc;

use crate::SpaceError;

/// Why a static variable, or a part of it, is not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StaticError {
    /// The mappings of the process cannot be read.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The text names nothing.
    #[error(
        "cannot read `{text}` as a variable: {what}; write NAME, NAME.field, NAME.0, NAME[3], NAME->field, *NAME or NAME+0x10"
    )]
    Syntax {
        /// The text, or its beginning.
        text: String,
        /// The fault.
        what: &'static str,
    },
    /// No file of the process has one of that name.
    #[error("no {what} is named `{name}`{}{}", like(near), without(stripped.as_deref()))]
    NotFound {
        /// "static variable" or "function".
        what: &'static str,
        /// The name.
        name: String,
        /// Names that are like it.
        near: Vec<String>,
        /// The program, if it has no symbols of its own variables.
        stripped: Option<Arc<str>>,
    },
    /// Each thread has its own.
    #[error(
        "`{name}` is thread-local: each thread has its own, at an address that is in no file; give an address"
    )]
    ThreadLocal {
        /// The name.
        name: String,
    },
    /// It has no bytes.
    #[error("`{name}` has no bytes")]
    ZeroSized {
        /// The name, with the steps so far.
        name: String,
    },
    /// The debug information does not contain the type.
    #[error(
        "the debug information of {object} does not contain the type of `{name}`: build {object} with `debug = true` \
         (Rust; `line-tables-only` is too little) or `-g` (C, C++) and do not strip it, or name bytes as NAME+0x10"
    )]
    NoType {
        /// The name, with the steps so far.
        name: String,
        /// The object.
        object: Arc<str>,
    },
    /// The type has no such field.
    #[error("`{name}` has the type {type_name}, which has no field `{field}`{}", among(fields))]
    NoField {
        /// The name, with the steps so far.
        name: String,
        /// The name of its type.
        type_name: String,
        /// The field.
        field: String,
        /// The fields that it has, or the first of them.
        fields: Vec<String>,
    },
    /// A step does not fit the type.
    #[error("`{name}` has the type {type_name}, which {what}")]
    WrongStep {
        /// The name, with the steps so far.
        name: String,
        /// The name of its type.
        type_name: String,
        /// The property that the type lacks.
        what: &'static str,
    },
    /// The place lies behind the end.
    #[error("`{name}` ends before that: it has {length} {unit}")]
    BeyondEnd {
        /// The name, with the steps so far.
        name: String,
        /// How many elements or bytes there are.
        length: u64,
        /// "elements" or "bytes".
        unit: &'static str,
    },
    /// A pointer leads to no memory.
    #[error("`{name}` would lie at {to:#x}, where the process has no memory")]
    Dangling {
        /// The name, with the steps so far.
        name: String,
        /// The address.
        to: u64,
    },
    /// A pointer cannot be read.
    #[error("cannot read the pointer `{name}` at {addr:#x} of process {pid}: {error}")]
    Unreadable {
        /// The name, with the steps so far.
        name: String,
        /// The number of the process.
        pid: u32,
        /// The address.
        addr: u64,
        /// The kernel's reason.
        #[source]
        error: io::Error,
    },
    /// A file is broken, or exceeds the limits of what is read.
    #[error("cannot read {object}: {error}")]
    Broken {
        /// The object.
        object: Arc<str>,
        /// The fault.
        #[source]
        error: io::Error,
    },
}

fn like(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; there are {}", quoted(near)) }
}

fn without(stripped: Option<&str>) -> String {
    let Some(program) = stripped else { return String::new() };
    format!(
        "; {program} is stripped: build it with `strip = false` (Rust) or without `-s` (C, C++), or install \
         its debug file"
    )
}

fn among(fields: &[String]) -> String {
    if fields.is_empty() { " and no others".to_owned() } else { format!("; it has {}", quoted(fields)) }
}

fn quoted(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().take(24).map(|name| format!("`{name}`")).collect();
    quoted.join(", ") + if names.len() > 24 { ", ..." } else { "" }
}
