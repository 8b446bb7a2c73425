//! What it costs a thread to run into an `int3` of a batch that is under way.
//!
//! Within a real batch a thread traps a few times at most, and not when one wants it to. So a page of code is made here
//! whose sites all stand as they do after the first step of a batch, and the table that the first step
//! publishes holds them; see `dormouse::keys::bench::midway`. Then each site is called, in an order that no
//! predictor knows. The `int3`, the kernel's delivery, the handler, the search and the way back are those of a
//! real batch, and the traps that the handler counted must be as many as the calls.
//!
//! # Safety
//!
//! The page is filled before it is executable, and stays mapped while it is called. Each of its sites is a function
//! of the C calling convention.

use super::{BUSY, Settings, goal};
use crate::report::{Row, find};
use crate::runner::{Case, Spec};

/// Entries of the tables.
const SIZES: [usize; 3] = [1, 56, 4096];

/// What is measured of a trap.
#[derive(Debug, Clone, Copy)]
enum Part {
    Whole,
    /// The handler's search of the table alone.
    Search,
}

/// What is said of the rows.
pub(super) const NOTE: &str = "trap rows: CPU time of one thread that runs into an int3 of a batch of that many \
    sites and goes on behind it: the processor's trap, the kernel's signal, our handler and the kernel's way \
    back. The origin's handler is in the kernel and needs no signal; what compares with its figures is \
    trap-search, our handler's search of the table alone";

/// What the longer tables cost.
pub(super) fn compare(rows: &[Row]) -> Vec<Row> {
    let of = |size: usize, suffix: &str| find(rows, &format!("trap/{size}{suffix}"));
    let [one, origins, most] = SIZES;
    let mut computed: Vec<_> = ["", BUSY]
        .iter()
        .map(|suffix| {
            let name = format!("trap-added/{origins}{suffix}");
            Row::minus(&name, "ns", &of(origins, suffix), &of(one, suffix))
        })
        .collect();
    computed.push(Row::minus(&format!("trap-added/{most}"), "ns", &of(most, ""), &of(one, "")));
    computed.push(Row::times(&format!("trap-ratio/{most}"), &of(most, ""), &of(one, "")));
    computed
}

/// What was asked of a trap.
pub(super) fn goals(computed: &[Row]) -> Vec<String> {
    let [one, _, most] = SIZES;
    let ratio = find(computed, &format!("trap-ratio/{most}"));
    vec![goal(&format!("trap/{most} at most 1.25 times trap/{one}"), &ratio, |x| x <= 1.25)]
}

/// The cases up to `largest` entries; `suffix` tells what else the machine does.
pub(super) fn cases(settings: &Settings, largest: usize, suffix: &str) -> Vec<Case<'static>> {
    let spec = |kind: &str, size: usize| {
        Spec::new(format!("{kind}/{size}{suffix}"), "ns")
            .with("per", "trap")
            .with("entries", size)
            .with("clock", "thread CPU time")
    };
    let sizes = SIZES.into_iter().filter(|&size| size <= largest);
    sizes
        .flat_map(|size| {
            [("trap", Part::Whole), ("trap-search", Part::Search)]
                .map(|(kind, part)| live::case(spec(kind, size), part, size, settings))
        })
        .collect()
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]
mod live {
    use std::cell::Cell;
    use std::ffi::c_void;
    use std::hint::black_box;
    use std::ptr;
    use std::time::Duration;

    use dormouse::keys::bench::{look_up, midway};
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    use super::{Case, Part, Settings, Spec};
    use crate::clocks::cpu;
    use crate::runner::{Failure, SplitMix64};

    const INT3: u8 = 0xcc;
    const RET: u8 = 0xc3;
    /// Bytes of a site, as of those that the library patches.
    const SITE: usize = 5;
    /// From one site to the next.
    const STEP: usize = 16;

    pub(super) fn case(spec: Spec, part: Part, size: usize, settings: &Settings) -> Case<'static> {
        match Sites::new(size, settings.seed) {
            Err(error) => Case::unavailable(vec![spec], format!("cannot map code: {error}")),
            Ok(sites) => Case::per_iteration(spec, settings.target(), move |hits| sites.hit(part, hits)),
        }
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
                // An `int3`, the operand of the site, and what comes behind it: the function's end.
                // SAFETY: inside the mapping, which nobody else knows.
                unsafe { (site as *mut [u8; SITE + 1]).write([INT3, 0, 0, 0, 0, RET]) };
            }
            // SAFETY: the mapping above; from here on it is only executed.
            unsafe { mprotect(code, bytes, MprotectFlags::READ | MprotectFlags::EXEC)? };
            SplitMix64(seed).shuffle(&mut sites.calls);
            Ok(sites)
        }

        /// CPU time of that many hits, or of what the handler does to find out where they go on.
        pub(super) fn hit(&self, part: Part, hits: u64) -> Result<Duration, Failure> {
            let table: Vec<_> = self.calls.iter().map(|&site| (site, site + SITE)).collect();
            let calls = || self.calls.iter().copied().cycle().skip(self.next.get()).take(hits as usize);
            let run = || match part {
                Part::Whole => cpu(|| calls().for_each(call)),
                // Each waits for the one before, as a handler waits for its own: what differs is always 0.
                Part::Search => cpu(|| {
                    let behind =
                        |site: usize| look_up(site).map_or(1, |found| found.wrapping_sub(site + SITE));
                    black_box(calls().fold(0, |differs, site| behind(site.wrapping_add(differs))));
                }),
            };
            // SAFETY: behind every site is its function's `ret`.
            let ((took, ()), traps) = unsafe { midway(&table, run)? };
            self.next.set((self.next.get() + hits as usize) % self.calls.len());
            if traps == hits {
                Ok(took)
            } else {
                Err(Failure::Wrong(format!("{hits} runs into an int3, and {traps} traps")))
            }
        }
    }

    fn call(site: usize) {
        // SAFETY: a function that does nothing but return, once it has trapped.
        unsafe { std::mem::transmute::<usize, extern "C" fn()>(site)() };
    }

    impl Drop for Sites {
        fn drop(&mut self) {
            // SAFETY: the mapping of `new`; nothing that it holds is called any more. A mapping that stays
            // harms nobody.
            let _ = unsafe { munmap(self.code, self.bytes) };
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback))))]
mod live {
    use super::{Case, Part, Settings, Spec};

    pub(super) fn case(spec: Spec, _: Part, _: usize, _: &Settings) -> Case<'static> {
        Case::unavailable(vec![spec], super::super::update::NOT_PATCHED)
    }
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]
mod tests {
    use super::Part;
    use super::live::Sites;
    use crate::workloads::keys::child::in_child;

    #[test]
    fn every_call_of_a_site_is_a_trap_that_comes_back() {
        in_child("workloads::keys::trap::tests::every_call_of_a_site_is_a_trap_that_comes_back", || {
            for size in [1, 56, 4096] {
                let sites = Sites::new(size, 1).unwrap();
                sites.hit(Part::Whole, 100).unwrap();
                sites.hit(Part::Search, 100).unwrap();
            }
        });
    }
}
