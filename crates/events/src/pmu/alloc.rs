//! Allocations, counted by a wrapper of the global allocator.
//!
//! The wrapper sleeps behind one static key, `dormouse.alloc`, until any of its functions is used.
//! Asleep, it branches on the key first and then tail-calls the inner allocator, so that no
//! register has to be saved; a second branch behind the call cost twice as much. Awake, a separate
//! function does what is wanted, each thing behind a key of its own.
//!
//! A counted allocation is three or four additions to the thread's own cells. They are constant
//! thread-locals, so the first use sets up nothing and allocates nothing.
//!
//! # The peak
//!
//! Peaks of live bytes cannot be added over tasks, so a peak is not a count. The rise of a
//! *thread's* high-water mark is one: `alloc-peak`, charged to the task during which the mark rose.
//! Its sum over all tasks, and the time between tasks, is the sum of the threads' peaks since
//! counting began. For one task it is the amount by which the task raised its threads' peaks, not
//! the most memory that it held itself.
//!
//! While nobody counts, or counting is suspended, live bytes change unseen. So when counting begins
//! anew or goes on, each thread's mark begins at the bytes that are live then, whatever it was
//! before.
//!
//! Bytes that a thread frees lower its live bytes even if another thread allocated them. A thread
//! that allocates memory which others free seems only to grow.
//!
//! # A sample
//!
//! The wrapper can also report a sample of allocations to a listener ([`heap`]): `sampling.rs`.
//!
//! # Safety
//!
//! The unsafe code passes every request on to the inner allocator unchanged, and returns its
//! answer.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use dormouse_keys::{Key, Lease, static_key, unlikely};
use dormouse_sys::heap::{Heap, Listener, Subscription};
use dormouse_sys::process::fork::{Mutex, Phase};
use dormouse_sys::stack::{self, CallFrame};
use dormouse_sys::thread::ThreadBlock;

use super::cells::{self, Cells};
use super::event::{Event, Pmu, Unit};
use super::sampling::{self, FOLLOWED, SAMPLED};
use crate::error::Error;

static_key! {
    /// One of the others is on: the only one that is tested asleep.
    static AWAKE: "dormouse.alloc" = false;
}

static_key! {
    /// Somebody counts allocations.
    static COUNTED: "dormouse.alloc.counted" = false;
}

const COUNT: u32 = 0;
const BYTES: u32 = 1;
const FREED: u32 = 2;
const PEAK: u32 = 3;

/// The events as the library lists them.
pub(super) const EVENTS: [Event; cells::ALLOC_EVENTS] =
    [Event::ALLOC_COUNT, Event::ALLOC_BYTES, Event::FREE_BYTES, Event::ALLOC_PEAK];

impl Event {
    /// Allocations of the thread. A reallocation counts as one more.
    pub const ALLOC_COUNT: Self = Self::new("alloc-count", &Allocations, COUNT);
    /// Bytes that the thread has allocated.
    pub const ALLOC_BYTES: Self = Self::new("alloc-bytes", &Allocations, BYTES);
    /// Bytes that the thread has freed, whichever thread allocated them.
    pub const FREE_BYTES: Self = Self::new("free-bytes", &Allocations, FREED);
    /// Bytes by which the thread's high-water mark of live bytes has risen since counting began
    /// (see [`crate::pmu::alloc`]).
    pub const ALLOC_PEAK: Self = Self::new("alloc-peak", &Allocations, PEAK);
}

/// A global allocator that passes requests on to `A`, and counts them when that is switched on.
///
/// ```
/// #[global_allocator]
/// static ALLOC: dormouse_events::Alloc = dormouse_events::Alloc::new();
/// ```
///
/// # Cost
///
/// Asleep, one instruction for each request. Awake, a few nanoseconds for each function that is in
/// use.
#[derive(Debug, Default)]
pub struct Alloc<A = System>(A);

impl Alloc {
    /// Wraps the system's allocator.
    pub const fn new() -> Self {
        Self(System)
    }
}

impl<A> Alloc<A> {
    /// Wraps `inner`.
    pub const fn over(inner: A) -> Self {
        Self(inner)
    }
}

// SAFETY: each request and each answer of the allocator inside is passed on as it is, and counting
// allocates nothing.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Alloc<A> {
    #[inline(always)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if unlikely!(AWAKE) {
            // SAFETY: the caller's promise.
            return unsafe { Self::alloc_awake(layout, stack::here(), self) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.0.alloc(layout) }
    }

    #[inline(always)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if unlikely!(AWAKE) {
            // SAFETY: the caller's promise.
            return unsafe { Self::alloc_zeroed_awake(layout, stack::here(), self) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    #[inline(always)]
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if unlikely!(AWAKE) {
            // SAFETY: the caller's promise.
            return unsafe { Self::dealloc_awake(place, layout, self) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.0.dealloc(place, layout) };
    }

    #[inline(always)]
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if unlikely!(AWAKE) {
            // SAFETY: the caller's promise.
            return unsafe { Self::realloc_awake(place, layout, size, stack::here(), self) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.0.realloc(place, layout, size) }
    }
}

