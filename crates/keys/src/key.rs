//! A key: a name, a state, and nothing that the fast path would look at.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::{Batch, BatchReport, Error, Lease};

/// A named boolean that code branches on.
///
/// A key is on while its *baseline* is on or somebody holds a [`Lease`]. The state changes through
/// [`Batch`] alone, under the patch lock.
///
/// Copies of dormouse in one process share keys: see [`dormouse_sys::rendezvous::ABI`].
#[repr(C)]
pub struct Key {
    /// What the sites are now. Stored after the text has changed, so who reads `true` finds awake code.
    on: AtomicBool,
    baseline: AtomicBool,
    initial: bool,
    leases: AtomicU32,
    line: u32,
    name: &'static str,
    file: &'static str,
    attached: Option<&'static (dyn Any + Send + Sync)>,
}

/// A [`Key`] whose state at the start of the process is part of its type, because the sites are assembled by
/// it.
#[repr(transparent)]
pub struct StaticKey<const INITIAL: bool>(Key);

impl<const INITIAL: bool> StaticKey<INITIAL> {
    /// A key; [`static_key!`](crate::static_key) fills in the place.
    pub const fn new(name: &'static str, file: &'static str, line: u32) -> Self {
        Self(Key {
            on: AtomicBool::new(INITIAL),
            baseline: AtomicBool::new(INITIAL),
            initial: INITIAL,
            leases: AtomicU32::new(0),
            line,
            name,
            file,
            attached: None,
        })
    }

    /// The same key with something of its owner's attached, for who finds the key by name: see
    /// [`Key::attached`].
    #[must_use]
    pub const fn with(mut self, attached: &'static (dyn Any + Send + Sync)) -> Self {
        self.0.attached = Some(attached);
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
    /// The name, which need not be unique.
    pub fn name(&self) -> &str {
        self.name
    }

    /// The source file that defines the key.
    pub fn file(&self) -> &str {
        self.file
    }

    /// The line in [`Key::file`].
    pub fn line(&self) -> u32 {
        self.line
    }

    /// What the key's owner has attached to it, if it is a `T`.
    pub fn attached<T: Any>(&self) -> Option<&T> {
        // To the `Any`, not to the reference of it.
        let attached: &'static (dyn Any + Send + Sync) = self.attached?;
        attached.downcast_ref()
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

    /// How many leases are held.
    pub fn leases(&self) -> u32 {
        self.leases.load(Ordering::Relaxed)
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

    /// The address by which site entries name the key.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Makes a new state visible; under the patch lock, after the text has changed.
    pub(crate) fn publish(&self, baseline: bool, leases: u32) {
        self.baseline.store(baseline, Ordering::Relaxed);
        self.leases.store(leases, Ordering::Relaxed);
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
