//! Counts of events that were not counted all the time.
//!
//! Where more events are counted than fit into the processor's unit, the kernel lets them take
//! turns, and reports for each how long it was enabled and how long of that it was counted. The
//! full count is then estimated for each interval between two reads by itself. A total that is
//! scaled by the ratio of totals would charge one task for how another one was counted, and could
//! go back.

/// How long an event was enabled, and how long of that it was counted, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// How long the event was enabled.
    pub enabled_ns: u64,
    /// The part of `enabled_ns` in which the event was counted.
    pub running_ns: u64,
}

impl Times {
    /// For how much of `enabled_ns` something was counted that was counted in this proportion; all
    /// of it where nothing is known yet.
    pub(crate) fn of(self, enabled_ns: u64) -> u64 {
        if self.running_ns >= self.enabled_ns {
            return enabled_ns;
        }
        let whole = u128::from(enabled_ns) * u128::from(self.running_ns);
        // Less than `enabled_ns`.
        (whole / u128::from(self.enabled_ns)) as u64
    }
}

/// A count of one event of one thread, as the kernel returns it or scaled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) count: u64,
    pub(super) times: Times,
}

/// Totals, and the kernel's last word that they include.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Scaled {
    /// The kernel's last word.
    pub(super) said: Tally,
    /// Counts scaled stretch by stretch, and their times.
    pub(super) total: Tally,
}

impl Scaled {
    /// Adds the kernel's new reading `said` to the totals, which never decrease, even if the
    /// kernel's counts do.
    #[must_use]
    pub(super) fn after(self, said: Tally) -> Self {
        let Tally { count, times } = self.said;
        let enabled_ns = said.times.enabled_ns.saturating_sub(times.enabled_ns);
        let running_ns = said.times.running_ns.saturating_sub(times.running_ns);
        let count = said.count.saturating_sub(count);
        let total = Tally {
            count: self.total.count.saturating_add(scaled(count, enabled_ns, running_ns)),
            times: Times {
                enabled_ns: self.total.times.enabled_ns.saturating_add(enabled_ns),
                running_ns: self.total.times.running_ns.saturating_add(running_ns),
            },
        };
        Self { said, total }
    }

    /// Another descriptor speaks from now on, and begins at `said`.
    #[must_use]
    pub(super) fn anew(self, said: Tally) -> Self {
        Self { said, ..self }
    }
}

/// The estimate for `enabled_ns` where `count` was counted in `running_ns`. If `running_ns` is 0,
/// nothing was counted and the estimate is 0; the two times show that.
fn scaled(count: u64, enabled_ns: u64, running_ns: u64) -> u64 {
    // Also where the clocks of the two are a little apart: a count is never made smaller.
    if running_ns >= enabled_ns {
        return count;
    }
    let whole = u128::from(count) * u128::from(enabled_ns);
    let scaled = whole.checked_div(u128::from(running_ns)).unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_unknown_proportion_is_the_whole() {
        let quarter = Times { enabled_ns: 400, running_ns: 100 };
        assert_eq!(quarter.of(u64::MAX), u64::MAX / 4);
        assert_eq!((quarter.of(0), Times::default().of(7)), (0, 7));
        assert_eq!(Times { enabled_ns: 1, running_ns: 0 }.of(7), 0);
    }

    fn said(count: u64, enabled_ns: u64, running_ns: u64) -> Tally {
        Tally { count, times: Times { enabled_ns, running_ns } }
    }

    #[test]
    fn a_count_is_scaled_by_its_running_time() {
        for (count, enabled, running, expected) in [
            (10, 100, 100, 10),
            (10, 100, 25, 40),
            (10, 100, 0, 0),
            (0, 0, 0, 0),
            (7, 0, 0, 7),
            (10, 99, 100, 10),
            (u64::MAX, u64::MAX, u64::MAX, u64::MAX),
            (u64::MAX, u64::MAX, 1, u64::MAX),
            (1 << 40, 1 << 40, 1 << 20, 1 << 60),
        ] {
            assert_eq!(scaled(count, enabled, running), expected, "{count} in {running} of {enabled}");
        }
    }

    #[test]
    fn each_stretch_is_scaled_by_its_own_ratio() {
        // All the time, then a quarter of it, then not at all.
        let first = Scaled::default().after(said(1000, 100, 100));
        assert_eq!(first.total, said(1000, 100, 100));
        let second = first.after(said(1010, 200, 125));
        assert_eq!(second.total, said(1040, 200, 125));
        let third = second.after(said(1010, 300, 125));
        assert_eq!(third.total, said(1040, 300, 125), "nothing is invented, and the times tell");
    }

    #[test]
    fn a_new_descriptor_continues_the_total() {
        let one = Scaled::default().after(said(1000, 100, 100));
        let other = one.anew(Tally::default()).after(said(5, 10, 10));
        assert_eq!(other.total, said(1005, 110, 110));
    }

    proptest! {
        #[test]
        fn totals_never_go_back_whatever_the_kernel_says(
            words in prop::collection::vec(any::<(u64, u64, u64)>(), 1..20)
        ) {
            let mut state = Scaled::default();
            for (count, enabled, running) in words {
                let next = state.after(said(count, enabled, running));
                prop_assert!(next.total.count >= state.total.count);
                prop_assert!(next.total.times.enabled_ns >= state.total.times.enabled_ns);
                prop_assert!(next.total.times.running_ns >= state.total.times.running_ns);
                state = next;
            }
        }

        #[test]
        fn fully_counted_stretches_add_up_exactly(
            steps in prop::collection::vec((0_u64..1 << 40, 1_u64..1 << 40), 1..20)
        ) {
            let (mut state, mut count, mut time) = (Scaled::default(), 0, 0);
            for (n, ns) in steps {
                count += n;
                time += ns;
                state = state.after(said(count, time, time));
            }
            prop_assert_eq!(state.total, said(count, time, time));
        }
    }
}
