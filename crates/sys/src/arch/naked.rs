//! Handlers for the kernel to call, without frames of their own: functions whose instructions are
//! the processor's.
//!
//! A processor has the instructions of each as text: `entry_code!`, `room_code!` and
//! `counting_code!`, whose operands are those that are named here.
//!
//! # Safety
//!
//! The unsafe code is in the macros: naked functions, which the kernel calls with its arguments.

/// Lines of assembly as one text.
#[doc(hidden)]
#[macro_export]
macro_rules! assembly {
    ($($line:expr),* $(,)?) => { concat!($($line, "\n"),*) };
}

/// Defines a handler for the kernel to call, which calls `$choose` with the kernel's arguments and
/// its frame, and goes on at the address that this returns; 0: returns.
///
/// An unwinding passes through it: a handler that `passing::pass_on` calls in place may unwind.
#[macro_export]
macro_rules! entry {
    ($(#[$doc:meta])* $visible:vis fn $name:ident => $choose:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        $visible unsafe extern "C-unwind" fn $name(
            signal: libc::c_int,
            info: *mut libc::siginfo_t,
            context: *mut std::ffi::c_void,
        ) {
            std::arch::naked_asm!($crate::entry_code!(), choose = sym $choose)
        }
    };
}

/// Defines a handler for the kernel to call that goes on as `$roomy`, or as `$cramped` if it runs
/// on an alternate stack with less than `$room` bytes left. It uses no stack and changes no
/// argument, so either may be a function of [`entry!`](crate::entry).
#[macro_export]
macro_rules! entry_with_room {
    ($(#[$doc:meta])* $visible:vis fn $name:ident: $room:expr => $roomy:path, else $cramped:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        $visible unsafe extern "C-unwind" fn $name(
            signal: libc::c_int,
            info: *mut libc::siginfo_t,
            context: *mut std::ffi::c_void,
        ) {
            std::arch::naked_asm!(
                $crate::room_code!(),
                low = const std::mem::offset_of!(libc::ucontext_t, uc_stack)
                    + std::mem::offset_of!(libc::stack_t, ss_sp),
                size = const std::mem::offset_of!(libc::ucontext_t, uc_stack)
                    + std::mem::offset_of!(libc::stack_t, ss_size),
                room = const $room,
                roomy = sym $roomy,
                cramped = sym $cramped,
            )
        }
    };
}

/// Defines a handler that counts a signal whose word at `$code` is `$event`, and whose word of
/// eight bytes at `$data` has `$ours` above the lowest 52 bits. Other signals go on as `$go_on`. It
/// uses no stack.
macro_rules! counting_entry {
    (fn $name:ident: $code:expr, $event:expr; $data:expr, $ours:expr; $count:path, else $go_on:path) => {
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name(
            _: libc::c_int,
            _: *mut libc::siginfo_t,
            _: *mut std::ffi::c_void,
        ) {
            std::arch::naked_asm!(
                crate::arch::counting_code!(),
                code = const $code,
                event = const $event,
                data = const $data,
                ours = const $ours,
                count = sym $count,
                go_on = sym $go_on,
            )
        }
    };
}
pub(crate) use counting_entry;
