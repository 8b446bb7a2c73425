//! Whether written code takes effect.
//!
//! An emulator translates code once, and runs the translation from then on. It has to notice a
//! write: qemu-user notices `mprotect`, but not a write through the memory file; Valgrind notices
//! neither. So a batch first tries each way that it needs on a function of our own, once in a
//! process: the function is run, changed, run, changed back, and run again. Its page is then this
//! process's own copy, and the bytes are unchanged.
//!
//! A way that is refused cannot be tried: the batch will get the same refusal.
//!
//! # Cost
//!
//! Four system calls and two page faults, some 20 us, at the first batch.
//!
//! # Safety
//!
//! The function is written under the patch lock, and no other thread runs or writes it.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

use super::memory::Memory;
use super::pages::Run;
use super::patch::Patch;
use crate::StaticKey;
use crate::arch::{self, SUBJECT, subject};
use crate::object::{Segment, Site, segment_of};

/// A way to write code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Mprotect,
    Memory,
}

/// By way: not known yet, or one of those below.
static FOUND: [AtomicU8; 2] = [const { AtomicU8::new(0) }; 2];
const ACTS: u8 = 1;
const IS_FUTILE: u8 = 2;

/// Tries a way, if that was not done yet: whether the code that it writes is not what runs. Under
/// the patch lock. Where our own code is in none of the segments nothing is tried.
pub(super) fn is_futile(by: By, segments: &[Segment]) -> bool {
    match FOUND[by as usize].load(Ordering::Relaxed) {
        0 => {
            // Through a pointer: Valgrind translates a function together with each call that names
            // it.
            let run = std::hint::black_box(subject as extern "C" fn() -> u32);
            let Some(acts) = acts(by, segments, || run()) else { return false };
            FOUND[by as usize].store(if acts { ACTS } else { IS_FUTILE }, Ordering::Relaxed);
            !acts
        }
        found => found == IS_FUTILE,
    }
}

/// Whether a way was found to be futile. Async-signal-safe.
pub(super) fn was_futile(by: By) -> bool {
    FOUND[by as usize].load(Ordering::Relaxed) == IS_FUTILE
}

/// Has a way found to be futile.
#[cfg(test)]
pub(super) fn find_futile(by: By) {
    FOUND[by as usize].store(IS_FUTILE, Ordering::Relaxed);
}

/// The reason to refuse a way that is futile.
pub(super) fn refusal() -> io::Error {
    io::Error::other(format!(
        "code that is written takes no effect here: {} keeps translations",
        arch::emulator().unwrap_or("an emulator (qemu-user, Rosetta, Valgrind)")
    ))
}

/// The setting to change.
pub(super) const SETTING: &str = "run the program without the emulator";

/// Whether the function changes its behaviour after a write, as `run` observes; `None` if it cannot
/// be written.
fn acts(by: By, segments: &[Segment], run: impl Fn() -> u32) -> Option<bool> {
    static NO_KEY: StaticKey<false> = StaticKey::new("", "", 0);
    let code = subject as *const () as usize;
    let segment = segment_of(segments, code)?;
    let (at, one_to_two) = SUBJECT;
    let byte = code + at;
    let patch = Patch::new(&Site::new(code, code, false, Some(segment)), NO_KEY.key(), false)?;
    let pages = Run::of(&patch, 2, &segments[segment]);
    let write = |value: u8| match by {
        By::Mprotect => {
            let pages = pages.as_ref()?;
            pages.open().ok()?;
            // SAFETY: the byte's page is writable.
            unsafe { AtomicU8::from_ptr(byte as *mut u8) }.store(value, Ordering::Release);
            arch::fetch_again(std::iter::once(byte));
            pages.seal();
            Some(())
        }
        By::Memory => Memory::open(std::iter::empty(), 1).ok()?.write(byte, &[value]).ok(),
    };
    // SAFETY: the pages of this function are readable, as the segment says.
    let there = unsafe { std::ptr::read_volatile(byte as *const u8) };
    // 1, or 2 if an earlier trial could not be ended.
    let before = run();
    write(there ^ one_to_two)?;
    let changed = run();
    // It could be written a moment before.
    write(there)?;
    Some((changed, run()) == (before ^ 3, before))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::segments_of;

    fn segments() -> Vec<Segment> {
        segments_of(&dormouse_sys::loader::find(subject as *const () as usize).unwrap())
    }

    #[test]
    fn both_ways_act_and_leave_the_bytes() {
        dormouse_testkit::in_child(|| {
            let _registry = crate::registry::lock().unwrap();
            for by in [By::Mprotect, By::Memory] {
                assert_eq!(acts(by, &[], || subject()), None, "it is nowhere");
                assert_eq!(acts(by, &segments(), || subject()), Some(true), "{by:?}");
                assert_eq!(subject(), 1);
                assert!(!is_futile(by, &segments()) && !was_futile(by));
            }
        });
    }

    #[test]
    fn mprotect_is_not_tried_on_guarded_code() {
        dormouse_testkit::in_child(|| {
            let _registry = crate::registry::lock().unwrap();
            let segments: Vec<_> = segments().into_iter().map(Segment::guarded).collect();
            assert_eq!(acts(By::Mprotect, &segments, || subject()), None);
            assert_eq!(acts(By::Memory, &segments, || subject()), Some(true));
        });
    }

    /// Imitates an emulator, which runs the code that stood there first.
    #[test]
    fn a_way_without_effect_is_told() {
        dormouse_testkit::in_child(|| {
            let _registry = crate::registry::lock().unwrap();
            for by in [By::Mprotect, By::Memory] {
                assert_eq!(acts(by, &segments(), || 1), Some(false), "{by:?}");
                assert_eq!(subject(), 1);
            }
        });
    }
}