/// Awake. Apart from the others, so that these need no register for it. The allocator comes last,
/// so that the other arguments stay in their registers.
impl<A: GlobalAlloc> Alloc<A> {
    #[inline(never)]
    unsafe fn alloc_awake(layout: Layout, from: CallFrame, own: &Self) -> *mut u8 {
        // SAFETY: the caller's promise.
        let place = unsafe { own.0.alloc(layout) };
        allocated(place, layout.size(), from);
        place
    }

    #[inline(never)]
    unsafe fn alloc_zeroed_awake(layout: Layout, from: CallFrame, own: &Self) -> *mut u8 {
        // SAFETY: the caller's promise.
        let place = unsafe { own.0.alloc_zeroed(layout) };
        allocated(place, layout.size(), from);
        place
    }

    #[inline(never)]
    unsafe fn dealloc_awake(place: *mut u8, layout: Layout, own: &Self) {
        if unlikely!(COUNTED) {
            count_freed(layout.size());
        }
        // Before: behind it another thread may have the place.
        if unlikely!(FOLLOWED) {
            sampling::freed(place.addr());
        }
        // SAFETY: the caller's promise.
        unsafe { own.0.dealloc(place, layout) };
    }

    #[inline(never)]
    unsafe fn realloc_awake(
        place: *mut u8,
        layout: Layout,
        size: usize,
        from: CallFrame,
        own: &Self,
    ) -> *mut u8 {
        // As in `dealloc_awake`. One that then fails is taken for freed.
        if unlikely!(FOLLOWED) {
            sampling::freed(place.addr());
        }
        // SAFETY: the caller's promise.
        let moved = unsafe { own.0.realloc(place, layout, size) };
        if unlikely!(COUNTED) && !moved.is_null() {
            count_freed(layout.size());
        }
        allocated(moved, size, from);
        moved
    }
}

#[inline]
fn allocated(place: *mut u8, bytes: usize, from: CallFrame) {
    if unlikely!(COUNTED) && !place.is_null() {
        count_allocated(bytes);
    }
    if unlikely!(SAMPLED) && !place.is_null() {
        sampling::allocated(place.addr(), bytes, from);
    }
}

#[inline]
fn count_allocated(bytes: usize) {
    let bytes = bytes as u64;
    cells::own(|cells| {
        cells.alloc[COUNT as usize].add(1);
        cells.alloc[BYTES as usize].add(bytes);
        let room = below_peak(cells);
        if bytes > room {
            cells.alloc[PEAK as usize].add(bytes - room);
        }
        set(&cells.below_peak, room.saturating_sub(bytes));
    });
}

#[inline]
fn count_freed(bytes: usize) {
    let bytes = bytes as u64;
    cells::own(|cells| {
        cells.alloc[FREED as usize].add(bytes);
        set(&cells.below_peak, below_peak(cells).saturating_add(bytes));
    });
}

/// How many live bytes the thread is below its high-water mark since counting began.
#[inline]
fn below_peak(cells: &Cells) -> u64 {
    let begun = BEGUN.load(Ordering::Relaxed);
    if cells.below_peak_since.load(Ordering::Relaxed) != begun {
        set(&cells.below_peak, 0);
        set(&cells.below_peak_since, begun);
    }
    cells.below_peak.load(Ordering::Relaxed)
}

#[inline]
fn set(cell: &AtomicU64, value: u64) {
    cell.store(value, Ordering::Relaxed);
}

/// How often counting has begun after nobody counted, or has gone on after it was suspended.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// Counting goes on that was suspended, perhaps together with the keys.
pub(crate) fn goes_on() {
    BEGUN.fetch_add(1, Ordering::Relaxed);
}

/// One for each begin. A fork child has none of them (keys see to it).
static LEASES: Mutex<Vec<Lease>> = Mutex::new(Phase::Allocations, Vec::new());

#[derive(Debug)]
struct Allocations;

