//! Metrics of this process, for a route of the host's own.

use std::time::Duration;

use dormouse_events::{Counting, Event};
use dormouse_metrics::{BoundsError, ClassicBounds, Exposition, MetricsFormat};
use dormouse_protocol::{EventInfo, StatPart, WaitsRequest};
use dormouse_sys::process::identity;

use super::add::add_with;
use super::origin::Origin;
use crate::core::group::Group;
use crate::core::memory;
use crate::features::stat::counting::ClientEvents;
use crate::features::stat::stat;
use crate::features::waits::taking::{ClientWaits, TimesScope};
use crate::web::{Responding, Turns, WebAnswer, on_a_thread};

/// The memory of a group's points and lines, beside those of its times.
const EACH: usize = 8 * 1024;

/// The stack of a thread that answers.
const STACK: usize = 256 * 1024;

/// Threads that answer at once.
const AT_ONCE: u64 = 4;

static TURNS: Turns = Turns::new();

/// The figures that a service counts for its metrics, beside CPU time.
///
/// ```
/// use dormouse::Event;
/// use dormouse::metrics::{Metrics, MetricsSpec};
///
/// let spec = MetricsSpec::new().waits().events(&[Event::TASK_CLOCK, Event::PAGE_FAULTS]);
/// let metrics = Metrics::start(&spec)?;
/// assert_eq!(metrics.answer(None).status, 200);
/// # Ok::<(), dormouse::metrics::MetricsError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct MetricsSpec {
    waits: bool,
    events: Vec<Event>,
    buckets: Option<Vec<Duration>>,
}

impl MetricsSpec {
    /// A choice of CPU time, requests, polls and tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the times of tasks: in polls, runnable, in awaits, with histograms and exemplars
    /// ([`waits`](crate::waits)).
    #[must_use]
    pub fn waits(mut self) -> Self {
        self.waits = true;
        self
    }

    /// Adds these events, such as [`Event::ALLOC_BYTES`]. Events that this process cannot count are
    /// left out ([`Metrics::refused`]).
    #[must_use]
    pub fn events(mut self, events: &[Event]) -> Self {
        self.events.extend(events);
        self
    }

    /// Chooses where the classic buckets of requests and calls end, from the shortest time to the
    /// longest. Each end moves to the nearest one at which counts are exact ([`ClassicBounds`]):
    /// whole powers of 2 in seconds, as 250 ms, stay. Native histograms do not change.
    ///
    /// ```
    /// use dormouse::metrics::{Metrics, MetricsSpec};
    /// use std::time::Duration;
    ///
    /// let spec = MetricsSpec::new().waits().buckets(&[125, 250, 1000].map(Duration::from_millis));
    /// let metrics = Metrics::start(&spec)?;
    /// # drop(metrics);
    /// let wrong = MetricsSpec::new().buckets(&[250, 125].map(Duration::from_millis));
    /// let refusal = Metrics::start(&wrong).unwrap_err().to_string();
    /// assert!(refusal.contains("125ms comes after 250ms"));
    /// # Ok::<(), dormouse::metrics::MetricsError>(())
    /// ```
    #[must_use]
    pub fn buckets(mut self, ends: &[Duration]) -> Self {
        self.buckets = Some(ends.to_vec());
        self
    }
}

