//! The protocol between a service and the `dormouse` command: JSON lines, and frames once a `trace`
//! is accepted.
//!
//! A request is one line `{"v":1,"id":N,"op":"…",…}`. Its answer is one line with the same `id` and
//! either `ok` or `error`. The first request of a connection is `hello`. Later versions only add
//! fields, and readers ignore fields that they do not know, so either side may be the newer one.
//!
//! A frame is a `u32` length (of the rest), a `u8` [`FrameKind`], and the payload. Integers are
//! little-endian.
//!
//! ```no_run
//! use std::io::{BufRead as _, BufReader, Write as _};
//! use std::os::unix::net::UnixStream;
//!
//! use dormouse::wire::{Op, PROTOCOL, Request};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut stream = BufReader::new(UnixStream::connect("/run/user/1000/dormouse/4711.sock")?);
//! let hello = Op::Hello { client: "an example".to_owned(), notices: false };
//! for (id, op) in (1..).zip([hello, Op::Keys { glob: None }]) {
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

mod file;
mod groups;
mod id;
mod keys;
mod long_polls;
mod message;
mod places;
mod profile;
mod record;
mod service;
mod tasks;
mod trace;
mod triggers;
mod waits;
mod watch;

pub use file::{
    FILE_MAGIC, FILE_VERSION, FileError, FileHead, FileMappings, FileMissing, FilePart, FileReader,
    FileWriter, MAX_FILE_ANSWER, is_file,
};
pub use groups::{
    Clock, CountAnswer, CountRow, CountedCpu, EventInfo, Events, GroupRow, Stat, TaskPolls, ThreadStat,
};
pub use id::WireId;
pub use keys::{BatchStat, Changed, HeldBy, HeldKeys, KeyHolder, KeyInfo, Keys, LeaseHolder};
pub use long_polls::{LongPollRow, LongPollsBegun, LongPollsPart, LongPollsWish};
pub use message::{Code, Op, Request, Response, WireError};
pub use places::{PlaceRow, PlacesPart, WokenTasks};
pub use profile::{ProfileBegun, ProfilePart, ProfileWish};
pub use record::{RecordAnswer, RecordWish, RecorderRow};
pub use service::{Check, CheckState, Doctor, Hello};
pub use tasks::{TaskColumns, TaskGroup, TaskRow, TasksPart, WireTaskState};
pub use trace::{ClockPoint, Ended, FrameKind, Note, Notice, ProbeInfo, Tracing};
pub use triggers::{TriggerRow, TriggersAnswer};
pub use waits::{ExemplarRow, HistogramRow, WaitsBegun, WaitsRow, WaitsWish};
pub use watch::{
    CoverageRow, HitRow, SiteRow, SlotOwner, SlotRow, SlotsAnswer, WatchRow, WatchWish, Watching, WireAccess,
    WireState,
};

/// The protocol version that this build speaks.
pub const PROTOCOL: u32 = 1;

/// The longest request line, in bytes. The agent refuses a longer one and closes the connection.
pub const MAX_LINE: usize = 16 * 1024;

/// The longest frame, in bytes after the length word.
pub const MAX_FRAME: usize = 1024 * 1024;

/// The longest `for_ms` and `dwell_ms`.
pub const LONGEST_MS: u64 = dormouse_keys::LONGEST_HOLD.as_millis() as u64;
