//! The counters and gauges of [`Metrics`] as instruments of a meter.
//!
//! A meter calls each instrument separately, all of one collection on one thread, one after
//! another. The figures are read for the first; the others use the same. When an instrument is
//! called again, the next collection has begun.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use ::opentelemetry::KeyValue;
use ::opentelemetry::metrics::{AsyncInstrument, Meter};
use dormouse_metrics::{MetricFamily, MetricKind, MetricUnit, MetricValue};
use dormouse_protocol::figures::{
    CALL_FIGURES, EVENT_FAMILIES, GROUP_FIGURES, LOCK_ACQUISITIONS, LOCK_WAIT_TIME, LOCK_WAITS, OTHER_EVENTS,
    PROCESS_FIGURES, RUNTIME_FIGURES,
};

use super::sums::{CollectedReading, MOST_SETS, Sums, attributes};
use crate::features::metrics::Metrics;

/// A collection takes no longer. (Where a view drops instruments, those that it keeps may have
/// figures that are so old.)
const COLLECTION: Duration = Duration::from_millis(200);

/// Shows the figures to a meter, as long as `metrics` exists: those of all groups, with the
/// attribute `group`, and those of the process. The names are those of
/// [`metrics`](mod@crate::metrics), with dots. Histograms are not included.
///
/// A counter never decreases and never disappears, because an SDK makes differences of it without
/// a check: it goes on where a counter of [`metrics`](mod@crate::metrics) begins anew (as with a
/// runtime), and stands still where one is absent (as CPU time of groups during a sleep). One that
/// begins anew and passes its old value before the next collection has only the rest counted.
///
/// An SDK keeps 2,000 sets of attributes of an instrument by default, and mixes up all others. So
/// an instrument shows 1,999 at most: those that were there first. The other sets of a counter are
/// one that has `(others)` for each attribute, up to 16,384 sets, and those of a gauge are left
/// out. Neither a scrape nor a push by `dormouse serve` has that limit.
///
/// Call it once for each provider of meters: a second call would register each instrument twice.
///
/// ```
/// use std::sync::Arc;
///
/// use dormouse::metrics::{Metrics, MetricsSpec};
///
/// let metrics = Arc::new(Metrics::start(&MetricsSpec::new())?);
/// dormouse::opentelemetry::instruments(&opentelemetry::global::meter("dormouse"), &metrics);
/// # Ok::<(), dormouse::metrics::MetricsError>(())
/// ```
///
/// # Cost
///
/// For each collection the cost of [`Metrics::exposition`], on the thread of the meter's reader.
pub fn instruments(meter: &Meter, metrics: &Arc<Metrics>) {
    for (at, family) in numbers().enumerate() {
        let (name, unit, help) = (family.name, family.unit.code(), family.help);
        let shown = Shown { metrics: Arc::downgrade(metrics), family, at };
        let sums = Mutex::default();
        // A meter keeps its callbacks by itself.
        match (family.kind, is_whole(family)) {
            (MetricKind::Counter | MetricKind::OlderCounter, true) => {
                let builder = meter.u64_observable_counter(name).with_unit(unit).with_description(help);
                let _kept =
                    builder.with_callback(move |to| shown.sums(&sums, |sum, of| to.observe(sum, of))).build();
            }
            (MetricKind::Counter | MetricKind::OlderCounter, false) => {
                let builder = meter.f64_observable_counter(name).with_unit(unit).with_description(help);
                let seconds = |ns| MetricValue::Nanoseconds(ns).as_f64();
                let _kept = builder
                    .with_callback(move |to| shown.sums(&sums, |sum, of| to.observe(seconds(sum), of)))
                    .build();
            }
            _ => {
                let builder = meter.f64_observable_gauge(name).with_unit(unit).with_description(help);
                let _kept = builder.with_callback(move |to| shown.observe(to)).build();
            }
        }
    }
}

/// Whether the values of a family are whole numbers. Those of gauges need not be: a limit may be
/// half a CPU.
fn is_whole(family: &MetricFamily) -> bool {
    family.kind != MetricKind::Gauge && matches!(family.unit, MetricUnit::Bytes | MetricUnit::Things(_))
}

