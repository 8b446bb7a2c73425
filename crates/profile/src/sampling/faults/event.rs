//! The event of a thread, and its signal.

use std::num::NonZero;

use dormouse_sys::perf::{Attr, Error as Refusal, KernelEvent, OpenEvent, Subject, is_filtered};
use dormouse_sys::trap::{self, Disposition};
use dormouse_sys::{loader, rendezvous};

use super::handler;

/// Has SIGTRAP come to the watcher: the beginning of the data of events.
pub(super) fn take_signal() -> Result<u64, String> {
    if is_filtered() {
        return Err(FILTERED.into());
    }
    let table = rendezvous::table().map_err(|error| error.to_string())?;
    loader::pin_self().map_err(|error| error.to_string())?;
    let patching = table.patch.lock().map_err(|_| "called in the middle of itself, or of a fork")?;
    let data = trap::sample(handler::on_trap);
    drop(patching);
    let data = data.map_err(|error| error.to_string())?;
    obstacle().map_or(Ok(data), |obstacle| Err(obstacle.into()))
}

const FILTERED: &str = "a filter of system calls is there, which may end the process for perf_event_open";
const SIGNAL_TAKEN: &str =
    "the program has taken SIGTRAP's handler from dormouse: samples of faults could end the process";

/// Why no event may be opened or stay open now. Both may come at any time: the host may filter all
/// of its threads at once, dormouse's too, and may set its own action for SIGTRAP.
pub(super) fn obstacle() -> Option<&'static str> {
    if is_filtered() {
        // The signal's action must not be asked for, either.
        return Some(FILTERED);
    }
    let is_ours = matches!(trap::disposition(), Ok(Disposition::Ours) | Err(_));
    (!is_ours).then_some(SIGNAL_TAKEN)
}

/// Has a thread trap once in `every` page faults: in user code, and where that is allowed in the
/// kernel's work for it.
pub(super) fn open(tid: u32, data: u64, every: NonZero<u32>) -> Result<OpenEvent, Refusal> {
    let attr = Attr::count(KernelEvent::PageFaults).trapping(data | u64::from(every.get())).every(every);
    OpenEvent::open_allowed(&attr, Subject::Thread(tid))
}
