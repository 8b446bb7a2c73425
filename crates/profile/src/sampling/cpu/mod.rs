//! CPU time: a timer on the CPU clock of each thread, whose signal takes the thread's stack.
//!
//! Each line depends only on those above it.
//!
//! | module | is |
//! |---|---|
//! | `timer`, `signal` | the kernel's timers; the signal |
//! | `slots` | what the handler knows of each thread |
//! | `handler` | one sample |
//! | `copies` | stacks that were copied, because handlers missed a table |
//! | `arm` | a slot and a timer for a thread |
//! | `bounds` | the bounds of its stack |
//! | `take` | a profile that is being taken: samples and their weights |
//! | `sampler` | the work between handlers and profiles |
//! | `engine` | the sampler, while profiles are taken |
//! | `asking` | the stack of one thread that runs |

mod arm;
mod asking;
mod bounds;
mod copies;
mod engine;
mod handler;
mod sampler;
mod signal;
mod slots;
mod take;
mod timer;

use dormouse_sys::Capability;
use dormouse_sys::passing::signal_frame_bytes;
use dormouse_sys::perf::is_filtered;
use dormouse_sys::process::identity;

pub(in crate::sampling) use asking::Asking;
pub(in crate::sampling) use bounds::Blocks;
pub(crate) use handler::spent_ns;
pub(in crate::sampling) use sampler::Sampler;

/// The name in the report.
const NAME: &str = "profile.cpu";

/// Whether CPU time can be sampled here.
pub(crate) fn capability() -> Capability {
    let most = timer::limit();
    // Amid a handler of the host's that is there already.
    let room = handler::ROOM;
    let frame = |bytes| format!("; a sample takes {bytes} + {room} bytes of an alternate stack");
    let frame = signal_frame_bytes().map(frame).unwrap_or_default();
    let threads = format!("{most} threads can have a timer{frame}");
    if signal::number() == 0 && signal::free().is_empty() {
        return Capability::unavailable(NAME, "SIGURG and all real-time signals are in use");
    }
    // A filter may end the process for the call.
    let tried = (!is_filtered()).then(|| timer::create(identity::tid(), libc::SIGURG, 0));
    match tried {
        Some(Err(error)) => {
            return Capability::unavailable(NAME, format!("the kernel refuses timers: {error}"))
                .with_fix("ulimit -i 65536");
        }
        Some(Ok(made)) => timer::delete(made),
        None => {}
    }
    // A service of more threads is a large one.
    if most < 1024 {
        Capability::limited(NAME, threads).with_fix("ulimit -i 65536")
    } else {
        Capability::ok(NAME, threads)
    }
}
