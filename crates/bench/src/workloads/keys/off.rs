//! The price of a site that is off, in a loop that does a little work.
//!
//! Every row is the same loop ([`super::loops`]) with another site in its body. Four bodies, because a site shows where
//! it meets a bottleneck and hides where it does not:
//!
//! - `off`: a chain of six dependent operations (xorshift). The processor waits for the chain and has room
//!   to spare; what most code is like.
//! - `off-dense`: sixteen sites in a row and nothing else to do; the most that a site can cost.
//! - `off-late-eax`: EAX comes out of a chain of multiplications just before the site. Ours reads EAX
//!   (`test eax, imm32`); the row would show if that made anything wait.
//! - `off/late-eax` and `off/late-eax-none`: EAX comes out of a load that misses the caches, as many of which as the
//!   processor can have under way at once: a site that waits takes a place in a queue that others could have.

use super::filter::{Filter, Phase};
use super::loops::{self, COPIES, Loop};
use crate::report::{Row, find};
use crate::runner::{Case, Failure, Spec};
use crate::workloads::{Settings, goal};

/// Sites in the body of an `off-dense` row.
const DENSE: f64 = 16.0;

/// The `off-dense` rows that are compared with `none`.
const DENSE_PEERS: [&str; 3] = ["dormouse", "atomic", "static-keys"];

/// Bodies, and the rows that are compared with `none` of the same body.
const BODIES: &[(&str, &[&str])] = &[
    (
        "off",
        &[
            "dormouse",
            "dormouse-probe",
            "dormouse-span",
            "atomic",
            "static-keys",
            "tracing",
            "tracing-envfilter-span",
        ],
    ),
    ("off-late-eax", &["dormouse"]),
];

/// The row whose EAX comes out of a missing load, and what it is compared with.
const LATE_EAX: [&str; 2] = ["off/late-eax", "off/late-eax-none"];

pub(super) const NOTES: &[&str] = &[
    "off rows: CPU time of the one thread an iteration, which leaves out what else ran on the machine; a \
     value is the mean of 4 copies of the row's loop that lie 16 bytes apart modulo 64; hot caches",
    "bodies: off = chain of 6 dependent operations; off-dense = 16 sites in a row and nothing else; \
     off-late-eax = the site's EAX comes late, out of 4 dependent multiplications; off/late-eax = out of a \
     load from a random place of 64 MiB, many of them under way at once",
    "off/dormouse-span: `dormouse::tracing::trace_span!` asleep, entered like that of \
     off/tracing-envfilter-span and under the same filter; what it costs is the empty span of tracing \
     being made, entered and dropped",
    "…-difference/X: 100 * (X / none - 1); …-added/X: X - none, for off-dense divided by its 16 sites; of \
     values of the same round",
];

/// What the sites add to their loops.
pub(super) fn compare(rows: &[Row]) -> Vec<Row> {
    let row = |name: &str| find(rows, name);
    let mut computed = Vec::new();
    for (body, peers) in BODIES {
        let none = row(&format!("{body}/none"));
        for peer in *peers {
            let name = format!("{body}-difference/{peer}");
            computed.push(Row::percent(&name, &row(&format!("{body}/{peer}")), &none));
        }
    }
    let [late, none] = LATE_EAX.map(row);
    computed.push(Row::percent("off-difference/late-eax", &late, &none));
    let none = row("off-dense/none");
    for peer in DENSE_PEERS {
        let spec = Spec::new(format!("off-dense-added/{peer}"), "ns").with("per", "site");
        let row = row(&format!("off-dense/{peer}"));
        computed.push(Row::paired(spec, &row, &none, |row, none| (row - none) / DENSE));
    }
    computed
}

/// What was asked of a site that is off.
pub(super) fn goals(computed: &[Row]) -> Vec<String> {
    let asleep = find(computed, "off-difference/dormouse");
    vec![goal("off/dormouse within 5 % of off/none", &asleep, |x| x <= 5.0)]
}

/// The cases; the tracing ones need `filter` to be installed.
pub(super) fn cases(settings: &Settings, filter: Result<&Filter, &String>) -> Vec<Case<'static>> {
    loops::arm();
    let plain: [(&str, &str, Loop); 13] = [
        ("off/none", "chain", loops::chain_none),
        ("off/dormouse", "chain", loops::chain_dormouse),
        ("off/dormouse-probe", "chain", loops::chain_probe),
        ("off/atomic", "chain", loops::chain_atomic),
        ("off/static-keys", "chain", loops::chain_static_keys),
        ("off-dense/none", "dense", loops::dense_none),
        ("off-dense/dormouse", "dense", loops::dense_dormouse),
        ("off-dense/atomic", "dense", loops::dense_atomic),
        ("off-dense/static-keys", "dense", loops::dense_static_keys),
        ("off-late-eax/none", "late-eax", loops::late_eax_none),
        ("off-late-eax/dormouse", "late-eax", loops::late_eax_dormouse),
        (LATE_EAX[0], "missing-load", loops::missing_load_dormouse),
        (LATE_EAX[1], "missing-load", loops::missing_load_none),
    ];
    let traced: [(&str, Phase, Loop); 3] = [
        ("off/tracing", Phase::Level, loops::chain_tracing),
        ("off/tracing-envfilter-span", Phase::Dynamic, loops::chain_span),
        ("off/dormouse-span", Phase::Dynamic, loops::chain_dormouse_span),
    ];
    let spec = |name: &str, body: &str| {
        Spec::new(name, "ns")
            .with("per", "iteration")
            .with("clock", "thread CPU time")
            .with("body", body)
            .with("copies", COPIES)
    };
    let mut cases = Vec::new();
    for (name, body, run) in plain {
        cases.push(Case::per_iteration(spec(name, body), settings.target(), move |iterations| {
            Ok(run(iterations))
        }));
    }
    for (name, phase, run) in traced {
        let spec = spec(name, "chain");
        cases.push(match filter {
            Err(reason) => Case::unavailable(vec![spec], reason),
            Ok(filter) => {
                let filter = filter.clone();
                Case::per_iteration(spec, settings.target(), move |iterations| {
                    filter.enter(phase)?;
                    Ok::<_, Failure>(run(iterations))
                })
            }
        });
    }
    cases
}
