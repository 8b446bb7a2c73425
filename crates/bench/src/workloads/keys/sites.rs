//! The 56 sites that are switched: of 56 keys with one site each, so that the same places can be
//! switched by one batch or by 56; 56 sites of one key of the peer; and 56 flags that are loaded.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use dormouse::keys::Key;

/// Sites of an update, as many as the origin's key had.
pub(super) const SITES: usize = 56;

/// A flag that shares its cache line with no other flag.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Flag(pub(super) AtomicBool);

/// Defines the keys with one site each, and the same with flags and for the peer.
macro_rules! sites {
    ($($key:ident $name:literal)+) => {
        dormouse::static_key! { $(static $key: $name = false;)+ }
        #[used]
        pub(super) static PEER: static_keys::StaticFalseKey = static_keys::new_static_false_key();

        mod flags {
            use super::{AtomicBool, Flag};

            $(pub(super) static $key: Flag = Flag(AtomicBool::new(false));)+
        }

        /// The flags.
        pub(super) static FLAGS: [&Flag; SITES] = [$(&flags::$key),+];

        /// The keys.
        pub(super) static KEYS: [fn() -> &'static Key; SITES] = [$(|| &$key),+];

        /// Runs the 56 sites; the number of those that are on.
        #[inline(never)]
        pub(super) fn run_sites() -> usize {
            let mut on = 0;
            $(
                if dormouse::unlikely!($key) {
                    on = awake(on);
                }
            )+
            on
        }

        /// A load and a branch in place of each site.
        #[inline(never)]
        pub(super) fn run_flags() -> usize {
            let mut on = 0;
            $(
                if flags::$key.0.load(Ordering::Relaxed) {
                    on = awake(on);
                }
            )+
            on
        }

        /// The peer's 56 sites.
        #[inline(never)]
        pub(super) fn run_peer_sites() -> usize {
            let mut on = 0;
            $(
                // The name only counts the sites.
                let _ = $name;
                if static_keys::static_branch_unlikely!(PEER) {
                    on = awake(on);
                }
            )+
            on
        }
    };
}

sites! {
    K00 "bench.update.00" K01 "bench.update.01" K02 "bench.update.02" K03 "bench.update.03"
    K04 "bench.update.04" K05 "bench.update.05" K06 "bench.update.06" K07 "bench.update.07"
    K08 "bench.update.08" K09 "bench.update.09" K10 "bench.update.10" K11 "bench.update.11"
    K12 "bench.update.12" K13 "bench.update.13" K14 "bench.update.14" K15 "bench.update.15"
    K16 "bench.update.16" K17 "bench.update.17" K18 "bench.update.18" K19 "bench.update.19"
    K20 "bench.update.20" K21 "bench.update.21" K22 "bench.update.22" K23 "bench.update.23"
    K24 "bench.update.24" K25 "bench.update.25" K26 "bench.update.26" K27 "bench.update.27"
    K28 "bench.update.28" K29 "bench.update.29" K30 "bench.update.30" K31 "bench.update.31"
    K32 "bench.update.32" K33 "bench.update.33" K34 "bench.update.34" K35 "bench.update.35"
    K36 "bench.update.36" K37 "bench.update.37" K38 "bench.update.38" K39 "bench.update.39"
    K40 "bench.update.40" K41 "bench.update.41" K42 "bench.update.42" K43 "bench.update.43"
    K44 "bench.update.44" K45 "bench.update.45" K46 "bench.update.46" K47 "bench.update.47"
    K48 "bench.update.48" K49 "bench.update.49" K50 "bench.update.50" K51 "bench.update.51"
    K52 "bench.update.52" K53 "bench.update.53" K54 "bench.update.54" K55 "bench.update.55"
}

#[cold]
#[inline(never)]
fn awake(on: usize) -> usize {
    black_box(on) + 1
}
