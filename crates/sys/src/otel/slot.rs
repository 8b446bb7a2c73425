//! The thread-local by which a reader finds a thread's context: `otel_thread_ctx_v1`, a pointer.
//!
//! Stable Rust can neither export a thread-local nor choose how it is reached (rust-lang/rust
//! 132480). So the assembler defines the symbol, and the sequence below finds it by a *TLS
//! descriptor*, the way that the standard prefers. A linker replaces the descriptor by a constant
//! where it knows the offset: in an executable the sequence then has no call.
//!
//! The definition is weak. If another library of the same object defines the symbol, too, the
//! program links, and the two share the pointer. So each copy of dormouse also has a hidden name
//! for its own definition: if both names lead to one address, the pointer is ours.
//!
//! A reader searches the dynamic symbols of each object.
//!
//! | object | the symbol is there |
//! |---|---|
//! | shared library of Rust (`cdylib`, `dylib`) | always: `EXPORT` |
//! | `libdormouse.so` | always: `capi/dormouse.map` |
//! | executable | if linked with [`SYMBOL`]'s option |
//! | executable without shared libraries | never: it has no dynamic symbols, or cannot start with it |
//!
//! # References
//!
//! OTEP 4947, *Thread-Local Variable Resolution*. Alexandre Oliva, *TLS Descriptors for x86*
//! (RFC-TLSDESC-x86); *ELF for the Arm 64-bit Architecture*, TLS descriptors.
//!
//! # Safety
//!
//! The unsafe code is the sequence, in the form that linkers recognise, and the reference that it
//! returns: to a pointer in the thread's own storage, which lives as long as the thread.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::thread::ThreadContext;
use crate::loader;

/// The name of the symbol. An executable exports it if it is linked with
/// `-Wl,--export-dynamic-symbol=otel_thread_ctx_v1`.
pub const SYMBOL: &CStr = c"otel_thread_ctx_v1";

#[cfg(not(miri))]
mod arch {
    use std::arch::global_asm;

    use super::{AtomicPtr, ThreadContext};
    use crate::arch::address_of_thread_local;

    global_asm!(
        ".pushsection .tbss.otel_thread_ctx_v1,\"awT\",@nobits",
        ".balign 8",
        ".weak otel_thread_ctx_v1",
        ".type otel_thread_ctx_v1,@tls_object",
        ".size otel_thread_ctx_v1,8",
        concat!(".globl ", of_this_version!("dormouse_thread_ctx_v1")),
        concat!(".hidden ", of_this_version!("dormouse_thread_ctx_v1")),
        concat!(".type ", of_this_version!("dormouse_thread_ctx_v1"), ",@tls_object"),
        concat!(".size ", of_this_version!("dormouse_thread_ctx_v1"), ",8"),
        "otel_thread_ctx_v1:",
        concat!(of_this_version!("dormouse_thread_ctx_v1"), ":"),
        ".zero 8",
        ".popsection",
    );

    /// rustc hands the linker of a shared library the names that it exports, in a version script,
    /// and that hides all others. The names in such a script are patterns: this one stands for the
    /// symbol that the assembler defines. (So it is with GNU's linker, gold and LLVM's.) The
    /// version is one of the characters that the underscore may be, so that two versions of this
    /// crate in one program have different names.
    #[unsafe(export_name = concat!("otel_thread_ctx[_", env!("CARGO_PKG_VERSION"), "]v1"))]
    static EXPORT: u8 = 0;

    #[inline(never)]
    pub(super) fn shared() -> *const AtomicPtr<ThreadContext> {
        address_of_thread_local!("otel_thread_ctx_v1")
    }

    #[inline(never)]
    pub(super) fn own() -> *const AtomicPtr<ThreadContext> {
        address_of_thread_local!(of_this_version!("dormouse_thread_ctx_v1"))
    }

    pub(super) const EXISTS: bool = crate::arch::IS_KNOWN;
}

