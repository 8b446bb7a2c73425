//! Stalls of polls: stalled time of groups by its causes, and the call or state of a thread.
//!
//! The lookout reads the kernel's files about the threads of the service, which take no part.

mod engine;
mod limit;
mod sample;
mod sums;
mod window;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dormouse_protocol::StallsRow;
use dormouse_sys::Capability;
use dormouse_sys::process::identity;
use dormouse_sys::process::kernel_view::counts_block_delay;

use self::engine::StallAccount;
pub use self::sample::ThreadIn;
pub(crate) use self::sample::{ThreadSample, ThreadTally};
use self::sums::{GroupStalls, StallSums};
use crate::lookout::{LOOKOUT, Watched};

/// How long an answer waits for the lookout, which may be at a disk. If that was in vain, none
/// waits again before the lookout's next sample.
const PATIENCE: Duration = Duration::from_millis(200);

/// The stalled time of groups by its causes, by the numbers of the groups.
pub(crate) type StalledGroups = HashMap<u32, Box<StallsRow>>;

/// Stalled time is accounted to its causes until this is dropped. In a child of a fork it is not.
#[derive(Debug)]
pub(crate) struct Stalls {
    number: u64,
    sums: Arc<StallSums>,
    process: u64,
}

impl Stalls {
    /// Begins, while times of tasks are taken.
    pub(crate) fn begin() -> Result<Self, String> {
        let begun = LOOKOUT.begin(|engines| engines.get::<StallAccount>().begin());
        let (number, sums) = begun.map_err(|error| format!("the lookout: {error}"))??;
        Ok(Self { number, sums, process: identity::id() })
    }

    /// The sums of the groups that have any, up to now.
    pub(crate) fn rows(&self) -> StalledGroups {
        if self.process != identity::id() {
            return StalledGroups::default();
        }
        // A service that was throttled would else be shown without its last stall. If the lookout
        // has no time, the sums are those up to its last sample.
        if !self.sums.is_late.load(Ordering::Relaxed) {
            let asked =
                LOOKOUT.ask_for(PATIENCE, |engines| engines.get::<StallAccount>().sample_for_answer());
            self.sums.is_late.store(asked.is_err(), Ordering::Relaxed);
        }
        let row = |(group, of): (&u32, &GroupStalls)| (*group, Box::new(row(of)));
        self.sums.with(|sums| sums.iter().map(row).collect())
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        if self.process == identity::id() {
            LOOKOUT.end(Watched::by::<StallAccount>(self.number));
        }
    }
}

fn row(of: &GroupStalls) -> StallsRow {
    let named = |of: &ThreadTally| {
        let named = of.sorted().into_iter().map(|(within, ns)| (Cow::from(within.to_string()), ns));
        named.collect::<Vec<_>>()
    };
    let by_hand = named(&of.by_hand);
    let mut within = named(&of.within);
    for (name, ns) in &by_hand {
        match within.iter_mut().find(|(of, _)| of == name) {
            Some((_, all)) => *all += ns,
            None => within.push((name.clone(), *ns)),
        }
    }
    within.sort_by_key(|(_, ns)| Reverse(*ns));
    StallsRow {
        cpu_wait_ns: of.cpu_wait_ns,
        throttled_ns: of.throttled_ns,
        asleep_ns: of.asleep_ns,
        block_io_ns: of.block_io_ns,
        major_faults: Some(of.major_faults),
        within,
        by_hand,
    }
}

/// The check that `doctor` shows of delays by block devices.
pub(crate) fn block_io_check() -> Capability {
    const NAME: &str = "host.block_io";
    match counts_block_delay() {
        Some(true) => Capability::ok(NAME, "the kernel counts how long threads wait for block devices"),
        Some(false) => Capability::limited(
            NAME,
            "the kernel does not count how long threads wait for block devices, so that part of a stall is not \
             known",
        )
        .with_fix("set the sysctl kernel.task_delayacct to 1: it is off by default since Linux 5.14"),
        None => Capability::limited(
            NAME,
            "the kernel does not say whether it counts how long threads wait for block devices, so that part of a \
             stall is not known",
        )
        .with_fix("run Linux 5.14 or later with CONFIG_TASK_DELAY_ACCT, and mount /proc/sys where the service runs"),
    }
}
