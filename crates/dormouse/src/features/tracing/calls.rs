//! Outgoing calls from what clients write for `tracing`.
//!
//! | written by | is | peer |
//! |---|---|---|
//! | sqlx 0.7 to 0.9 | an event `sqlx::query` at the end of a statement, with its time | the statement |
//! | sqlx after 0.9 | a span `sqlx::query` around that event | the statement |
//! | fred 9 and 10 | a span `fred.command` | the command |
//! | reqwest-tracing, spans by OpenTelemetry's conventions | a span with `otel.kind = "client"` | by [`Fields::peer`] |
//!
//! # Threads of clients
//!
//! sqlx runs statements for SQLite on a thread of its own, in no group. But it enters there the
//! span in which it was called. So a span of [`carry`] stores the group in which it was made, and
//! calls that are in no group belong to that of the innermost such span around them. The registry
//! itself is searched: a layer with a filter does not see what is around a span that its filter
//! leaves out.
//!
//! # Open spans
//!
//! A span is open from its creation until it closes. A table of the layer has its beginning and its
//! peer, by the span's id: an extension of the registry's would be an allocation for each call.
//!
//! # Invariants
//!
//! 1. Only the thread that has put an id into a free place writes its other words, until the
//!    subscriber shares the span; then whichever thread records values, or closes the span.

use std::fmt::{self, Write as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use dormouse_clock::{stamp, ticks_to_ns};
use dormouse_waits::calls::{CallKind, LONGEST_PEER, Peer, PeerCell, PeerName, lose};
use tracing::dispatcher::WeakDispatch;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Dispatch, Event, Metadata, Span, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{Filtered, LevelFilter};
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::registry::{LookupSpan, Registry, SpanRef};

/// Where sqlx writes.
const SQLX: &str = "sqlx::query";

/// The name of fred's spans.
const FRED: &str = "fred.command";

/// The target of the spans of [`carry`].
const CARRIES: &str = "dormouse::calls";

/// Calls that one layer may have open at once.
const OPEN: usize = 1024;

/// The places in which the table may keep an id.
const PROBES: usize = 8;

/// The bytes of a text that is formatted to become a name.
const FORMATTED: usize = 512;

/// A layer that counts outgoing calls from what clients write: sqlx, fred, reqwest-tracing, and
/// whatever writes spans by OpenTelemetry's conventions, with `otel.kind = "client"`. Each is a
/// [`Call`](crate::Call) of the group that is current where it begins.
///
/// ```
/// use tracing_subscriber::layer::SubscriberExt as _;
///
/// let subscriber = tracing_subscriber::registry()
///     // Beside the layers of the service, each with a filter of its own.
///     .with(dormouse::tracing::calls());
/// # let _ = subscriber;
/// ```
///
/// It has a filter of its own, which lets these spans and events through and no others, also if the
/// service's layers leave them out. A filter of the whole subscriber must let them through, too:
/// `sqlx::query=debug`.
///
/// # Cost
///
/// While times are not taken, the subscriber looks at its filters for each such span or event, and
/// none is made for this layer. Otherwise what the client does to write it, and a
/// [`Call`](crate::Call). Spans and events of others cost nothing.
pub fn calls<S>() -> Filtered<CallsLayer, CallsFilter, S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let open = (0..OPEN).map(|_| OpenSpan::default()).collect();
    CallsLayer { open, subscriber: OnceLock::new() }.with_filter(CallsFilter)
}

/// A span that carries the current group to threads of a client that enter it: calls that are made
/// there, in no group, belong to this one. For sqlx with SQLite, whose statements run on a thread
/// of their own. One for each request is enough, around all that it awaits:
///
/// ```
/// use dormouse::Group;
/// use dormouse::tracing::{Instrument as _, carry};
///
/// # async fn read_teas() {}
/// async fn menu() {
///     read_teas().instrument(carry()).await;
/// }
/// # let _ = Group::new("GET /menu").instrument(menu());
/// ```
///
/// # Cost
///
/// A span of level DEBUG and target `dormouse::calls`, and an allocation, while times are taken;
/// otherwise a check of the filters of the subscriber.
pub fn carry() -> Span {
    tracing::debug_span!(target: CARRIES, "group")
}

/// Which spans and events [`calls`] sees.
#[derive(Debug, Clone, Copy)]
pub struct CallsFilter;

impl<S> Filter<S> for CallsFilter {
    fn enabled(&self, of: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        dormouse_waits::are_times_taken() && is_known(of)
    }

    fn callsite_enabled(&self, of: &'static Metadata<'static>) -> Interest {
        if is_known(of) { Interest::sometimes() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }
}

fn is_known(of: &Metadata<'_>) -> bool {
    let is_known_span =
        || of.name() == FRED || of.target() == CARRIES || of.fields().field("otel.kind").is_some();
    of.target() == SQLX || of.is_span() && is_known_span()
}

/// See [`calls`].
pub struct CallsLayer {
    open: Box<[OpenSpan]>,
    subscriber: OnceLock<WeakDispatch>,
}

impl fmt::Debug for CallsLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallsLayer").finish_non_exhaustive()
    }
}