#[cfg(miri)]
mod arch {
    use super::{AtomicPtr, ThreadContext};

    pub(super) fn shared() -> *const AtomicPtr<ThreadContext> {
        std::ptr::null()
    }

    pub(super) fn own() -> *const AtomicPtr<ThreadContext> {
        std::ptr::null()
    }

    pub(super) const EXISTS: bool = false;
}

/// The thread-local pointer of the calling thread, by which profilers find its context.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    pointer: &'static AtomicPtr<ThreadContext>,
    /// It is the thread's own, and goes with it.
    not_send: PhantomData<*const ()>,
}

impl Slot {
    /// Finds the pointer; `None` if there is none.
    ///
    /// # Async-signal-safety
    ///
    /// Only after the thread has used a thread-local of this object: the first use of one in an
    /// object that was opened later allocates them all.
    #[cold]
    pub fn of_thread() -> Option<Self> {
        // SAFETY: the pointer is in the storage of this thread, and the slot does not leave it.
        let pointer = unsafe { arch::shared().as_ref() }?;
        Some(Self { pointer, not_send: PhantomData })
    }

    /// Makes the pointer lead to `context`, or to nothing for `None`.
    #[inline]
    pub fn show(self, context: Option<&'static ThreadContext>) {
        let context = context.map_or(ptr::null_mut(), |context| ptr::from_ref(context).cast_mut());
        // A reader looks while the thread is stopped, so the order of instructions is enough.
        self.pointer.store(context, Ordering::Relaxed);
    }

    /// The address of the pointer in the storage of this thread: where a reader outside of the
    /// process reads it.
    pub fn address(self) -> usize {
        ptr::from_ref(self.pointer).addr()
    }
}

/// Whether readers find the symbol of this copy of dormouse.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Visibility {
    /// Yes, in the object of that name.
    Visible(String),
    /// No: the object of that name contains it, but does not export it.
    Hidden(String),
    /// No: the symbol leads to another library's pointer, in the object of that name.
    Foreign(String),
    /// There is no symbol on this architecture.
    Absent,
}

/// Finds out whether readers find the symbol, and whether it is ours.
///
/// # Cost
///
/// Searches the dynamic symbols of all loaded objects.
pub fn visibility() -> Visibility {
    if !arch::EXISTS {
        return Visibility::Absent;
    }
    let here = visibility as *const () as usize;
    if !ptr::eq(arch::shared(), arch::own()) {
        let other = loader::other_exporter(SYMBOL, here).map(loader::object_of);
        return Visibility::Foreign(other.unwrap_or_else(|| loader::object_of(here)));
    }
    if let Some(other) = loader::other_exporter(SYMBOL, here) {
        return Visibility::Foreign(loader::object_of(other));
    }
    let object = loader::object_of(here);
    if loader::exports(here, SYMBOL) { Visibility::Visible(object) } else { Visibility::Hidden(object) }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_a_slot_of_its_own() {
        static CONTEXT: std::sync::LazyLock<ThreadContext> =
            std::sync::LazyLock::new(|| ThreadContext::of("x"));
        let slot = Slot::of_thread().unwrap();
        assert_eq!(slot.address(), arch::own().addr());
        slot.show(Some(&CONTEXT));
        let other = std::thread::spawn(|| {
            let slot = Slot::of_thread().unwrap();
            (slot.address(), slot.pointer.load(Ordering::Relaxed).is_null())
        });
        let (address, is_null) = other.join().unwrap();
        assert!(is_null && address != slot.address());
        assert!(ptr::eq(slot.pointer.load(Ordering::Relaxed), &raw const *CONTEXT));
        slot.show(None);
        assert!(slot.pointer.load(Ordering::Relaxed).is_null());
    }

    #[test]
    fn a_test_program_hides_the_symbol() {
        let Visibility::Hidden(object) = visibility() else { panic!("{:?}", visibility()) };
        assert_eq!(object, loader::object_of(visibility as *const () as usize));
    }
}
