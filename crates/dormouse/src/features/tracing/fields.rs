//! An outgoing call as the fields of a span or an event show it: the name of its peer, without
//! values, and whether it has failed.

use std::fmt::{self, Write as _};

use dormouse_waits::calls::{CallKind, LONGEST_PEER, PeerName};
use tracing::field::{Field, FieldSet, Visit};

/// The bytes of a text that is formatted to become a name.
const FORMATTED: usize = 512;

/// Fields with the status of an answer. The others by which a span reports that a call has failed
/// are not recorded on success.
pub(super) const STATUSES: [&str; 4] =
    ["http.response.status_code", "http.status_code", "rpc.response.status_code", "rpc.grpc.status_code"];

/// Fields that name the database.
pub(super) const SYSTEMS: [&str; 2] = ["db.system.name", "db.system"];

/// The database that a call is for, as far as it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Database {
    /// None that the span names; a statement is one of SQL.
    #[default]
    None = 0,
    /// One that is not recorded yet.
    Unknown = 1,
    Sql = 2,
    Redis = 3,
}

impl Database {
    pub(super) fn of(code: u8) -> Self {
        [Self::None, Self::Unknown, Self::Sql, Self::Redis][usize::from(code) % 4]
    }
}

/// The call that the fields of a span or an event describe.
#[derive(Default)]
pub(super) struct Fields {
    pub(super) is_client: bool,
    pub(super) database: Database,
    /// Whether the call has failed, if that was recorded.
    pub(super) is_error: Option<bool>,
    /// A statement, and the first word of it.
    statement: Option<[PeerName; 2]>,
    operation: Option<[PeerName; 2]>,
    summary: Option<PeerName>,
    service: Text<LONGEST_PEER>,
    method: Text<LONGEST_PEER>,
    host: Text<LONGEST_PEER>,
    port: Option<u16>,
    /// The time that the event names.
    pub(super) seconds: Option<f64>,
}

impl Fields {
    /// The statement of a database, or else the operation; the command of Redis; the method of an
    /// RPC.
    pub(super) fn operation_name(&self) -> Option<PeerName> {
        let is_redis = self.database == Database::Redis;
        if let Some([statement, command]) =
            self.operation.filter(|_| is_redis).or(self.statement).or(self.operation)
        {
            return Some(match self.database {
                Database::None | Database::Sql => statement,
                Database::Redis => command,
                Database::Unknown => PeerName::of(CallKind::Other, command.as_str()),
            });
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
        None
    }

    /// The host: of HTTP, unless it is a database's.
    pub(super) fn host_name(&self) -> Option<PeerName> {
        if self.host.is_empty() {
            return None;
        }
        let host = PeerName::host(PeerName::of(CallKind::Http, self.host.as_str()).as_str(), self.port);
        let is_http = self.database == Database::None;
        Some(if is_http { host } else { PeerName::of(CallKind::Other, host.as_str()) })
    }

    fn text(&mut self, name: &str, text: &str) {
        let both = || Some([CallKind::Sql, CallKind::Redis].map(|kind| PeerName::of(kind, text)));
        match name {
            "otel.kind" => self.is_client = text.eq_ignore_ascii_case("client"),
            "otel.status_code" => self.ends(text.eq_ignore_ascii_case("error")),
            "error.type" | "error.message" if !text.is_empty() => self.ends(true),
            "db.system.name" | "db.system" => {
                let is_redis = matches!(text, "redis" | "valkey");
                self.database = if is_redis { Database::Redis } else { Database::Sql };
            }
            // The event of sqlx has none where the summary is the whole statement.
            "db.query.text" | "db.statement" if !text.is_empty() => self.statement = both(),
            "db.operation.name" | "db.operation" => self.operation = both(),
            "cmd.name" => {
                self.database = Database::Redis;
                self.operation = both();
            }
            "summary" => self.summary = Some(PeerName::of(CallKind::Sql, text)),
            "rpc.service" => self.service.set(text),
            "rpc.method" => self.method.set(text),
            "server.address" => self.host.set(text),
            "http.host" | "net.peer.name" if self.host.is_empty() => self.host.set(text),
            "server.port" | "net.peer.port" => self.port = text.parse().ok(),
            name if STATUSES.contains(&name) => match text.parse() {
                Ok(status) => self.status(name, status),
                Err(_) if is_rpc(name) && !text.is_empty() => self.ends(!text.eq_ignore_ascii_case("ok")),
                Err(_) => {}
            },
            _ => {}
        }
    }

    fn status(&mut self, name: &str, status: u64) {
        self.ends(if is_rpc(name) { status != 0 } else { status >= 400 });
    }

    fn ends(&mut self, is_error: bool) {
        self.is_error = Some(is_error || self.is_error == Some(true));
    }
}

pub(super) fn has_any(fields: &FieldSet, names: &[&str]) -> bool {
    names.iter().any(|name| fields.field(name).is_some())
}

fn is_rpc(name: &str) -> bool {
    name.starts_with("rpc.")
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
            name if STATUSES.contains(&name) => self.status(name, value),
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
