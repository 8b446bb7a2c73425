//! The handler: one sample of the thread that it interrupts.
//!
//! # Async-signal-safety
//!
//! It may come at any instruction, on any thread. It takes no lock, allocates nothing, touches no
//! thread-local but `errno`, which it leaves as it was, and reads memory that cannot be unmapped
//! while its thread runs. It makes one system call, for the thread's CPU time, and in one sample of
//! eight the same call again; if the thread is not on its own stack also those of
//! [`dormouse_unwind::walk`]. The time of day is that of the last tick, at which the timer was
//! checked, too: no thread has to read a counter that it may have forbidden itself.
//!
//! On an alternate stack it needs [`ROOM`] below the frame of the kernel. Where there is less, it
//! uses no stack at all: it marks the slot, and the sampler ends the thread's timer. Where there is
//! no more, and the walk is built without optimisation, it does not walk: the stack is copied, as
//! one of a function of which nothing has been learned.
//!
//! # Safety
//!
//! The unsafe code reads what the kernel passes to a handler, and writes a record.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dormouse_sys::clock;
use dormouse_sys::errno::keeping_errno;
use dormouse_sys::passing::SignalFrame;
use dormouse_sys::stack;
use dormouse_unwind::{CallFrame, ThreadCache, claim, has_room};

use super::signal;
use super::slots::{self, Slot, SlotId};
use crate::sampling::arch;
use crate::sampling::copy::StackCopy;
use crate::sampling::queue::{self, Queue, QueueOf};

/// The rest of a record of CPU time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tick {
    /// The value of the timer's signal.
    pub(super) value: u64,
    /// CPU time of the thread.
    pub(super) cpu_ns: u64,
    /// Expiries of the timer that this one stands for, too.
    pub(super) overruns: u32,
    /// Whether there is a copy of its stack in the other queue.
    pub(super) is_copied: bool,
}

/// A record of CPU time.
pub(super) type Record = queue::Record<Tick>;

/// The rest of a record of CPU time with a copy of the stack.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copied {
    pub(super) tick: Tick,
    pub(super) stack: StackCopy,
}

/// CPU time that threads have spent here, in nanoseconds: that of one sample in [`TIMED`], times as
/// much.
static SPENT_NS: AtomicU64 = AtomicU64::new(0);
/// One sample in this number is timed, which takes a system call.
const TIMED: u64 = 8;

/// CPU time that the process's threads have spent in this handler, in nanoseconds.
pub(crate) fn spent_ns() -> u64 {
    SPENT_NS.load(Ordering::Relaxed)
}

/// Where records go.
pub(super) static QUEUE: QueueOf<Tick> = QueueOf::new();

/// Where copies of stacks go that have functions of which nothing has been learned yet. Each
/// belongs to a record in the queue above, which comes after it.
static COPIES: QueueOf<Copied> = QueueOf::new();
/// Whether stacks are copied.
static COPYING: AtomicBool = AtomicBool::new(false);

/// Where the record of a thread goes that was asked for its stack.
static ASKED: QueueOf<Copied> = QueueOf::new();
/// One is asked at a time; one that answers too late leaves a record, too.
const ANSWERS: usize = 4;

/// The queue of answers.
pub(super) fn begin_to_ask() -> io::Result<&'static Queue<Copied>> {
    ASKED.begin(ANSWERS)
}

/// Has handlers copy stacks, with room for `copies` copies.
pub(super) fn begin_to_copy(copies: usize) -> io::Result<&'static Queue<Copied>> {
    let queue = COPIES.begin(copies)?;
    // Relaxed: the queue is published by itself.
    COPYING.store(true, Ordering::Relaxed);
    Ok(queue)
}

/// Has handlers copy no stack any more.
pub(super) fn end_to_copy() {
    COPYING.store(false, Ordering::Relaxed);
}

/// `siginfo_t` of a timer's signal, on systems of 64 bits.
#[repr(C)]
struct Expiry {
    signal: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    _pad: libc::c_int,
    timer: libc::c_int,
    overruns: u32,
    value: u64,
}

const _: () = assert!(offset_of!(Expiry, value) == 24 && size_of::<Expiry>() <= size_of::<libc::siginfo_t>());

/// The bytes of an alternate stack that a sample takes below the frame of the kernel. Builds
/// without optimisation take more.
pub(super) const ROOM: usize = if cfg!(debug_assertions) { 3584 } else { 2048 };

dormouse_sys::entry_with_room!(pub(super) fn handle: ROOM => go_on, else mark_cramped);
dormouse_sys::entry!(fn go_on => choose);

arch::marking_entry!(
    fn mark_cramped: Marked {
        code: offset_of!(Expiry, code),
        timer: libc::SI_TIMER,
        value: offset_of!(Expiry, value),
        last: slots::ASKED,
        first: slots::FIRST,
        table: slots::TABLE,
        shift: size_of::<Slot>().ilog2(),
        generation: slots::GENERATION,
        mark: slots::IS_CRAMPED,
        count: slots::CRAMPED,
    }, else go_on
);

