//! Outgoing calls from what clients write for `tracing`.
//!
//! | written by | is | peer |
//! |---|---|---|
//! | sqlx 0.7 to 0.9 | an event `sqlx::query` at the end of a statement, with its time | the statement |
//! | sqlx after 0.9 | a span `sqlx::query` around that event | the statement |
//! | fred 9 and 10 | a span `fred.command` | the command |
//! | reqwest-tracing, spans by OpenTelemetry's conventions | a span with `otel.kind = "client"` | by [`Fields::operation_name`], otherwise the host |
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
//! Values may be recorded later, in any order, but those that name a peer together (a gRPC service
//! and its method, an address and its port) have to be recorded together: of two that come apart
//! the later one alone is the name. A host that was known first is the peer only until
//! something better is: its row stays without calls, and is not shown. A statement is named as its
//! database demands; while that is not known yet, by its command alone.
//!
//! # Invariants
//!
//! 1. Only the thread that has put an id into a free place writes its other words, until the
//!    subscriber shares the span; then whichever thread records values, or closes the span.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use dormouse_clock::{stamp, ticks_to_ns};
use dormouse_waits::calls::{Peer, PeerCell, lose};
use tracing::dispatcher::WeakDispatch;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Dispatch, Event, Metadata, Span, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{Filtered, LevelFilter};
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::registry::{LookupSpan, Registry, SpanRef};

use super::fields::{Database, Fields, STATUSES, SYSTEMS, has_any};

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
/// [`Call`](crate::Call). Spans and events of others cost nothing. But `tracing_subscriber` has the
/// records of the crate `log` offered to all filters up to the level DEBUG then, unless
/// `tracing_log::LogTracer` has a maximum level of its own.
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
    /// None until a name is recorded.
    peer: PeerCell,
    /// The peer is more than a host.
    is_named: AtomicBool,
    /// A [`Database`].
    database: AtomicU8,
    /// A status or an error was recorded, and one of them was a failure.
    is_seen: AtomicBool,
    is_error: AtomicBool,
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
    fn record(&self, fields: &mut Fields) {
        if let Some(is_error) = fields.is_error {
            self.is_seen.store(true, Ordering::Relaxed);
            self.is_error.fetch_or(is_error, Ordering::Relaxed);
        }
        if fields.database == Database::None {
            fields.database = Database::of(self.database.load(Ordering::Relaxed));
        }
        self.database.store(fields.database as u8, Ordering::Relaxed);
        let name = match fields.operation_name() {
            Some(name) if !self.is_named.swap(true, Ordering::Relaxed) => Some(name),
            None if self.peer.get().is_none() => fields.host_name(),
            _ => None,
        };
        if let Some(name) = name {
            self.peer.set(Peer::of(self.group.load(Ordering::Relaxed), &name));
        }
    }

    /// Whether the call has failed, if that was recorded.
    fn is_error(&self) -> Option<bool> {
        self.is_seen.load(Ordering::Relaxed).then(|| self.is_error.load(Ordering::Relaxed))
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
        for flag in [&open.is_named, &open.is_seen, &open.is_error] {
            flag.store(false, Ordering::Relaxed);
        }
        let is_later = of.metadata().target() != SQLX && has_any(names, &SYSTEMS);
        let database = if is_later { Database::Unknown } else { Database::None };
        open.database.store(database as u8, Ordering::Relaxed);
        open.record(&mut fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        if let Some(open) = self.find(id.into_u64()) {
            let mut fields = Fields::default();
            values.record(&mut fields);
            open.record(&mut fields);
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
        if let (Some(name), Some(seconds)) = (fields.operation_name(), fields.seconds)
            && let Some(peer) = Peer::of(self.group(), &name)
        {
            // The event does not show whether the statement failed.
            peer.answered((seconds * 1e9) as u64, None);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(open) = self.find(id.into_u64()) else { return };
        let lasted = stamp().saturating_sub(open.begun.load(Ordering::Relaxed));
        let has_status = || context.metadata(&id).is_some_and(|of| has_any(of.fields(), &STATUSES));
        match (open.peer.get(), open.is_error()) {
            (None, _) => {}
            // An answer would have had a status, and a failure an error.
            (Some(peer), None) if has_status() => peer.cancelled(),
            (Some(peer), is_error) => peer.answered(ticks_to_ns(lasted), is_error),
        }
        // Release: pairs with the exchange in `claim`.
        open.id.store(0, Ordering::Release);
    }
}
