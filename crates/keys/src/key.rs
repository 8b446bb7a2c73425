//! A key: a name and a state. The fast path of a site reads neither.
//!
//! Leases belong to one process: a forked child has none. Nothing can be freed in a forked child,
//! so leases are not given back there; they become void. Leases, counts and the table of holds
//! carry the number of forks in the ancestry of the process that made them ([`rendezvous::forks`]),
//! and a child's number is a different one. All copies of dormouse in a process count forks
//! together, because they read one another's counts.

use std::fmt;
use std::mem::offset_of;
use std::ops::Deref;
use std::sync::atomic::Ordering;

use dormouse_sys::rendezvous;

use crate::abi::{Attached, Attachment, Text};
use crate::patch_lock::PatchLock;
use crate::primitive::{AtomicBool, AtomicU64, const_unless_loom};

/// A named boolean that code branches on.
///
/// A key is on while its *baseline* is on or a [`Lease`](crate::Lease) on it is held. While it is
/// *suspended* it is off in any case; when that ends, baseline and leases decide again. Only a
/// [`Batch`](crate::Batch) changes the state.
///
/// The layout is an ABI: C defines keys too (`struct dormouse_key`), and objects that were built
/// elsewhere contain their own. It grows only at its end. Copies of dormouse in one process share
/// keys: see [`dormouse_sys::rendezvous::ABI`].
#[repr(C)]
pub struct Key {
    /// Bytes of this structure; later versions are longer.
    size: u32,
    /// The state of the sites. Stored after the text has changed, so a thread that reads `true`
    /// finds awake code.
    on: AtomicBool,
    baseline: AtomicBool,
    initial: bool,
    /// Off in spite of baseline and leases. C defines it as a reserved byte, which is 0.
    suspended: AtomicBool,
    /// The lower half is the count; the upper half is the number of forks behind the process that
    /// made the count, which is void in a process with another number.
    leases: AtomicU64,
    name: Text,
    file: Text,
    attached: Attached,
    /// The kind of the attachment ([`Attachment::KIND`]), 0 for none.
    kind: u32,
    line: u32,
    #[cfg(all(test, loom))]
    pub(crate) site: crate::primitive::ModelSite,
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Key>() == 64 && align_of::<Key>() == 8);

/// A [`Key`] whose state at the start of the process is part of its type, because the sites are
/// assembled for that state.
#[repr(transparent)]
pub struct StaticKey<const INITIAL: bool>(Key);

impl<const INITIAL: bool> StaticKey<INITIAL> {
    const_unless_loom! {
        /// A key; [`static_key!`](crate::static_key) fills in `file` and `line`.
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
                attached: Attached::NOTHING,
                kind: 0,
                line,
                #[cfg(all(test, loom))]
                site: crate::primitive::ModelSite::new(INITIAL),
            })
        }
    }

    /// The same key with data of its owner attached, which [`Key::attached`] returns to code that
    /// finds the key by name.
    #[must_use]
    pub const fn with<T: Attachment>(mut self, attached: &'static T) -> Self {
        self.0.attached = Attached::new(attached);
        self.0.kind = T::KIND;
        self
    }

    /// The key without the type parameter for its initial state.
    pub const fn key(&'static self) -> &'static Key {
        &self.0
    }
}

/// The flags of a site's entry. The parameter is a pointer, to which nothing coerces: the static
/// that a site names must be a key itself, not a reference to one, because the entry stores its
/// address.
#[doc(hidden)]
pub const fn flags<const INITIAL: bool>(_: *const StaticKey<INITIAL>, branch: bool) -> u32 {
    branch as u32 | (INITIAL as u32) << 1
}

impl<const INITIAL: bool> Deref for StaticKey<INITIAL> {
    type Target = Key;

    fn deref(&self) -> &Key {
        &self.0
    }
}

impl<const INITIAL: bool> fmt::Debug for StaticKey<INITIAL> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("name", &self.name)
            .field("on", &self.is_enabled())
            .field("baseline", &self.baseline())
            .field("leases", &self.leases())
            .finish_non_exhaustive()
    }
}

impl Key {
    /// The offsets of the fields, for programs that define keys in another language.
    #[doc(hidden)]
    pub const LAYOUT: [(&str, usize); 10] = [
        ("size", offset_of!(Self, size)),
        ("on", offset_of!(Self, on)),
        ("baseline", offset_of!(Self, baseline)),
        ("initial", offset_of!(Self, initial)),
        ("leases", offset_of!(Self, leases)),
        ("name", offset_of!(Self, name)),
        ("file", offset_of!(Self, file)),
        ("attached", offset_of!(Self, attached)),
        ("kind", offset_of!(Self, kind)),
        ("line", offset_of!(Self, line)),
    ];

    /// Where the name and the file's name lie; nothing of them is read.
    #[cfg(dormouse_patching)]
    pub(crate) fn texts(&self) -> [std::ops::Range<usize>; 2] {
        [self.name.range(), self.file.range()]
    }

    /// The name, which need not be unique in the process.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The source file that defines the key.
    pub fn file(&self) -> &str {
        self.file.as_str()
    }

    /// The line in [`Key::file`].
    pub fn line(&self) -> u32 {
        self.line
    }

    /// The owner's attachment, if it is a `T`.
    pub fn attached<T: Attachment>(&self) -> Option<&T> {
        self.attached.get(self.kind)
    }

    /// Whether the sites are awake. The effect of a batch becomes visible when the batch is
    /// complete.
    pub fn is_enabled(&self) -> bool {
        // Pairs with the store in `publish`.
        self.on.load(Ordering::Acquire)
    }

    /// The state that a site loads where sites are not patched.
    #[doc(hidden)]
    #[inline(always)]
    pub fn is_enabled_relaxed(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// The state at the start of the process, which [`Batch::reset_all`](crate::Batch::reset_all)
    /// restores.
    pub fn initial(&self) -> bool {
        self.initial
    }

    /// The state that stays when all leases are gone.
    pub fn baseline(&self) -> bool {
        self.baseline.load(Ordering::Relaxed)
    }

    /// Whether the key is off whatever its baseline is and however many leases are held.
    pub fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Relaxed)
    }

    /// Whether something is attached: an instrument, such as a probe, as opposed to a branch of the
    /// program's own.
    pub fn is_instrument(&self) -> bool {
        self.kind != 0
    }

    /// The number of leases held, including those that end by time.
    pub fn leases(&self) -> u32 {
        let leases = self.leases.load(Ordering::Relaxed);
        if (leases >> 32) as u32 == rendezvous::forks() { leases as u32 } else { 0 }
    }

    /// The address by which site entries name the key.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Suspends the key or resumes it; [`Key::publish`] follows.
    pub(crate) fn set_suspended(&self, _: PatchLock<'_>, suspended: bool) {
        self.suspended.store(suspended, Ordering::Relaxed);
    }

    /// Makes a new state visible, after the text has changed.
    pub(crate) fn publish(&self, lock: PatchLock<'_>, baseline: bool, leases: u32) {
        self.baseline.store(baseline, Ordering::Relaxed);
        let forks = u64::from(rendezvous::forks()) << 32;
        self.leases.store(forks | u64::from(leases), Ordering::Relaxed);
        let is_on = (baseline || leases > 0) && !self.is_suspended();
        // Pairs with the load in `is_enabled`.
        self.on.store(is_on, Ordering::Release);
        // Changed under the patch lock alone, so no locked instruction is needed. The store pairs
        // with the load in `registry::count_on`.
        let switches = &lock.table.switches;
        switches.store(switches.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}