impl Pmu for Allocations {
    fn name(&self) -> &'static str {
        "alloc"
    }

    cells::reads_cells!(alloc);

    fn begin(&self, events: &[u32]) -> Result<(), Error> {
        let refused = |reason| {
            let event = events.iter().find_map(|&event| EVENTS.get(event as usize));
            Error::Unavailable { event: event.map_or("alloc", |event| event.name()).to_owned(), reason }
        };
        if let Some(reason) = why_not() {
            return Err(refused(reason));
        }
        let lease = wake(COUNTED.key()).map_err(|error| refused(error.to_string()))?;
        let mut leases = LEASES.lock().map_err(|_| Error::Reentrant)?;
        // The first one. Leases of a fork's parent have no keys.
        if leases.iter().all(|lease| lease.keys().is_empty()) {
            BEGUN.fetch_add(1, Ordering::Relaxed);
        }
        leases.push(lease);
        Ok(())
    }

    fn end(&self, _events: &[u32]) {
        // A handler over this call finds the lock taken: then allocations stay counted.
        let lease = LEASES.lock().ok().and_then(|mut leases| leases.pop());
        // Not under the lock: it may be the last one, and then code is patched.
        drop(lease);
    }

    fn keys(&self) -> Vec<&'static Key> {
        vec![AWAKE.key(), COUNTED.key()]
    }

    fn unit(&self, event: u32) -> Unit {
        if event == COUNT { Unit::Times } else { Unit::Bytes }
    }

    fn note(&self, event: u32) -> Option<&'static str> {
        (event == PEAK).then_some("rise of the threads' high-water marks")
    }

    fn why_not(&self, _event: u32) -> Option<String> {
        why_not()
    }
}

/// Has the wrapper do what this key is for.
fn wake(key: &'static Key) -> Result<Lease, dormouse_keys::Error> {
    Lease::of([AWAKE.key(), key])
}

/// Asks the allocator that there is whether it counts.
fn why_not() -> Option<String> {
    const UNKNOWN: u8 = 2;
    static INSTALLED: AtomicU8 = AtomicU8::new(UNKNOWN);
    let installed = match INSTALLED.load(Ordering::Relaxed) {
        known if known != UNKNOWN => known == u8::from(true),
        _ => match wake(COUNTED.key()) {
            // A key that is suspended stays off, also with a lease.
            Ok(_awake) if !(AWAKE.is_enabled() && COUNTED.is_enabled()) => {
                return Some("dormouse is asleep".to_owned());
            }
            Ok(_awake) => {
                let count = || cells::own(|cells| cells.alloc[COUNT as usize].value());
                let before = count();
                drop(black_box(Box::new(0_u64)));
                let installed = count() != before;
                // Another thread that tests this finds the same.
                INSTALLED.store(u8::from(installed), Ordering::Relaxed);
                installed
            }
            Err(error) => return Some(error.to_string()),
        },
    };
    let reason = "the service does not use dormouse::Alloc as its global allocator";
    (!installed).then(|| reason.to_owned())
}

/// The keys that are on while allocations are sampled and, if `is_live`, followed to their end;
/// each once for each lease. Samplers share them.
pub fn sampling_keys(is_live: bool) -> Vec<&'static Key> {
    let mut keys = vec![AWAKE.key(), SAMPLED.key()];
    if is_live {
        keys.extend([AWAKE.key(), FOLLOWED.key()]);
    }
    keys
}

/// The wrapper's interface for samplers of allocations.
///
/// # Cost
///
/// Beginning and ending patch code, as every key does, and check once whether the service uses the
/// wrapper. While sampling, an allocation that is not picked costs a subtraction; one that is
/// picked costs what the listener does. While frees are watched, each free calls the listener.
pub fn heap() -> &'static dyn Heap {
    &Allocations
}

/// Keys that are on as long as this is there.
#[derive(Debug)]
struct Awake(#[expect(dead_code, reason = "held")] Lease);

impl Subscription for Awake {}

fn tell(key: &'static Key) -> Result<Box<dyn Subscription>, String> {
    let lease = wake(key).map_err(|error| error.to_string())?;
    Ok(Box::new(Awake(lease)))
}

impl Heap for Allocations {
    fn why_not(&self) -> Option<String> {
        why_not()
    }

    fn sample(&self, listener: &'static Listener) -> Result<Box<dyn Subscription>, String> {
        sampling::listen(listener);
        tell(SAMPLED.key())
    }

    fn set_period(&self, bytes: u64) {
        sampling::set_period(bytes);
    }

    fn watch_frees(&self) -> Result<Box<dyn Subscription>, String> {
        tell(FOLLOWED.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> [u64; 4] {
        cells::own(|cells| std::array::from_fn(|event| cells.alloc[event].value()))
    }

    #[test]
    fn the_peak_rises_by_the_excess_alone() {
        std::thread::spawn(|| {
            assert_eq!(counts(), [0; 4]);
            count_allocated(100);
            count_allocated(50);
            count_freed(100);
            assert_eq!(counts(), [2, 150, 100, 150]);
            count_allocated(60);
            assert_eq!(counts()[3], 150, "110 are live");
            count_allocated(60);
            assert_eq!(counts()[3], 170);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_missing_wrapper_is_named() {
        let refused = Event::by_name("alloc-bytes").unwrap_err().to_string();
        assert!(refused.contains("does not use dormouse::Alloc"), "{refused}");
        assert!(heap().why_not().is_some());
        assert!(
            Allocations.begin(&[BYTES]).unwrap_err().to_string().starts_with("alloc-bytes is unavailable")
        );
    }
}