/// The group that a span of [`carry`] has stored.
#[derive(Debug, Clone, Copy)]
struct CarriedGroup(u32);

/// A call whose span has not closed.
#[derive(Debug, Default)]
struct OpenSpan {
    /// The span's id; 0: free.
    id: AtomicU64,
    /// When it began, as a stamp.
    begun: AtomicU64,
    /// The number of the group that calls.
    group: AtomicU32,
    /// None until the name is recorded.
    peer: PeerCell,
    is_error: AtomicBool,
    /// Whether the span would report an error.
    sees_errors: AtomicBool,
}

impl CallsLayer {
    /// The places where a span may be.
    fn places(&self, id: u64) -> impl Iterator<Item = &OpenSpan> {
        // Ids that follow each other are far apart.
        let first = (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize;
        (0..PROBES).map(move |probe| &self.open[first.wrapping_add(probe) % OPEN])
    }

    fn find(&self, id: u64) -> Option<&OpenSpan> {
        // Acquire: pairs with the exchange in `claim`.
        self.places(id).find(|open| open.id.load(Ordering::Acquire) == id)
    }

    /// The group that calls: the current one, or else that of a span around.
    fn group(&self) -> u32 {
        match dormouse_events::current_context() {
            0 => self.carried().unwrap_or_default(),
            here => here,
        }
    }

    fn carried(&self) -> Option<u32> {
        let subscriber = self.subscriber.get()?.upgrade()?;
        let registry = subscriber.downcast_ref::<Registry>()?;
        let innermost = registry.span(registry.current_span().id()?)?;
        let carried = |span: SpanRef<'_, Registry>| Some(span.extensions().get::<CarriedGroup>()?.0);
        innermost.scope().find_map(carried)
    }

    fn claim(&self, id: u64) -> Option<&OpenSpan> {
        let is_free = |open: &&OpenSpan| {
            // Acquire: pairs with the store of the one that has freed it.
            open.id.compare_exchange(0, id, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        self.places(id).find(is_free)
    }
}

impl OpenSpan {
    /// Takes over what was recorded.
    fn record(&self, fields: &Fields) {
        if fields.is_error {
            self.is_error.store(true, Ordering::Relaxed);
        }
        if self.peer.get().is_none()
            && let Some(name) = fields.peer()
        {
            self.peer.set(Peer::of(self.group.load(Ordering::Relaxed), &name));
        }
    }
}

impl<S> Layer<S> for CallsLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_register_dispatch(&self, subscriber: &Dispatch) {
        // One that was registered before has the layer already.
        let _before = self.subscriber.set(subscriber.downgrade());
    }

    fn on_new_span(&self, of: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let group = self.group();
        if of.metadata().target() == CARRIES {
            if let Some(span) = context.span(id) {
                span.extensions_mut().insert(CarriedGroup(group));
            }
            return;
        }
        let mut fields = Fields::default();
        of.record(&mut fields);
        let names = of.metadata().fields();
        if !fields.is_client && of.metadata().name() != FRED {
            return;
        }
        let Some(open) = self.claim(id.into_u64()) else {
            lose();
            return;
        };
        open.begun.store(stamp(), Ordering::Relaxed);
        open.group.store(group, Ordering::Relaxed);
        open.peer.set(None);
        open.is_error.store(false, Ordering::Relaxed);
        let sees_errors = ERRORS.iter().any(|name| names.field(name).is_some());
        open.sees_errors.store(sees_errors, Ordering::Relaxed);
        open.record(&fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        if let Some(open) = self.find(id.into_u64()) {
            let mut fields = Fields::default();
            values.record(&mut fields);
            open.record(&fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        // Where sqlx has a span, the event is a part of it.
        let is_in_its_span =
            || context.event_span(event).is_some_and(|span| span.metadata().target() == SQLX);
        if event.metadata().target() != SQLX || is_in_its_span() {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        if let (Some(name), Some(seconds)) = (fields.peer(), fields.seconds)
            && let Some(peer) = Peer::of(self.group(), &name)
        {
            // The event does not show whether the statement failed.
            peer.answered((seconds * 1e9) as u64, None);
        }
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        let Some(open) = self.find(id.into_u64()) else { return };
        let lasted = stamp().saturating_sub(open.begun.load(Ordering::Relaxed));
        let sees_errors = open.sees_errors.load(Ordering::Relaxed);
        let is_error = sees_errors.then(|| open.is_error.load(Ordering::Relaxed));
        if let Some(peer) = open.peer.get() {
            peer.answered(ticks_to_ns(lasted), is_error);
        }
        // Release: pairs with the exchange in `claim`.
        open.id.store(0, Ordering::Release);
    }
}

/// Fields by which a span reports that a call has failed.
const ERRORS: [&str; 7] = [
    "otel.status_code",
    "error.type",
    "error.message",
    "http.response.status_code",
    "http.status_code",
    "rpc.response.status_code",
    "rpc.grpc.status_code",
];

/// The call that the fields of a span or an event describe.
#[derive(Default)]
struct Fields {
    is_client: bool,
    is_redis: bool,
    is_error: bool,
    /// A statement, and the first word of it.
    statement: Option<[PeerName; 2]>,
    operation: Option<[PeerName; 2]>,
    summary: Option<PeerName>,
    service: Text<LONGEST_PEER>,
    method: Text<LONGEST_PEER>,
    host: Text<LONGEST_PEER>,
    port: Option<u16>,
    /// The time that the event names.
    seconds: Option<f64>,
}

impl Fields {
    /// The name: the statement of a database, or else the operation; the command of Redis; the
    /// method of an RPC; otherwise the host.
    fn peer(&self) -> Option<PeerName> {
        if let Some([statement, command]) =
            self.operation.filter(|_| self.is_redis).or(self.statement).or(self.operation)
        {
            return Some(if self.is_redis { command } else { statement });
        }
        if let Some(summary) = self.summary {
            return Some(summary);
        }
        if !self.method.is_empty() {
            let mut method = Text::<LONGEST_PEER>::default();
            // Newer conventions have the whole name in the method.
            let has_service = !self.service.is_empty() && !self.method.as_str().contains('/');
            let _cut = if has_service {
                write!(method, "{}/{}", self.service.as_str(), self.method.as_str())
            } else {
                method.write_str(self.method.as_str())
            };
            return Some(PeerName::of(CallKind::Grpc, method.as_str()));
        }
        (!self.host.is_empty())
            .then(|| PeerName::host(PeerName::of(CallKind::Http, self.host.as_str()).as_str(), self.port))
    }

    fn text(&mut self, name: &str, text: &str) {
        let both = || Some([CallKind::Sql, CallKind::Redis].map(|kind| PeerName::of(kind, text)));
        match name {
            "otel.kind" => self.is_client = text.eq_ignore_ascii_case("client"),
            "otel.status_code" => self.is_error |= text.eq_ignore_ascii_case("error"),
            "error.type" | "error.message" => self.is_error |= !text.is_empty(),
            "db.system.name" | "db.system" => self.is_redis = matches!(text, "redis" | "valkey"),
            // The event of sqlx has none where the summary is the whole statement.
            "db.query.text" | "db.statement" if !text.is_empty() => self.statement = both(),
            "db.operation.name" | "db.operation" => self.operation = both(),
            "cmd.name" => {
                self.is_redis = true;
                self.operation = both();
            }
            "summary" => self.summary = Some(PeerName::of(CallKind::Sql, text)),
            "rpc.service" => self.service.set(text),
            "rpc.method" => self.method.set(text),
            "server.address" => self.host.set(text),
            "http.host" | "net.peer.name" if self.host.is_empty() => self.host.set(text),
            "server.port" | "net.peer.port" => self.port = text.parse().ok(),
            "http.response.status_code"
            | "http.status_code"
            | "rpc.response.status_code"
            | "rpc.grpc.status_code" => {
                if let Ok(status) = text.parse() {
                    self.status(name, status);
                }
            }
            _ => {}
        }
    }

    fn status(&mut self, name: &str, status: u64) {
        self.is_error |= if name.starts_with("http") { status >= 400 } else { status != 0 };
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if is_read(field.name()) {
            let mut text = Text::<FORMATTED>::default();
            let _cut = write!(text, "{value:?}");
            self.text(field.name(), text.as_str());
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "server.port" | "net.peer.port" => self.port = u16::try_from(value).ok(),
            name if ERRORS[3..].contains(&name) => self.status(name, value),
            _ => {}
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        if let Ok(value) = u64::try_from(value) {
            self.record_u64(field, value);
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if field.name() == "elapsed_secs" {
            self.seconds = Some(value);
        }
    }
}

/// Whether a field is worth being formatted: others may be long.
fn is_read(name: &str) -> bool {
    let families = ["cmd.", "db.", "error.", "http.", "net.peer.", "otel.", "rpc.", "server."];
    name == "summary" || families.iter().any(|family| name.starts_with(family))
}

/// A text of at most `N` bytes, without an allocation.
struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self { bytes: [0; N], length: 0 }
    }
}

impl<const N: usize> Text<N> {
    fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn as_str(&self) -> &str {
        let written = &self.bytes[..self.length];
        str::from_utf8(written).unwrap_or_else(|cut| {
            // The last character was cut.
            str::from_utf8(&written[..cut.valid_up_to()]).unwrap_or_default()
        })
    }

    fn set(&mut self, text: &str) {
        self.length = 0;
        let _cut = self.write_str(text);
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    /// Fails once it is full: then nothing more is formatted.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let taken = text.len().min(N - self.length);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        if taken < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}
