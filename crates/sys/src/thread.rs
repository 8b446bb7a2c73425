//! The per-thread block: who a thread is, which task it runs, and what happens when it ends.
//!
//! Blocks live in a fixed table in `.bss`: a block's address is valid for ever, claiming one allocates
//! nothing, and pages that no thread uses cost no memory. A thread claims a block at its first use of
//! dormouse and gives it back from a pthread key's destructor. (A Rust thread-local with a destructor
//! would allocate to register it, on the record path.)
//!
//! # Invariants
//!
//! 1. Only its owner, or a fork child that owns all blocks, writes a live block.
//! 2. `tid` and `start` together are never reused in a process: `start` counts claims.
//! 3. Which task is current is for its owner: records are written by the thread that they are about. Others are told
//!    whether there is one.
//!
//! # Async-signal-safety
//!
//! [`current`] is signal-safe once the process has claimed its first block; a thread's first claim calls
//! `pthread_setspecific`, which does not allocate for the first 32 keys of a process.
//!
//! # Safety
//!
//! The unsafe code here is the pthread key, `atfork` and the table's raw index from the key's value.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::rendezvous;

/// How many threads can have a block at once; further ones run uncounted.
pub const MAX_THREADS: usize = 4096;

const FREE: u8 = 0;
const CLAIMED: u8 = 1;
const LIVE: u8 = 2;

/// The part of a thread that other threads may look at.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ThreadBlock {
    state: AtomicU8,
    tid: AtomicU32,
    start: AtomicU64,
    ring: AtomicU32,
    /// The count of rings given back when the pool was last found empty.
    pool_empty_at: AtomicU32,
    group: AtomicU32,
    task: AtomicU64,
}

const _: () = assert!(size_of::<ThreadBlock>() == 128);

/// What a thread runs at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Current {
    /// The task's number, 0 outside any.
    pub task: u64,
    /// The number of the task's group, 0 outside any.
    pub group: u32,
}

static BLOCKS: [ThreadBlock; MAX_THREADS] = [const { ThreadBlock::new() }; MAX_THREADS];
/// One past the highest index ever claimed: what [`live`] looks through.
static HIGH_WATER: AtomicUsize = AtomicUsize::new(0);
static NEXT_START: AtomicU64 = AtomicU64::new(1);
static REFUSED: AtomicU64 = AtomicU64::new(0);
/// How often a block was given back.
static GIVEN_BACK: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Atomic for the signal handlers of the thread.
    static BLOCK: AtomicPtr<ThreadBlock> = const { AtomicPtr::new(std::ptr::null_mut()) };
    static ENDED: Cell<bool> = const { Cell::new(false) };
    static FULL_AT: Cell<u64> = const { Cell::new(0) };
}

impl ThreadBlock {
    const fn new() -> Self {
        Self {
            state: AtomicU8::new(FREE),
            tid: AtomicU32::new(0),
            start: AtomicU64::new(0),
            ring: AtomicU32::new(0),
            pool_empty_at: AtomicU32::new(0),
            group: AtomicU32::new(0),
            task: AtomicU64::new(0),
        }
    }

    /// The kernel's thread id.
    pub fn tid(&self) -> u32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// The thread's start number: with the tid never reused in a process.
    pub fn start(&self) -> u64 {
        self.start.load(Ordering::Relaxed)
    }

    /// The index of the thread's ring in the pool, if it has claimed one.
    pub(crate) fn ring(&self) -> Option<usize> {
        (self.ring.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    pub(crate) fn set_ring(&self, index: Option<usize>) {
        self.ring.store(index.map_or(0, |i| i as u32 + 1), Ordering::Relaxed);
    }

    pub(crate) fn found_pool_empty_at(&self, given_back: u32) -> bool {
        self.pool_empty_at.load(Ordering::Relaxed) == given_back
    }

    pub(crate) fn set_pool_empty_at(&self, given_back: u32) {
        self.pool_empty_at.store(given_back, Ordering::Relaxed);
    }

    /// Says what the thread runs from now on. Only the owner calls this.
    #[inline]
    pub fn set_current(&self, current: Current) {
        self.group.store(current.group, Ordering::Relaxed);
        self.task.store(current.task, Ordering::Relaxed);
    }

    /// Says that the thread runs another task of the same group, or with 0 none. Only the owner calls this.
    #[inline]
    pub fn set_task(&self, task: u64) {
        self.task.store(task, Ordering::Relaxed);
    }

    /// Whether the thread runs a task, as others see it: what it was a moment ago.
    pub fn has_task(&self) -> bool {
        self.task.load(Ordering::Relaxed) != 0
    }

    /// What the thread runs, as its owner sees it.
    #[inline]
    pub fn own_current(&self) -> Current {
        match self.task.load(Ordering::Relaxed) {
            0 => Current::default(),
            task => Current { task, group: self.group.load(Ordering::Relaxed) },
        }
    }

    fn is_live(&self) -> bool {
        // Pairs with the store in `claim`: a live block has its tid and start.
        self.state.load(Ordering::Acquire) == LIVE
    }

    /// Its place in the table of blocks, below [`MAX_THREADS`]; the next thread in the block has the same.
    pub fn index(&self) -> usize {
        (std::ptr::from_ref(self) as usize - BLOCKS.as_ptr() as usize) / size_of::<Self>()
    }
}

/// The calling thread's block; `None` when the table is full or the thread is past its end.
#[inline]
pub fn current() -> Option<&'static ThreadBlock> {
    let block = own();
    if block.is_null() {
        return claim();
    }
    // SAFETY: a non-null BLOCK points into BLOCKS, which is static.
    Some(unsafe { &*block })
}

#[inline]
fn own() -> *const ThreadBlock {
    BLOCK.with(|block| block.load(Ordering::Relaxed))
}

/// The calling thread's block if it has one already.
#[inline]
pub fn try_current() -> Option<&'static ThreadBlock> {
    let block = own();
    // SAFETY: a non-null BLOCK points into BLOCKS, which is static.
    (!block.is_null()).then(|| unsafe { &*block })
}