/// Why metrics could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// The process cannot count these events together.
    #[error("metrics count nothing: {0}")]
    Uncounted(String),
    /// The static key for times cannot be switched.
    #[error("metrics take no times of tasks: {0}")]
    Untimed(#[from] dormouse_keys::Error),
    /// Buckets cannot end there.
    #[error("metrics have no such buckets: {0}")]
    Buckets(#[from] BoundsError),
}

/// While this exists, figures are counted; it returns them for scrapes.
///
/// Counters are totals since the start of the process, and stay when this is dropped: a later one
/// continues them. In a forked child it counts nothing, and returns the child's own figures, which
/// begin at zero; the child must start another one.
///
/// ```
/// use dormouse::Event;
/// use dormouse::metrics::{Metrics, MetricsSpec};
///
/// let spec = MetricsSpec::new().waits().events(&[Event::TASK_CLOCK, Event::PAGE_FAULTS]);
/// let metrics = Metrics::start(&spec)?;
/// assert_eq!(metrics.answer(None).status, 200);
/// # Ok::<(), dormouse::metrics::MetricsError>(())
/// ```
#[derive(Debug)]
#[must_use = "figures are counted as long as it lives"]
pub struct Metrics {
    origin: Origin,
    /// The process that it belongs to.
    process: u64,
    events: ClientEvents,
    refused: Vec<EventInfo>,
    waits: Option<ClientWaits>,
    bounds: Option<ClassicBounds>,
}

impl Metrics {
    /// Starts to count.
    ///
    /// # Errors
    ///
    /// If there are more events than can be counted, buckets cannot end where they are to, or a
    /// static key cannot be switched. Then nothing is counted.
    ///
    /// # Cost
    ///
    /// The cost of [`start_counting`](crate::start_counting), and with times that of
    /// [`Waiting::start`](crate::Waiting::start): while it exists, each switch between groups reads
    /// the thread's clock, and with times each poll takes two stamps.
    pub fn start(spec: &MetricsSpec) -> Result<Self, MetricsError> {
        let bounds = spec.buckets.as_deref().map(ClassicBounds::near).transpose()?;
        let events = spec.events.iter().copied().filter(|event| *event != Event::TASK_CLOCK);
        let names: Vec<String> =
            [Event::TASK_CLOCK].into_iter().chain(events).map(|e| e.name().to_owned()).collect();
        let (events, answer) =
            ClientEvents::start_counting(&names).map_err(|why| MetricsError::Uncounted(why.message))?;
        let request = WaitsRequest { exemplars: true, calls: true, ..WaitsRequest::default() };
        let waits = spec.waits.then(|| ClientWaits::begin(request)).transpose()?.map(|(waits, _)| waits);
        let (origin, refused) = (Origin::own(), answer.refused);
        Ok(Self { origin, process: identity::id(), events: events.without_clock(), refused, waits, bounds })
    }

    /// The events that this process cannot count, each with its reason.
    pub fn refused(&self) -> &[EventInfo] {
        &self.refused
    }

    /// The figures at this moment.
    ///
    /// # Cost
    ///
    /// Reads each group, and makes three system calls for each thread: 50 µs for ten of each, some
    /// milliseconds for a thousand groups.
    pub fn exposition(&self) -> Exposition {
        self.read(TimesScope::ALL)
    }

    fn read(&self, scope: TimesScope) -> Exposition {
        let mut exposition = if self.process == identity::id() {
            read(&self.origin, Some(&self.events), self.waits.is_some(), scope)
        } else {
            read_others(scope)
        };
        if let Some(bounds) = &self.bounds {
            exposition.set_bounds(bounds.clone());
        }
        exposition
    }

    /// The answer to a request with this header `Accept`, in the format that it prefers. The status
    /// is 503 if the process has no memory for it.
    ///
    /// # Cost
    ///
    /// The cost of [`Metrics::exposition`], and a microsecond for each group.
    pub fn answer(&self, accept: Option<&str>) -> WebAnswer {
        if !has_memory() {
            return WebAnswer::text(503, "the process has no memory for its metrics");
        }
        let format = MetricsFormat::accepted(accept);
        let read = self.read(TimesScope::in_format(format));
        WebAnswer::found(format.content_type(), read.encode(format))
    }

    /// Does what [`Metrics::answer`] does on a separate thread, so that no thread of the host's
    /// runtime reads the figures. There are at most four such threads; a further request gets
    /// status 429. `of` is the metrics, or an `Arc` of them.
    pub fn respond<M>(of: M, accept: Option<&str>) -> Responding
    where
        M: AsRef<Self> + Send + 'static,
    {
        let Some(turn) = TURNS.take(AT_ONCE) else {
            return WebAnswer::text(429, "metrics are being read: try again").into();
        };
        let accept = accept.map(str::to_owned);
        on_a_thread("dormouse-metrics", STACK, move |_| {
            let _turn = turn;
            Some(of.as_ref().answer(accept.as_deref()))
        })
    }
}

/// The figures at this moment, if they are counted: by `DORMOUSE_COUNT`, `DORMOUSE_WAITS`, or a
/// [`Metrics`] elsewhere.
///
/// ```
/// dormouse::Group::new("GET /menu").scope(|| { /* … */ });
/// assert!(dormouse::metrics::exposition().points() > 0);
/// ```
pub fn exposition() -> Exposition {
    read_others(TimesScope::ALL)
}

/// [`exposition`] as Prometheus's text.
///
/// ```
/// dormouse::Group::new("GET /menu").scope(|| { /* … */ });
/// assert!(dormouse::metrics::text().contains("group=\"GET /menu\""));
/// ```
pub fn text() -> String {
    let format = MetricsFormat::Text;
    String::from_utf8(read_others(TimesScope::in_format(format)).encode(format)).unwrap_or_default()
}

/// The figures that others have had counted.
fn read_others(scope: TimesScope) -> Exposition {
    read(&Origin::own(), None, dormouse_waits::is_on(), scope)
}

fn read(origin: &Origin, events: Option<&ClientEvents>, has_times: bool, scope: TimesScope) -> Exposition {
    let stat = stat(events, has_times.then_some(scope), StatPart::Histograms);
    let mut exposition = Exposition::new();
    add_with(scope.histograms, Counting::has_begun(), &mut exposition, origin, &stat);
    exposition
}

fn has_memory() -> bool {
    memory::is_there_for_keys()
        && memory::is_there_for_threads()
        && memory::is_there(Group::most() * EACH + memory::of_times())
}
