//! The handler of samples without room, for processors whose code is known.
//!
//! A processor has its instructions as text, `marking_code!`, whose operands are those that are
//! named here.
//!
//! # Safety
//!
//! The unsafe code is in the macro: a naked function, which the kernel calls with its arguments.

/// Defines a handler that marks the slot of the thread, if the signal is that of a timer of ours,
/// and counts it. Other signals go on as `$go_on`. It uses no stack.
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
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name(
            _: libc::c_int,
            _: *mut libc::siginfo_t,
            _: *mut std::ffi::c_void,
        ) {
            std::arch::naked_asm!(
                crate::sampling::arch::marking_code!(),
                code = const $code,
                timer = const $timer,
                value = const $value,
                last = const $last,
                first = const $first,
                table = sym $table,
                shift = const $shift,
                generation = const $generation,
                mark = const $mark,
                count = sym $count,
                go_on = sym $go_on,
            )
        }
    };
}
pub(in crate::sampling) use marking_entry;
