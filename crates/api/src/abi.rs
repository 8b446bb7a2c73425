//! The data of a library that dormouse reads: keys and probes, in the layouts of
//! `dormouse_keys::Key`, `dormouse::Probe`, and `struct dormouse_key` in C. They grow at their ends
//! alone.
//!
//! # Safety
//!
//! Pointers lead to static data that is never written.
#![allow(unsafe_code)]

use core::fmt;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Text in static memory.
#[derive(Clone, Copy)]
#[repr(C)]
struct Text {
    start: *const u8,
    length: usize,
}

impl Text {
    const fn new(text: &'static str) -> Self {
        Self { start: text.as_ptr(), length: text.len() }
    }

    fn as_str(&self) -> &'static str {
        // SAFETY: `new` had both from a static `str`.
        unsafe { core::str::from_utf8_unchecked(core::slice::from_raw_parts(self.start, self.length)) }
    }
}

/// A named boolean that code branches on; dormouse switches it.
#[repr(C)]
pub struct Key {
    /// Bytes of this structure.
    size: u32,
    on: AtomicBool,
    baseline: AtomicBool,
    initial: bool,
    /// Dormouse writes it: off in spite of baseline and leases.
    suspended: AtomicBool,
    leases: AtomicU64,
    name: Text,
    file: Text,
    attached: *const (),
    /// The kind of attachment; 1 is a probe.
    kind: u32,
    line: u32,
}

// Elsewhere nothing reads them.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Key>() == 64 && align_of::<Key>() == 8);

// SAFETY: the pointers lead to static data that is never written, or, for a probe, to atomics.
unsafe impl Send for Key {}
// SAFETY: as above.
unsafe impl Sync for Key {}

impl Key {
    /// The name, which need not be unique in the program.
    pub fn name(&self) -> &'static str {
        self.name.as_str()
    }

    /// Whether the key is on: a load, for code without a site.
    #[inline]
    pub fn is_enabled(&self) -> bool {
        // Pairs with dormouse's store, after it has changed the sites.
        self.on.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("name", &self.name())
            .field("file", &self.file.as_str())
            .field("line", &self.line)
            .field("on", &self.is_enabled())
            .finish_non_exhaustive()
    }
}

/// A [`Key`] whose state at the start of the program is part of its type, because its sites are
/// assembled for that state. [`static_key!`](crate::static_key) makes it.
#[derive(Debug)]
#[repr(transparent)]
pub struct StaticKey<const INITIAL: bool>(Key);

impl<const INITIAL: bool> StaticKey<INITIAL> {
    /// A key; the macros fill in `file` and `line`.
    pub const fn new(name: &'static str, file: &'static str, line: u32) -> Self {
        Self(Key {
            size: size_of::<Key>() as u32,
            on: AtomicBool::new(INITIAL),
            baseline: AtomicBool::new(INITIAL),
            initial: INITIAL,
            suspended: AtomicBool::new(false),
            leases: AtomicU64::new(0),
            name: Text::new(name),
            file: Text::new(file),
            attached: ptr::null(),
            kind: 0,
            line,
        })
    }

    /// The key of a probe; called by the macros.
    #[doc(hidden)]
    #[must_use]
    pub const fn with(mut self, probe: &'static Probe) -> Self {
        self.0.attached = ptr::from_ref(probe).cast();
        self.0.kind = 1;
        self
    }

    /// The key without the type parameter for its initial state.
    pub const fn key(&'static self) -> &'static Key {
        &self.0
    }
}

/// The names of a probe's fields, and the number that dormouse gives it; attached to its key.
#[repr(C)]
pub struct Probe {
    /// Bytes of this structure.
    size: u32,
    /// 0 until dormouse first needs it.
    id: AtomicU32,
    /// A name that is not used, then the fields' names, with commas in between.
    arguments: Text,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Probe>() == 24 && align_of::<Probe>() == 8);

// SAFETY: the text is static and never written.
unsafe impl Send for Probe {}
// SAFETY: as above.
unsafe impl Sync for Probe {}

impl Probe {
    /// Called by the macros.
    #[doc(hidden)]
    pub const fn new(arguments: &'static str) -> Self {
        Self { size: size_of::<Self>() as u32, id: AtomicU32::new(0), arguments: Text::new(arguments) }
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Probe").field(&self.arguments.as_str()).finish()
    }
}
