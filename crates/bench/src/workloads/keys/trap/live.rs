//! A page of code whose sites stand as they do after the first step of a batch.
//!
//! # Safety
//!
//! The page is filled before it is executable, and stays mapped while it is called. Each of its
//! sites is a function of the C calling convention.

use std::cell::Cell;
use std::ffi::c_void;
use std::hint::black_box;
use std::ptr;
use std::time::Duration;

use dormouse::keys::bench::{look_up, midway};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::clocks::cpu;
use crate::runner::{Failure, SplitMix64};

const INT3: u8 = 0xcc;
const RET: u8 = 0xc3;
/// Bytes of a site, as in the library.
const SITE: usize = 5;
/// From one site to the next.
const STEP: usize = 16;

/// The measured part of a trap.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Whole,
    /// Only the handler's search of the table.
    Search,
}

/// Sites between the first step of a batch and its last.
#[derive(Debug)]
pub(super) struct Sites {
    code: *mut c_void,
    bytes: usize,
    /// In the order in which they are called.
    calls: Vec<usize>,
    /// Where in that order the next hits begin.
    next: Cell<usize>,
}

impl Sites {
    pub(super) fn new(size: usize, seed: u64) -> rustix::io::Result<Self> {
        let bytes = (size * STEP).next_multiple_of(rustix::param::page_size());
        let (write, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a mapping of our own, at an address of the kernel's choice.
        let code = unsafe { mmap_anonymous(ptr::null_mut(), bytes, write, private)? };
        let calls = (0..size).map(|n| code as usize + n * STEP).collect();
        let mut sites = Self { code, bytes, calls, next: Cell::new(0) };
        for &site in &sites.calls {
            // An `int3`, the operand of the site, and after it the function's end. SAFETY: inside
            // the mapping, of which so far only this function has the address.
            unsafe { (site as *mut [u8; SITE + 1]).write([INT3, 0, 0, 0, 0, RET]) };
        }
        // SAFETY: the mapping above; from here on it is only executed.
        unsafe { mprotect(code, bytes, MprotectFlags::READ | MprotectFlags::EXEC)? };
        SplitMix64(seed).shuffle(&mut sites.calls);
        Ok(sites)
    }

    /// CPU time of that many hits, or of the handler's search for where they go on.
    pub(super) fn hit(&self, part: Part, hits: u64) -> Result<Duration, Failure> {
        let table: Vec<_> = self.calls.iter().map(|&site| (site, site + SITE)).collect();
        let calls = || self.calls.iter().copied().cycle().skip(self.next.get()).take(hits as usize);
        let run = || match part {
            Part::Whole => cpu(|| calls().for_each(call)),
            // Each search waits for the one before, as a handler waits for its own: `differs` is
            // always 0.
            Part::Search => cpu(|| {
                let behind = |site: usize| look_up(site).map_or(1, |found| found.wrapping_sub(site + SITE));
                black_box(calls().fold(0, |differs, site| behind(site.wrapping_add(differs))));
            }),
        };
        // SAFETY: behind every site is its function's `ret`.
        let ((took, ()), traps) = unsafe { midway(&table, run)? };
        self.next.set((self.next.get() + hits as usize) % self.calls.len());
        if traps == hits {
            Ok(took)
        } else {
            Err(Failure::wrong(format!("{hits} runs into an int3, and {traps} traps")))
        }
    }
}

fn call(site: usize) {
    // SAFETY: a function that does nothing but return, once it has trapped.
    unsafe { std::mem::transmute::<usize, extern "C" fn()>(site)() };
}

impl Drop for Sites {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, whose code is not called any more. A mapping that stays
        // does no harm.
        let _ = unsafe { munmap(self.code, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_of_a_site_traps_and_returns() {
        dormouse_testkit::in_child(|| {
            for size in [1, 56, 4096] {
                let sites = Sites::new(size, 1).unwrap();
                sites.hit(Part::Whole, 100).unwrap();
                sites.hit(Part::Search, 100).unwrap();
            }
        });
    }
}
