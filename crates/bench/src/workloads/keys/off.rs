//! `off/…`, `off-dense/…` and `off-late-eax/…`: the price of a sleeping site in a loop that does a
//! little work.
//!
//! Every row is the same loop ([`super::loops`]) with another site in its body. Four bodies,
//! because a site shows where it meets a bottleneck and hides where it does not:
//!
//! - `off`: a chain of six dependent operations (xorshift). The processor waits for the chain and
//!   has capacity to spare, as in most code.
//! - `off-dense`: sixteen sites in a row and nothing else to do; the most that a site can cost.
//! - `off-late-eax`: EAX comes out of a chain of multiplications just before the site. Our site
//!   reads EAX (`test eax, imm32`); the row would show if that made anything wait.
//! - `off/late-eax` and `off/late-eax-none`: EAX comes out of a load that misses the caches; as
//!   many such loads as the processor can have are under way at once. A site that waits takes a
//!   place in a queue.

use super::filter::{Filter, Phase};
use super::loops::{self, COPIES, Loop};
use crate::bench::Bench;
use crate::row::Spec;

/// Sites in the body of an `off-dense` row.
const DENSE: f64 = 16.0;

/// Rows, their bodies, and the state of `tracing` that they need.
const ROWS: [(&str, &str, Option<Phase>, Loop); 16] = [
    ("off/none", "chain", None, loops::chain_none),
    ("off/dormouse", "chain", None, loops::chain_dormouse),
    ("off/dormouse-probe", "chain", None, loops::chain_probe),
    ("off/atomic", "chain", None, loops::chain_atomic),
    ("off/static-keys", "chain", None, loops::chain_static_keys),
    ("off-dense/none", "dense", None, loops::dense_none),
    ("off-dense/dormouse", "dense", None, loops::dense_dormouse),
    ("off-dense/atomic", "dense", None, loops::dense_atomic),
    ("off-dense/static-keys", "dense", None, loops::dense_static_keys),
    ("off-late-eax/none", "late-eax", None, loops::late_eax_none),
    ("off-late-eax/dormouse", "late-eax", None, loops::late_eax_dormouse),
    ("off/late-eax", "missing-load", None, loops::missing_load_dormouse),
    ("off/late-eax-none", "missing-load", None, loops::missing_load_none),
    ("off/tracing", "chain", Some(Phase::Level), loops::chain_tracing),
    ("off/tracing-envfilter-span", "chain", Some(Phase::Dynamic), loops::chain_span),
    ("off/dormouse-span", "chain", Some(Phase::Dynamic), loops::chain_dormouse_span),
];

/// Rows that are compared with `off/none`.
const PEERS: [&str; 7] = [
    "dormouse",
    "dormouse-probe",
    "dormouse-span",
    "atomic",
    "static-keys",
    "tracing",
    "tracing-envfilter-span",
];

/// Adds the rows; those of `tracing` need `filter` to be installed.
pub(super) fn rows(bench: &mut Bench, filter: &Result<Filter, String>) {
    loops::arm();
    for (name, body, phase, run) in ROWS {
        let spec = Spec::new(name, "ns").per("iteration").cpu().with("body", body).with("copies", COPIES);
        let phase = match (phase, filter) {
            (None, _) => None,
            (Some(phase), Ok(filter)) => Some((phase, filter.clone())),
            (Some(_), Err(reason)) => {
                bench.unavailable(spec, reason);
                continue;
            }
        };
        bench.per_iteration(spec, move |iterations| {
            if let Some((phase, filter)) = &phase {
                filter.enter(*phase)?;
            }
            Ok(run(iterations))
        });
    }
}

/// The price that the sites add to their loops.
pub(super) fn compare(bench: &mut Bench) {
    for peer in PEERS {
        bench.percent(format!("off-difference/{peer}"), &format!("off/{peer}"), "off/none");
    }
    bench.percent("off-late-eax-difference/dormouse", "off-late-eax/dormouse", "off-late-eax/none");
    bench.percent("off-difference/late-eax", "off/late-eax", "off/late-eax-none");
    for peer in ["dormouse", "atomic", "static-keys"] {
        let spec = Spec::new(format!("off-dense-added/{peer}"), "ns").per("site");
        let row = format!("off-dense/{peer}");
        bench.paired(spec, &row, "off-dense/none", |row, none| (row - none) / DENSE);
    }
    bench.at_most("off/dormouse within 5 % of off/none", "off-difference/dormouse", 5.0);
}