/// The families whose values are numbers: counters and gauges.
fn numbers() -> impl Iterator<Item = &'static MetricFamily> {
    let mut of_groups: Vec<_> =
        GROUP_FIGURES.iter().filter_map(|figure| Some(figure.metric?.family)).collect();
    of_groups.dedup_by(|a, b| std::ptr::eq(*a, *b));
    of_groups.extend(CALL_FIGURES.iter().filter_map(|figure| Some(figure.metric?.family)));
    of_groups.extend([&LOCK_ACQUISITIONS, &LOCK_WAITS, &LOCK_WAIT_TIME]);
    let of_runtimes = RUNTIME_FIGURES.iter().filter_map(|figure| Some(figure.metric?.family));
    let others =
        PROCESS_FIGURES.iter().map(|figure| &figure.family).chain(of_runtimes).chain([&OTHER_EVENTS]);
    let all = of_groups.into_iter().chain(others).chain(EVENT_FAMILIES.iter().map(|(_, family)| family));
    all.filter(|family| !matches!(family.kind, MetricKind::Info | MetricKind::Histogram(_)))
}

/// A family that an instrument shows.
struct Shown {
    metrics: Weak<Metrics>,
    family: &'static MetricFamily,
    /// Its index among the instruments.
    at: usize,
}

impl Shown {
    /// The reading of this collection. A meter calls its instruments until it ends.
    fn reading(&self) -> Option<Rc<CollectedReading>> {
        let metrics = self.metrics.upgrade()?;
        Some(of_collection(&metrics, self.at))
    }

    fn observe(&self, to: &dyn AsyncInstrument<f64>) {
        let Some(reading) = self.reading() else { return };
        for (value, labels) in reading.figures.values_of(self.family).take(MOST_SETS) {
            to.observe(value.as_f64(), &attributes(labels));
        }
    }

    fn sums(&self, sums: &Mutex<Sums>, observe: impl FnMut(u64, &[KeyValue])) {
        let Some(reading) = self.reading() else { return };
        let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
        sums.add(&reading, self.family);
        sums.each(observe);
    }
}

/// The instruments that a [`Collection`] tells apart. If there were more, two would share a bit,
/// and a collection would read the figures twice.
const MOST: usize = u128::BITS as usize;

/// The thread's last collection.
struct Collection {
    /// The instruments that have had it, by bits: a test checks that there are enough.
    answered: u128,
    reading: Rc<CollectedReading>,
}

thread_local! {
    static LAST: RefCell<Option<Collection>> = const { RefCell::new(None) };
}

/// The reading of the collection in which the instrument at that place is asked.
fn of_collection(metrics: &Metrics, at: usize) -> Rc<CollectedReading> {
    let read = || {
        let (begun, figures) = (Instant::now(), metrics.exposition());
        Rc::new(CollectedReading { begun, ended: Instant::now(), figures })
    };
    let of = |last: &RefCell<Option<Collection>>| {
        let mut last = last.try_borrow_mut().ok()?;
        let own = 1 << (at % MOST);
        let is_same =
            |it: &&mut Collection| it.answered & own == 0 && it.reading.begun.elapsed() < COLLECTION;
        if let Some(same) = last.as_mut().filter(is_same) {
            same.answered |= own;
            return Some(Rc::clone(&same.reading));
        }
        let reading = read();
        *last = Some(Collection { answered: own, reading: Rc::clone(&reading) });
        Some(reading)
    };
    // A thread that ends has no last one.
    LAST.try_with(of).ok().flatten().unwrap_or_else(read)
}

#[cfg(test)]
mod tests {
    use dormouse_protocol::figures::ProcessSpan;
    use dormouse_protocol::{CpuLimitRow, CpuLimits, Stat};

    use super::*;

    #[test]
    fn instruments_stay_as_they_are() {
        let of = |family: &MetricFamily| {
            format!("{} {:?} in {:?}: {}", family.name, family.kind, family.unit.code(), family.help)
        };
        insta::assert_snapshot!(numbers().map(of).collect::<Vec<_>>().join("\n"));
        assert!(numbers().count() <= MOST);
    }

    #[test]
    fn values_of_whole_instruments_are_whole() {
        let limit = CpuLimitRow { quota_us: 150_000, period_us: 100_000, ..CpuLimitRow::default() };
        let cpu_limits = Some(CpuLimits { groups: vec![limit], ..CpuLimits::default() });
        let stat = Stat { cpu_limits, ..Stat::default() };
        let process = ProcessSpan { stat: &stat, start_unix_ns: 1, is_counted: true };
        let broken = PROCESS_FIGURES.iter().filter(|figure| {
            let value = (figure.of)(&process);
            value.is_some_and(|value| match value {
                MetricValue::Count(_) => false,
                MetricValue::Nanoseconds(_) => is_whole(&figure.family),
                MetricValue::Number(_) => figure.family.kind != MetricKind::Gauge,
            })
        });
        assert_eq!(broken.map(|figure| figure.family.name).collect::<Vec<_>>(), [""; 0]);
    }
}
