//! What the kernel counts for each thread and gives without a descriptor.
//!
//! `getrusage(RUSAGE_THREAD)` gives switches and faults of kernel and user mode alike, also where
//! `perf_event_paranoid` leaves unprivileged perf events nothing but user mode (seen: 0 of 100 switches, 400
//! of 800 faults).
//!
//! It does not give migrations. A perf event would, for a descriptor a thread and 400 ns a read; here the
//! processor is compared with that of the last read, which is a few loads and misses what happens twice
//! between two reads.
//!
//! # Safety
//!
//! The unsafe code is two calls of the C library.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;

use super::Pmu;

pub(super) const CONTEXT_SWITCHES: u32 = 0;
pub(super) const PAGE_FAULTS: u32 = 1;
pub(super) const MAJOR_FAULTS: u32 = 2;

/// Switches and faults of the calling thread.
#[derive(Debug)]
pub(super) struct Usage;

impl Pmu for Usage {
    fn name(&self) -> &'static str {
        "software"
    }

    fn read(&self, events: &[u32], values: &mut [u64]) {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: `usage` is a valid place. The call fails for an unknown `who` or a bad address only; then
        // `usage` stays zero, and a count that seems to go back adds nothing.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init()
        };
        for (event, value) in events.iter().zip(values) {
            *value = match *event {
                CONTEXT_SWITCHES => usage.ru_nvcsw.cast_unsigned() + usage.ru_nivcsw.cast_unsigned(),
                PAGE_FAULTS => usage.ru_minflt.cast_unsigned() + usage.ru_majflt.cast_unsigned(),
                _ => usage.ru_majflt.cast_unsigned(),
            };
        }
    }
}

/// Moves of the calling thread that its reads have noticed.
#[derive(Debug)]
pub(super) struct Processor;

thread_local! {
    /// Processor at the last read, -1 before the first; moves noticed.
    static SEEN: Cell<(i32, u64)> = const { Cell::new((-1, 0)) };
}

impl Pmu for Processor {
    fn name(&self) -> &'static str {
        "processor"
    }

    #[inline]
    fn read(&self, _events: &[u32], values: &mut [u64]) {
        // SAFETY: no arguments; glibc reads its rseq area or asks the vDSO.
        let cpu = unsafe { libc::sched_getcpu() };
        values.fill(SEEN.with(|seen| moved(seen, cpu)));
    }
}

#[inline]
fn moved(seen: &Cell<(i32, u64)>, cpu: i32) -> u64 {
    let (last, moves) = seen.get();
    if last == cpu {
        return moves;
    }
    let moves = moves + u64::from(last >= 0 && cpu >= 0);
    seen.set((cpu, moves));
    moves
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_is_counted_when_a_read_sees_another_processor() {
        let seen = Cell::new((-1, 0));
        let counts = [3, 3, 1, 1, 3].map(|cpu| moved(&seen, cpu));
        assert_eq!(counts, [0, 0, 1, 1, 2]);
    }
}
