//! The flight recorder: probes that stay awake, and their last records in bounded memory, to find
//! out afterwards what has just happened.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # fn brew(cups: u32) { dormouse::probe!("brew.step", cups); }
//! let recorder = dormouse::recorder::start("brew.*", dormouse::recorder::DEFAULT_MEMORY)?;
//! brew(2);
//! recorder.each(|probe, thread, record| {
//!     println!("{} in {}: {:?}", probe.name(), thread.tid, record.values);
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! There is one in a process: `DORMOUSE_RECORD` starts it in [`init`](crate::init), `dormouse
//! record` at any time. A forked child has none.
//!
//! # Cost
//!
//! The cost of the records: see [`probe!`](crate::probe). Besides, a thread of dormouse's copies
//! them out of the rings, up to a thousand times a second if they fill quickly, ten times if
//! nothing comes.

pub(crate) mod engine;
mod verb;

use dormouse_keys::{Key, Selector};
use dormouse_sys::process::identity;
use dormouse_sys::records::RingOwner;

use self::engine::{Copied, Recording};
pub use self::engine::{DEFAULT_MEMORY, RecorderError, RecorderStat};
use crate::core::record::{Reader, Record};
use crate::core::trace::TraceError;
use crate::lookout::LOOKOUT;

/// The recorder that this program has started. It ends when this is dropped.
///
/// ```no_run
/// let recorder = dormouse::recorder::start("order.*", dormouse::recorder::DEFAULT_MEMORY)?;
/// // Later, when something has gone wrong:
/// recorder.each(|key, _thread, record| println!("{} {:?}", key.name(), record.values))?;
/// # Ok::<(), dormouse::RecorderError>(())
/// ```
#[derive(Debug)]
#[must_use = "the recorder ends when this is dropped"]
pub struct Recorder {
    number: u64,
    /// The process that records.
    process: u64,
}

/// Starts the recorder for the probes that a glob list selects (see [`Selector`]), with `memory`
/// bytes: from 256 KiB to 1 GiB. Memory is reserved now, and used as records come.
///
/// ```no_run
/// let recorder = dormouse::recorder::start("order.*", dormouse::recorder::DEFAULT_MEMORY)?;
/// // Later, when something has gone wrong:
/// recorder.each(|key, _thread, record| println!("{} {:?}", key.name(), record.values))?;
/// # Ok::<(), dormouse::RecorderError>(())
/// ```
///
/// # Errors
///
/// If a recorder runs already, if no probe matches or can be switched, or if there is no memory or
/// no thread.
///
/// # Cost
///
/// A batch of the probes' keys. The caller waits for the thread that reads the rings, which may be
/// writing a file of a trigger.
pub fn start(glob: &str, memory: usize) -> Result<Recorder, RecorderError> {
    let keys = || {
        let keys = Selector::parse(glob)?.try_keys()?;
        if keys.is_empty() { Err(TraceError::NoMatch { glob: glob.to_owned() }) } else { Ok(keys) }
    };
    let (number, _) = engine::start(glob, keys, memory, None)?;
    Ok(Recorder { number, process: identity::id() })
}

/// The state of the recorder of this process, no matter how it was started.
///
/// ```
/// assert_eq!(dormouse::recorder::stat().is_some(), false, "nobody has started one");
/// ```
pub fn stat() -> Option<RecorderStat> {
    engine::stat()
}

impl Recorder {
    /// Leaves the recorder running until the command or the end of the process ends it.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// The recorder's state; `None` if it was ended.
    pub fn stat(&self) -> Option<RecorderStat> {
        engine::stat().filter(|stat| self.is_here() && stat.number == self.number)
    }

    /// Calls `each` for a copy of the recorder's records, with probe, thread and record. The
    /// records of one thread come in order.
    ///
    /// # Cost
    ///
    /// The caller waits for the lookout, and for a copy of the recorder's memory.
    ///
    /// # Errors
    ///
    /// If the recorder has ended, or there is no memory for the copy.
    pub fn each(
        &self,
        mut each: impl FnMut(&'static Key, RingOwner, Record<'_>),
    ) -> Result<(), RecorderError> {
        let number = self.number;
        let ended = RecorderError::Lookout(dormouse_sys::keeper::KeeperError::Ended);
        if !self.is_here() || self.stat().is_none() {
            return Err(ended);
        }
        let copied = LOOKOUT.ask(move |engines| {
            let run = engines.get::<Recording>().newest().filter(|run| run.stat().number == number)?;
            Some(run.copy().ok_or(RecorderError::NoMemory { bytes: run.stat().held }))
        })?;
        let Copied { queued, keys } = copied.ok_or(ended)??;
        for chunk in queued.chunks() {
            for record in Reader::new(chunk.bytes).flatten() {
                if let Some(key) = keys.get(&record.probe) {
                    each(key, chunk.writer, record);
                }
            }
        }
        Ok(())
    }

    fn is_here(&self) -> bool {
        self.process == identity::id()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.is_here() {
            engine::stop(Some(self.number));
        }
    }
}
