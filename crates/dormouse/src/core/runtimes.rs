//! Runtimes that the service has shown, which are read when somebody looks.
//!
//! A runtime is a name and a function that reads it. Nothing polls it: a reading calls the
//! function. The owner of a [`ShownRuntime`] drops it when the runtime ends; until then the
//! function may keep the runtime's memory.
//!
//! # Locking
//!
//! One lock, which forks wait for. A reading holds it while it reads the counters of all runtimes,
//! some microseconds, so that a runtime is never freed by the thread that reads it: that thread may
//! have another table of descriptors than the service, and would close others of the same numbers.
//! A runtime that ends waits for a reading that is under way.

use std::mem;

use dormouse_protocol::RuntimeRow;
use dormouse_sys::process::fork::{Mutex, Phase};

use crate::core::record::floor_char_boundary;

/// How many runtimes can be shown at once.
pub(crate) const MOST_RUNTIMES: usize = RuntimeRow::MOST;

/// How many bytes of a name are kept.
const MOST_NAME: usize = 64;

static RUNTIMES: Mutex<Runtimes> =
    Mutex::with_child(Phase::Runtimes, Runtimes { all: Vec::new(), next: 1 }, forget);

struct Runtimes {
    all: Vec<Runtime>,
    /// The number of the next one.
    next: u64,
}

struct Runtime {
    number: u64,
    name: String,
    read: Box<dyn Fn() -> RuntimeRow + Send>,
}

/// A runtime that is shown as long as this lives.
#[derive(Debug)]
pub(crate) struct ShownRuntime {
    number: u64,
}

/// Why a runtime is not shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// Another runtime has the name.
    #[error("a runtime `{name}` is shown already: give this one another name")]
    Name {
        /// The name.
        name: String,
    },
    /// There are as many as there can be.
    #[error("{MOST_RUNTIMES} runtimes are shown already")]
    TooMany,
    /// The thread has the lock of runtimes already, or is in the middle of a fork.
    #[error("this thread is changing the list of runtimes already")]
    Reentrant,
    /// Dormouse is off in this process.
    #[error("{}", dormouse_sys::environment::OFF)]
    Off,
}

/// Shows a runtime, which `read` reads, under the part of `name` that is kept.
pub(crate) fn show(
    name: &str,
    read: impl Fn() -> RuntimeRow + Send + 'static,
) -> Result<ShownRuntime, RuntimeError> {
    if dormouse_sys::environment::is_off() {
        return Err(RuntimeError::Off);
    }
    let name = name[..floor_char_boundary(name, MOST_NAME)].to_owned();
    let mut runtimes = RUNTIMES.lock().map_err(|_| RuntimeError::Reentrant)?;
    if runtimes.all.iter().any(|runtime| runtime.name == name) {
        return Err(RuntimeError::Name { name });
    }
    if runtimes.all.len() >= MOST_RUNTIMES {
        return Err(RuntimeError::TooMany);
    }
    let number = runtimes.next;
    runtimes.next += 1;
    runtimes.all.push(Runtime { number, name, read: Box::new(read) });
    Ok(ShownRuntime { number })
}

/// The runtimes that are shown, in the order in which they were.
pub(crate) fn rows() -> Vec<RuntimeRow> {
    let Ok(runtimes) = RUNTIMES.lock() else { return Vec::new() };
    runtimes.all.iter().map(|runtime| RuntimeRow { name: runtime.name.clone(), ..(runtime.read)() }).collect()
}

/// A forked child has none of its parent's workers. It frees nothing, as a signal handler.
fn forget(runtimes: &mut Runtimes) {
    mem::forget(mem::take(&mut runtimes.all));
}

impl Drop for ShownRuntime {
    fn drop(&mut self) {
        // Refused in the middle of a fork: then the row stays.
        let Ok(mut runtimes) = RUNTIMES.lock() else { return };
        let at = runtimes.all.iter().position(|runtime| runtime.number == self.number);
        let gone = at.map(|at| runtimes.all.remove(at));
        drop(runtimes);
        // Not under the lock: its memory is freed.
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn row(tasks: u64) -> RuntimeRow {
        RuntimeRow { tasks, ..RuntimeRow::default() }
    }

    #[test]
    fn a_runtime_that_ended_leaves_nothing() {
        let kept = Arc::new(());
        let held = Arc::clone(&kept);
        let shown = show("main", move || row(Arc::strong_count(&held) as u64)).unwrap();
        assert_eq!(rows(), [RuntimeRow { name: "main".to_owned(), ..row(2) }]);
        assert_eq!(show("main", || row(0)).unwrap_err(), RuntimeError::Name { name: "main".to_owned() });
        let long = "ä".repeat(MOST_NAME);
        let other = show(&long, || row(7)).unwrap();
        assert_eq!((rows().len(), rows()[1].name.len()), (2, MOST_NAME));
        drop(shown);
        assert_eq!((rows().len(), Arc::strong_count(&kept)), (1, 1));
        let more: Vec<_> = (1..MOST_RUNTIMES).map(|n| show(&n.to_string(), || row(0)).unwrap()).collect();
        assert_eq!(show("one more", || row(0)).unwrap_err(), RuntimeError::TooMany);
        drop((other, more));
        assert!(rows().is_empty());
    }
}
