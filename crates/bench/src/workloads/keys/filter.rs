//! A `tracing` subscriber for two rows that need opposite states of it.
//!
//! `off/tracing` wants the subscriber that most services run: at `info`, so that a `trace!` ends at
//! the global maximum level. `off/tracing-envfilter-span` wants an `EnvFilter` with a directive on
//! a span's field value, which raises that maximum to `trace` and makes every callsite ask the
//! filter each time. Both states are global to the process: the maximum level, and the interest
//! cached in every callsite.
//!
//! So one subscriber is the global default (a scoped one would cost the peer a thread-local look-up
//! that services do not pay), and a *phase* changes its answers when `tracing` rebuilds its caches:
//! maximum level and interest. Afterwards a callsite takes the unchanged path of `tracing` and
//! `EnvFilter`; the phase is not consulted there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::{EnvFilter, Registry};

use crate::runner::Failure;

/// The directive of the row.
pub(crate) const DIRECTIVES: &str = "info,[req{id=7}]=trace";

/// Which of the two states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Answers like a plain `info` filter.
    Level,
    /// Answers like the filter with the dynamic directive.
    Dynamic,
}

/// The installed subscriber's switch.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    dynamic: Arc<AtomicBool>,
}

/// Makes our subscriber the global default, or returns why that is impossible.
pub(crate) fn install() -> Result<Filter, String> {
    let dynamic = Arc::new(AtomicBool::new(false));
    let filter = EnvFilter::try_new(DIRECTIVES).map_err(|error| error.to_string())?;
    let layer = Phased { filter, dynamic: Arc::clone(&dynamic) };
    tracing::subscriber::set_global_default(Registry::default().with(layer))
        .map_err(|_| "this process already has a global tracing subscriber".to_owned())?;
    Ok(Filter { dynamic })
}

impl Filter {
    /// Switches to `phase` and checks that `tracing` has followed.
    pub(crate) fn enter(&self, phase: Phase) -> Result<(), Failure> {
        self.dynamic.store(phase == Phase::Dynamic, Ordering::SeqCst);
        tracing::callsite::rebuild_interest_cache();
        let expected = match phase {
            Phase::Level => LevelFilter::INFO,
            Phase::Dynamic => LevelFilter::TRACE,
        };
        let level = LevelFilter::current();
        if level == expected {
            Ok(())
        } else {
            Err(Failure::from(format!("the maximum level of tracing is {level}, not {expected}")))
        }
    }
}

struct Phased {
    filter: EnvFilter,
    dynamic: Arc<AtomicBool>,
}

impl<S: Subscriber> Layer<S> for Phased {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        let interest = <EnvFilter as Layer<S>>::register_callsite(&self.filter, metadata);
        if self.dynamic.load(Ordering::SeqCst) {
            interest
        } else if *metadata.level() <= LevelFilter::INFO {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        if self.dynamic.load(Ordering::SeqCst) {
            <EnvFilter as Layer<S>>::max_level_hint(&self.filter)
        } else {
            Some(LevelFilter::INFO)
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, ctx: Context<'_, S>) -> bool {
        self.filter.enabled(metadata, ctx)
    }

    fn on_new_span(&self, attrs: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        self.filter.on_new_span(attrs, id, ctx);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, ctx: Context<'_, S>) {
        self.filter.on_record(id, values, ctx);
    }

    fn on_enter(&self, id: &Id, ctx: Context<'_, S>) {
        self.filter.on_enter(id, ctx);
    }

    fn on_exit(&self, id: &Id, ctx: Context<'_, S>) {
        self.filter.on_exit(id, ctx);
    }

    fn on_close(&self, id: Id, ctx: Context<'_, S>) {
        self.filter.on_close(id, ctx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_gives_its_rows_state() {
        let filter = install().unwrap();
        for _ in 0..2 {
            filter.enter(Phase::Level).unwrap();
            assert_eq!(LevelFilter::current(), LevelFilter::INFO);
            assert!(!tracing::enabled!(tracing::Level::TRACE));
            assert!(tracing::enabled!(tracing::Level::INFO));

            filter.enter(Phase::Dynamic).unwrap();
            assert_eq!(LevelFilter::current(), LevelFilter::TRACE);
            assert!(tracing::trace_span!("step").is_disabled());
            assert!(!tracing::trace_span!("req", id = 7).is_disabled());
        }
    }
}