/// Where the handler goes on; 0: it returns.
unsafe extern "C-unwind" fn choose(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
    frame: *mut SignalFrame,
) -> usize {
    // SAFETY: the kernel passes a valid pointer to a handler with SA_SIGINFO.
    let expiry = unsafe { &*info.cast_const().cast::<Expiry>() };
    if expiry.code == libc::SI_TIMER {
        let (value, overruns) = (expiry.value, expiry.overruns);
        let id = SlotId::from_value(value);
        if let Some(slot) = id.slot() {
            // SAFETY: the context is the kernel's.
            keeping_errno(|| unsafe { sample(slot, value, overruns, context) });
            return 0;
        }
        if id.was_given() {
            // Of a timer that has ended meanwhile.
            return 0;
        }
    }
    // SAFETY: the arguments are the kernel's.
    unsafe { signal::pass_on(signal, info, context, frame) }
}

unsafe fn sample(slot: &Slot, value: u64, overruns: u32, context: *mut c_void) {
    // The stack that somebody has asked for is no sample.
    let asked = if SlotId::from_value(value).is_asked() { ASKED.get() } else { None };
    let queue = if asked.is_some() { None } else { QUEUE.get() };
    if let Some(queue) = queue {
        // It arrives while the kernel reads the time.
        queue.prefetch();
    }
    // SAFETY: the context is the kernel's.
    let registers = unsafe { stack::interrupted(context) };
    let group = slot.current(slot.tid()).group;
    let (low, high) = slot.bounds();
    let own = low..high;
    if !own.contains(&registers.stack) {
        slot.stray();
    }
    // Before there is a record to be left unfinished: a filter may end the thread for it. A thread
    // that is asked for its stack weighs nothing.
    let (cpu_ns, at_ns) = match asked {
        Some(_) => (0, 0),
        None => (
            clock::ask(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0),
            clock::ask_library(libc::CLOCK_MONOTONIC_COARSE).unwrap_or(0),
        ),
    };
    // On a stack that is not the thread's own the kernel would have to read.
    let is_alone = slot.is_filtered() && !own.contains(&registers.stack);
    let cache = claim(slot.tid());
    // SAFETY: the context is the kernel's.
    let has_room = has_room(unsafe { stack::lowest(context) });
    let seen =
        Seen { registers, own, is_walked: has_room && !is_alone, group, at_ns, cache: cache.as_deref() };
    let tick = Tick { value, cpu_ns, overruns, is_copied: false };
    let copied = |record: *mut queue::Record<Copied>| {
        // SAFETY: a place for a record, in which every byte is a number.
        unsafe {
            (*record).of_kind.tick = tick;
            let copy = &raw mut (*record).of_kind.stack;
            if is_alone {
                StackCopy::leave_out(copy, registers);
            } else {
                StackCopy::fill(copy, registers, &seen.own);
            }
        }
    };
    if let Some(asked) = asked {
        let write = |record: *mut queue::Record<Copied>| {
            copied(record);
            // SAFETY: a place for a record, in which every byte is a number.
            unsafe { seen.fill(record) };
        };
        // SAFETY: writes all fields, and returns.
        unsafe { asked.push(write) };
    }
    let Some(queue) = queue else { return };
    let write = |record: *mut Record| {
        // SAFETY: as above.
        unsafe {
            seen.fill(record);
            let copies =
                COPIES.get().filter(|_| (*record).frames.is_missed && COPYING.load(Ordering::Relaxed));
            let is_copied = copies.is_some_and(|copies| copies.push(copied));
            (*record).of_kind = Tick { is_copied, ..tick };
        }
    };
    // SAFETY: writes all fields, and returns.
    unsafe { queue.push(write) };
    // Multiplied by an odd number, a thread's time is as good as chance in its upper bits. Its last
    // digits are not: some clocks count in steps (that of Hyper-V in 100 ns).
    let chance = cpu_ns.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if chance < u64::MAX / TIMED && cpu_ns != 0 {
        let end_ns = clock::ask(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0);
        SPENT_NS.fetch_add(end_ns.saturating_sub(cpu_ns) * TIMED, Ordering::Relaxed);
    }
}

/// The part of a record that does not depend on its kind.
struct Seen<'a> {
    registers: CallFrame,
    /// The thread's memory for rules of the tables.
    cache: Option<&'a ThreadCache>,
    /// The bounds of the thread's own stack.
    own: Range<usize>,
    /// Otherwise nothing is read but the registers.
    is_walked: bool,
    group: u32,
    at_ns: u64,
}

impl Seen<'_> {
    /// Fills in the record, and the frames in it.
    ///
    /// # Safety
    ///
    /// A place for a record, in which every byte is a number.
    unsafe fn fill<T>(&self, record: *mut queue::Record<T>) {
        // SAFETY: the caller's promise, and that of the slot for its bounds.
        unsafe {
            (*record).at_ns = self.at_ns;
            (*record).group = self.group;
            let frames = &mut (*record).frames;
            if self.is_walked {
                frames.walk(self.cache, self.registers, &self.own);
            } else {
                frames.stay(self.registers);
            }
        }
    }
}
