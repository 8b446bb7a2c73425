//! The protocol between a service and the `dormouse` command: JSON lines, and frames once a `trace`
//! is accepted. `docs/protocol.md` is written for clients in other languages.
//!
//! A request is one line `{"v":1,"id":N,"op":"…",…}`. Its answer is one line with the same `id` and
//! either `ok` or `error`. The first request of a connection is `hello`. Later versions only add
//! fields, and readers ignore fields that they do not know, so either side may be the newer one.
//!
//! Each operation is a [`Verb`]: the type of its request implements the trait, and names the answer
//! and its bounds. [`for_each_verb`] is the list of all operations.
//!
//! A frame is a `u32` length (of the rest), a `u8` [`FrameKind`], and the payload. Integers are
//! little-endian.
//!
//! ```no_run
//! use std::io::{BufRead as _, BufReader, Write as _};
//! use std::os::unix::net::UnixStream;
//!
//! use dormouse_protocol::{HelloRequest, KeysRequest, Op, PROTOCOL, Request};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut stream = BufReader::new(UnixStream::connect("/run/user/1000/dormouse/4711.sock")?);
//! let hello = HelloRequest { client: "an example".to_owned(), notices: false };
//! for (id, op) in (1..).zip([Op::from(hello), Op::from(KeysRequest { glob: None })]) {
//!     let request = serde_json::to_string(&Request { v: PROTOCOL, id, op })?;
//!     writeln!(stream.get_mut(), "{request}")?;
//! }
//! let (mut hello, mut keys) = (String::new(), String::new());
//! stream.read_line(&mut hello)?;
//! stream.read_line(&mut keys)?;
//! println!("{hello}{keys}");
//! # Ok(())
//! # }
//! ```
//!
//! Each line depends only on those above it.
//!
//! | module | is |
//! |---|---|
//! | `bounded` | lists of which a peer may send any number of elements |
//! | [`WireId`] | an id of a trace or a span |
//! | [`parse_length`], [`Objective`] | lengths of time and objectives, as people write them |
//! | [`profile`], [`ProfileQuery`] | a profile as data, and as a query asks for it |
//! | [`Verb`] | what each operation has: its name, its answer, its bounds |
//! | `verbs` | the operations, a file for each subject |
//! | [`figures`] | the numbers that are shown of a service |
//! | [`write_json`] | JSON into memory, by one kind of writer |
//! | [`Request`], [`Response`] | the lines |
//! | [`FileWriter`] | a recorder's file, which has answers and frames |

#![cfg_attr(feature = "read-files", doc = "| [`FileReader`] | a reader of such files |")]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]

mod bounded;
mod id;
mod length;
mod objective;
pub mod profile;
mod profile_query;
mod verb;
mod verbs;

pub mod figures;
mod file;
#[cfg(feature = "read-files")]
mod file_reader;
mod json;
mod message;

pub use file::{
    FILE_MAGIC, FILE_VERSION, FileHead, FileMappings, FileMissing, FileWriter, MAX_FILE_ANSWER, is_file,
};
#[cfg(feature = "read-files")]
pub use file_reader::{FileError, FilePart, FileReader};
pub use id::WireId;
pub use json::write_json;
pub use length::{LENGTH_FORM, LengthText, parse_length};
pub use message::{Code, Request, Response, WireError};
pub use objective::{GroupObjective, Objective, ObjectiveError, PercentText, parse_percent};
pub use profile_query::ProfileQuery;
pub use verb::{Each, Memory, Verb};
pub use verbs::*;

/// The protocol version that this build speaks.
pub const PROTOCOL: u32 = 1;

/// The longest request line, in bytes. The agent refuses a longer one and closes the connection.
pub const MAX_LINE: usize = 16 * 1024;

/// The longest frame, in bytes after the length word.
pub const MAX_FRAME: usize = 1024 * 1024;

/// The longest `for_ms` and `dwell_ms`: 31 days.
pub const LONGEST_MS: u64 = 31 * 24 * 3600 * 1000;
