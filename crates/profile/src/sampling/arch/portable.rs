//! All other processors: samples have no callers.
//!
//! # Safety
//!
//! The unsafe code is a loop that copies, and a handler, which the kernel calls.
#![allow(unsafe_code)]

/// The longest call has this many bytes.
pub(in crate::sampling) const CALL: usize = 8;

/// False: no call is known.
pub(in crate::sampling) fn ends_with_call(_: &[u8]) -> bool {
    false
}

/// `None`: no call is known.
pub(in crate::sampling) fn record_of_callee(_: u64, _: impl FnMut(u64, &mut [u8]) -> usize) -> Option<u64> {
    None
}

/// Copies memory.
///
/// # Safety
///
/// The bytes can be read, and there is room for them.
pub(in crate::sampling) unsafe fn copy(from: usize, into: *mut u8, length: usize) {
    let from = std::ptr::with_exposed_provenance::<u8>(from);
    for at in 0..length {
        // SAFETY: the caller's promise.
        unsafe { into.add(at).write_volatile(from.add(at).read_volatile()) };
    }
}

/// Defines a handler that marks nothing, and goes on as `$go_on`.
macro_rules! marking_entry {
    (fn $name:ident: Marked {
        code: $code:expr,
        timer: $timer:expr,
        value: $value:expr,
        last: $last:expr,
        first: $first:expr,
        table: $table:path,
        shift: $shift:expr,
        generation: $generation:expr,
        mark: $mark:expr,
        count: $count:path,
    }, else $go_on:path) => {
        unsafe extern "C-unwind" fn $name(
            signal: libc::c_int,
            info: *mut libc::siginfo_t,
            context: *mut std::ffi::c_void,
        ) {
            let _what = ($code, $timer, $value, $last, $first, &$table, $shift, $generation, $mark, &$count);
            // SAFETY: the arguments are the kernel's.
            unsafe { $go_on(signal, info, context) }
        }
    };
}
pub(in crate::sampling) use marking_entry;
