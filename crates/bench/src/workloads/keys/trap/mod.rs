//! `trap/…` and `trap-search/…`: the price for a thread that runs into an `int3` of a batch under
//! way.
//!
//! Within a real batch a thread traps a few times at most, and not at a chosen moment. So a page of
//! code is made ([`live`]) whose sites are all in the state after the first step of a batch, and
//! the table that the first step publishes contains them. Then each site is called, in an order
//! that no predictor can follow. The `int3`, the kernel's delivery, the handler, the search and the
//! return are those of a real batch, and the handler must have counted as many traps as there were
//! calls.

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]
mod live;

use super::ways::BUSY;
use crate::bench::Bench;
use crate::row::Spec;

/// Entries of the tables.
const SIZES: [usize; 3] = [1, 56, MOST];

/// The largest table.
pub(super) const MOST: usize = 4096;

/// Adds the rows of tables up to `largest`; `suffix` names the other work of the machine.
pub(super) fn rows(bench: &mut Bench, largest: usize, suffix: &str) {
    for size in SIZES.into_iter().filter(|&size| size <= largest) {
        let specs = ["trap", "trap-search"].map(|kind| {
            Spec::new(format!("{kind}/{size}{suffix}"), "ns").per("trap").with("entries", size).cpu()
        });
        #[cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]
        for (spec, part) in specs.into_iter().zip([live::Part::Whole, live::Part::Search]) {
            let sites = live::Sites::new(size, bench.seed());
            let sites = sites.map_err(|error| format!("cannot map code: {error}"));
            if let Some(sites) = bench.need(spec.clone(), sites) {
                bench.per_iteration(spec, move |hits| sites.hit(part, hits));
            }
        }
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback))))]
        bench.unavailable(specs, super::ways::NOT_PATCHED);
    }
}

/// The price of the longer tables.
pub(super) fn compare(bench: &mut Bench) {
    let [one, origins, most] = SIZES;
    for (size, suffix) in [(origins, ""), (origins, BUSY), (most, "")] {
        let [row, base] = [size, one].map(|size| format!("trap/{size}{suffix}"));
        bench.minus(format!("trap-added/{size}{suffix}"), &row, &base);
    }
    let ratio = format!("trap-ratio/{most}");
    bench.times(ratio.as_str(), &format!("trap/{most}"), &format!("trap/{one}"));
    bench.at_most(&format!("trap/{most} at most 1.25 times trap/{one}"), &ratio, 1.25);
}