/// What the calling thread runs, as records show it: by the account of the copy that leads (see
/// [`crate::rendezvous`]).
#[inline]
pub fn recorded() -> Current {
    let mut current = Current::default();
    match rendezvous::followed() {
        None => current_for_another(&mut current),
        Some(leader) => (leader.current)(&mut current),
    }
    current
}

/// [`recorded`], for a copy that this one leads.
pub(crate) extern "C" fn current_for_another(place: &mut Current) {
    *place = current().map(ThreadBlock::own_current).unwrap_or_default();
}

/// All threads that have a block now.
pub fn live() -> impl Iterator<Item = &'static ThreadBlock> {
    BLOCKS[..HIGH_WATER.load(Ordering::Acquire)].iter().filter(|b| b.is_live())
}

/// How often a thread found the table full.
pub fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

#[cold]
fn claim() -> Option<&'static ThreadBlock> {
    if ENDED.with(Cell::get) {
        return None;
    }
    let key = exit_key()?;
    // Nothing has been given back since the table was found full.
    let given_back = GIVEN_BACK.load(Ordering::Relaxed);
    if FULL_AT.with(Cell::get) == given_back {
        return None;
    }
    let from = HIGH_WATER.load(Ordering::Relaxed);
    // A free block below the mark first, so that the table stays as short as the thread count.
    let block = BLOCKS[..from]
        .iter()
        .chain(&BLOCKS[from..])
        .find(|b| b.state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok());
    let Some(block) = block else {
        REFUSED.fetch_add(1, Ordering::Relaxed);
        FULL_AT.with(|at| at.set(given_back));
        return None;
    };
    HIGH_WATER.fetch_max(block.index() + 1, Ordering::Release);
    block.tid.store(rustix::thread::gettid().as_raw_pid().cast_unsigned(), Ordering::Relaxed);
    block.start.store(NEXT_START.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    block.set_ring(None);
    block.set_pool_empty_at(0);
    block.set_current(Current::default());
    let own = std::ptr::from_ref(block).cast_mut();
    let none = std::ptr::null_mut();
    if let Err(other) =
        BLOCK.with(|place| place.compare_exchange(none, own, Ordering::Relaxed, Ordering::Relaxed))
    {
        // A signal handler has come before us, and has claimed one for the thread: this one, if it has forked.
        if !std::ptr::eq(other, own) {
            block.state.store(FREE, Ordering::Release);
            GIVEN_BACK.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: a non-null BLOCK points into BLOCKS, which is static.
        return Some(unsafe { &*other });
    }
    // Pairs with `is_live`.
    block.state.store(LIVE, Ordering::Release);
    // SAFETY: `key` came from pthread_key_create and is never deleted once published.
    unsafe { libc::pthread_setspecific(key, own.cast()) };
    Some(block)
}

extern "C" fn thread_exit(block: *mut c_void) {
    // SAFETY: the key's value is only ever set to an element of BLOCKS.
    let block = unsafe { &*block.cast_const().cast::<ThreadBlock>() };
    ENDED.with(|e| e.set(true));
    BLOCK.with(|place| place.store(std::ptr::null_mut(), Ordering::Relaxed));
    AT_EXIT.run();
    crate::ring::release(block);
    block.state.store(FREE, Ordering::Release);
    GIVEN_BACK.fetch_add(1, Ordering::Relaxed);
}

/// The pthread key whose destructor gives blocks back, made at the first claim together with the fork
/// handler.
fn exit_key() -> Option<libc::pthread_key_t> {
    /// 0: not made yet; else the key + 1.
    static KEY: AtomicU64 = AtomicU64::new(0);
    let known = KEY.load(Ordering::Acquire);
    if known != 0 {
        return Some((known - 1) as libc::pthread_key_t);
    }
    // Threads call the destructor long after who made the key could have been unloaded.
    rendezvous::stay().ok()?;
    let mut key: libc::pthread_key_t = 0;
    // SAFETY: `key` is a valid place; the destructor is a plain function of this object.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_exit)) } != 0 {
        return None;
    }
    match KEY.compare_exchange(0, u64::from(key) + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: the handler is a plain function of this object. Failure (ENOMEM) leaves a fork child
            // with its parent's tid in records, nothing worse.
            unsafe { libc::pthread_atfork(None, None, Some(fork_child)) };
            Some(key)
        }
        Err(other) => {
            // SAFETY: the key was made above, and nobody else has seen it.
            unsafe { libc::pthread_key_delete(key) };
            Some((other - 1) as libc::pthread_key_t)
        }
    }
}

