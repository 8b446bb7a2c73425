//! A key: a name, a state, and nothing that the fast path would look at.

use std::fmt;
use std::mem::offset_of;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::abi::{Attached, Attachment, Text};
use crate::primitive::{AtomicBool, AtomicU64, const_fn};
use crate::{Batch, BatchReport, Error, Lease, generation};

/// A named boolean that code branches on.
///
/// A key is on while its *baseline* is on or somebody holds a [`Lease`]. The state changes through
/// [`Batch`] alone, under the patch lock.
///
/// The layout is an ABI: C lays keys down too (`struct dormouse_key`), and objects that were built elsewhere
/// bring theirs along. It grows at its end only. Copies of dormouse in one process share keys: see
/// [`dormouse_sys::rendezvous::ABI`].
#[repr(C)]
pub struct Key {
    /// Bytes of this structure; later versions are longer.
    size: u32,
    /// What the sites are now. Stored after the text has changed, so who reads `true` finds awake code.
    on: AtomicBool,
    baseline: AtomicBool,
    initial: bool,
    /// In the lower half the count; in the upper one the generation in which it was made, in another of which it is
    /// void.
    leases: AtomicU64,
    name: Text,
    file: Text,
    attached: Attached,
    /// What is attached ([`Attachment::KIND`]), 0 for nothing.
    kind: u32,
    line: u32,
    #[cfg(all(test, loom))]
    pub(crate) site: crate::interleavings::Site,
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Key>() == 64 && align_of::<Key>() == 8);

/// A [`Key`] whose state at the start of the process is part of its type, because the sites are assembled by
/// it.
#[repr(transparent)]
pub struct StaticKey<const INITIAL: bool>(Key);

impl<const INITIAL: bool> StaticKey<INITIAL> {
    const_fn! {
        /// A key; [`static_key!`](crate::static_key) fills in the place.
        pub const fn new(name: &'static str, file: &'static str, line: u32) -> Self {
            Self(Key {
                size: size_of::<Key>() as u32,
                on: AtomicBool::new(INITIAL),
                baseline: AtomicBool::new(INITIAL),
                initial: INITIAL,
                leases: AtomicU64::new(0),
                name: Text::new(name),
                file: Text::new(file),
                attached: Attached::NOTHING,
                kind: 0,
                line,
                #[cfg(all(test, loom))]
                site: crate::interleavings::Site::new(INITIAL),
            })
        }
    }

    /// The same key with something of its owner's attached, for who finds the key by name: see
    /// [`Key::attached`].
    #[must_use]
    pub const fn with<T: Attachment>(mut self, attached: &'static T) -> Self {
        self.0.attached = Attached::new(attached);
        self.0.kind = T::KIND;
        self
    }

    /// The key without its type's knowledge of the initial state.
    pub const fn key(&'static self) -> &'static Key {
        &self.0
    }

    /// The state at the start of the process, known at compile time.
    pub const fn initial(&self) -> bool {
        INITIAL
    }
}

/// The flags of a site's entry. A pointer, which nothing coerces: the static that a site names must be a key
/// itself, not a reference to one, because its address is what the entry keeps.
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
    /// Where the parts are, for who lays keys down in another language.
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

    /// The name, which need not be unique.
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

    /// What the key's owner has attached to it, if it is a `T`.
    pub fn attached<T: Attachment>(&self) -> Option<&T> {
        self.attached.get(self.kind)
    }

    /// Whether the sites are awake. A batch that is under way shows when it is complete.
    pub fn is_enabled(&self) -> bool {
        // Pairs with the store in `publish`.
        self.on.load(Ordering::Acquire)
    }

    /// What a site reads where sites are not patched.
    #[doc(hidden)]
    #[inline(always)]
    pub fn is_enabled_relaxed(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// The state that stays when all leases are gone.
    pub fn baseline(&self) -> bool {
        self.baseline.load(Ordering::Relaxed)
    }

    /// How many leases are held, those that end by time included.
    pub fn leases(&self) -> u32 {
        let leases = self.leases.load(Ordering::Relaxed);
        if (leases >> 32) as u32 == generation::present() { leases as u32 } else { 0 }
    }

    /// Sets the baseline on.
    ///
    /// # Cost
    ///
    /// That of a [`Batch`] of one key; use one batch for many.
    pub fn enable(&'static self) -> Result<BatchReport, Error> {
        Batch::new().enable(self).apply()
    }

    /// Sets the baseline off. The key stays on while there are leases.
    ///
    /// # Cost
    ///
    /// That of a [`Batch`] of one key; use one batch for many.
    pub fn disable(&'static self) -> Result<BatchReport, Error> {
        Batch::new().disable(self).apply()
    }

    /// Keeps the key on until the lease is dropped.
    ///
    /// # Cost
    ///
    /// That of a [`Batch`] of one key if the key was off, else a lock.
    pub fn acquire(&'static self) -> Result<Lease, Error> {
        Lease::of([self])
    }

    /// Keeps the key on for a time: see [`Batch::enable_for`].
    ///
    /// # Cost
    ///
    /// That of a [`Batch`] of one key if the key was off, else a lock; the first of a process starts a thread.
    pub fn enable_for(&'static self, length: Duration) -> Result<BatchReport, Error> {
        Batch::new().enable_for(self, length).apply()
    }

    /// Has the key go off now if it is only lingering: see [`Batch::dwell`].
    pub fn flush(&'static self) -> Result<BatchReport, Error> {
        Batch::new().flush_all([self]).apply()
    }

    /// The address by which site entries name the key.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Makes a new state visible; under the patch lock, after the text has changed.
    pub(crate) fn publish(&self, baseline: bool, leases: u32) {
        self.baseline.store(baseline, Ordering::Relaxed);
        let generation = u64::from(generation::present()) << 32;
        self.leases.store(generation | u64::from(leases), Ordering::Relaxed);
        // Pairs with the load in `is_enabled`.
        self.on.store(baseline || leases > 0, Ordering::Release);
    }
}

/// Defines static keys: `pub static NAME: "dotted.name" = false;`, with attributes and doc comments.
///
/// The key's type is [`StaticKey<INITIAL>`](crate::StaticKey): a key that starts on is another type than one
/// that starts off, because its sites are assembled awake.
#[macro_export]
macro_rules! static_key {
    ($($(#[$meta:meta])* $vis:vis static $key:ident: $name:literal = $initial:literal;)+) => {
        $(
            $(#[$meta])*
            $vis static $key: $crate::StaticKey<$initial> = $crate::StaticKey::new($name, file!(), line!());
        )+
    };
}

/// Whether a key is on, where it usually is not: asleep, the site falls through to `false`.
///
/// Takes the path of a static [`StaticKey`]. Never fails. A key that is no static has no sites:
///
/// ```compile_fail
/// let key = dormouse_keys::StaticKey::<false>::new("on.the.stack", file!(), line!());
/// let on = dormouse_keys::unlikely!(key);
/// ```
///
/// Nor has a reference to a key:
///
/// ```compile_fail
/// dormouse_keys::static_key! { static KEY: "a.key" = false; }
/// static ALIAS: &dormouse_keys::StaticKey<false> = &KEY;
/// let on = dormouse_keys::unlikely!(ALIAS);
/// ```
#[macro_export]
macro_rules! unlikely {
    ($key:path) => {
        $crate::__dormouse_site!($key, branch = false)
    };
}

/// Whether a key is on, where it usually is: on, the site falls through to `true`.
///
/// Takes the path of a static [`StaticKey`]. Never fails.
#[macro_export]
macro_rules! likely {
    ($key:path) => {
        $crate::__dormouse_site!($key, branch = true)
    };
}