/// Functions to call at some moment. They stay.
struct Hooks([AtomicPtr<()>; 8]);

static IN_CHILD: Hooks = Hooks::new();
static AT_EXIT: Hooks = Hooks::new();

impl Hooks {
    const fn new() -> Self {
        Self([const { AtomicPtr::new(std::ptr::null_mut()) }; 8])
    }

    /// False when there is no place left.
    fn add(&self, hook: fn()) -> bool {
        let hook = hook as *mut ();
        self.0.iter().any(|place| {
            match place.compare_exchange(std::ptr::null_mut(), hook, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => true,
                Err(there) => there == hook,
            }
        })
    }

    fn run(&self) {
        for place in &self.0 {
            let hook = place.load(Ordering::Acquire);
            if !hook.is_null() {
                // SAFETY: only `add` fills the places, with `fn()`.
                unsafe { std::mem::transmute::<*mut (), fn()>(hook)() };
            }
        }
    }
}

/// Has `hook` called at the end of every thread that has a block, on that thread, after the destructors of
/// its Rust thread-locals and when the block is its own no more; false when the table of hooks is full.
pub fn on_thread_exit(hook: fn()) -> bool {
    AT_EXIT.add(hook)
}

/// Has `hook` called in every forked child, on its only thread; false when the table of hooks is full.
///
/// # Async-signal-safety
///
/// A fork child of a threaded process may only do what a signal handler may, and so may `hook`.
pub fn on_fork_child(hook: fn()) -> bool {
    // The handler is installed with the key, so a process that never claims a block runs no hook.
    if exit_key().is_none() {
        return false;
    }
    IN_CHILD.add(hook)
}

extern "C" fn fork_child() {
    let own = own();
    for block in &BLOCKS[..HIGH_WATER.load(Ordering::Relaxed)] {
        if !std::ptr::eq(block, own) {
            block.set_ring(None);
            block.state.store(FREE, Ordering::Relaxed);
        }
    }
    crate::ring::reset_all();
    if let Some(block) = try_current() {
        block.tid.store(rustix::thread::gettid().as_raw_pid().cast_unsigned(), Ordering::Relaxed);
        block.start.store(NEXT_START.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        block.set_ring(None);
    }
    IN_CHILD.run();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_block_and_another_has_its_own() {
        let mine = current().unwrap();
        assert!(std::ptr::eq(mine, current().unwrap()));
        let (tid, start) = std::thread::spawn(|| {
            let block = current().unwrap();
            (block.tid(), block.start())
        })
        .join()
        .unwrap();
        assert_ne!(tid, mine.tid());
        assert_ne!(start, mine.start());
    }

    #[test]
    fn a_thread_with_a_block_runs_the_hooks_at_its_end_and_one_without_does_not() {
        static ENDS: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            static MINE: Cell<bool> = const { Cell::new(false) };
        }
        assert!(on_thread_exit(|| _ = ENDS.fetch_add(u64::from(MINE.with(Cell::get)), Ordering::Relaxed)));
        for with_a_block in [true, false] {
            let thread = std::thread::spawn(move || {
                MINE.with(|mine| mine.set(true));
                with_a_block.then(|| current().map(ThreadBlock::tid));
            });
            thread.join().unwrap();
            assert_eq!(ENDS.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn blocks_of_ended_threads_are_used_again_under_a_new_start_number() {
        let mut starts = Vec::new();
        for _ in 0..2 * MAX_THREADS {
            starts.push(std::thread::spawn(|| current().unwrap().start()).join().unwrap());
        }
        starts.dedup();
        assert_eq!(starts.len(), 2 * MAX_THREADS);
    }
}
