//! The current group of each thread, published in OpenTelemetry's standard thread-local record
//! (OTEP 4947), so that a profiler that follows the standard shows CPU by group.
//!
//! ```no_run
//! let _publishing = dormouse::Publishing::start()?;
//! # Ok::<(), dormouse::PublishError>(())
//! ```
//!
//! `DORMOUSE_PUBLISH=1` publishes from [`init`](crate::init) on, and so does `dormouse on TARGET
//! dormouse.publish` as long as it runs. A reader finds the attribute `dormouse.group` ([`KEY`]).
//!
//! An *executable* exports the thread-local if it is linked with one more argument, which a
//! `build.rs` of its package can set:
//!
//! ```
//! println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=otel_thread_ctx_v1");
//! ```
//!
//! A shared library needs nothing. `dormouse doctor` shows whether readers find it.
//!
//! Another library's context stays: if a process has one already, or if another library's
//! thread-local has that name, nothing is published ([`PublishError`]).
//!
//! In a forked child nothing is published until it starts again.
//!
//! # Cost
//!
//! While nothing is published, only two sleeping instructions for each poll. Otherwise the end and
//! the beginning of a poll each store one pointer.
//!
//! # Locking
//!
//! One lock, held while the page of the process is added or removed. No key is patched and no
//! object searched under it.

mod context;
pub(crate) mod verb;

use dormouse_events::ContextPublishing;
use dormouse_keys::Key;
use dormouse_sys::otel::{ContextMapping, MappingError, Visibility, published_by_others, visibility};
use dormouse_sys::process::fork::{Mutex, Phase};
use dormouse_sys::process::identity;
use dormouse_sys::{Capability, environment};

pub use context::KEY;

/// The name of the static key behind which threads publish.
const KEY_NAME: &str = "dormouse.publish";

const CHECK: &str = "groups.publish";

static PUBLISHED: Mutex<Published> =
    Mutex::with_child(Phase::Publishing, Published { holders: 0, context: None }, |published| {
        published.holders = 0;
        // The child has no such mapping.
        std::mem::forget(published.context.take());
    });

/// The key and the process context, for all that hold them.
#[derive(Debug)]
struct Published {
    holders: usize,
    /// There while anybody holds it.
    context: Option<ContextMapping>,
}

/// Why nothing is published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// Readers do not find the thread-local.
    #[error(
        "readers would not find the thread-local `otel_thread_ctx_v1` in {object}: link it with \
         -Wl,--export-dynamic-symbol=otel_thread_ctx_v1"
    )]
    Hidden {
        /// The object that this copy of dormouse is in.
        object: String,
    },
    /// Another library has a thread-local of that name.
    #[error("{object} publishes its own `otel_thread_ctx_v1`")]
    Foreign {
        /// The object that contains it.
        object: String,
    },
    /// Another library, or another copy of dormouse, has published the context of the process.
    #[error("the process has a context of OpenTelemetry's already (`OTEL_CTX` in its mappings)")]
    Taken,
    /// Nothing is published on this architecture.
    #[error("contexts are published on x86-64 and arm64 alone")]
    Unsupported,
    /// The process context could not be written.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// `/proc` could not be read to find an existing context.
    #[error("the mappings of the process cannot be read: {0}")]
    Mappings(#[source] std::io::Error),
    /// The static key cannot be switched.
    #[error(transparent)]
    Key(#[from] dormouse_keys::Error),
    /// A start or end is under way on this thread.
    #[error("the thread is changing what is published already")]
    Reentrant,
}

/// Publishes the current group of each thread as long as it exists. Several may exist at once.
///
/// In a forked child it publishes nothing.
///
/// ```no_run
/// match dormouse::Publishing::start() {
///     Ok(publishing) => publishing.keep(),
///     Err(why) => eprintln!("groups are not published: {why}"),
/// }
/// ```
#[derive(Debug)]
#[must_use = "groups are published as long as it lives"]
pub struct Publishing {
    process: u64,
    awake: ContextPublishing,
}

impl Publishing {
    /// Begins to publish. A thread in the middle of a poll publishes from its next poll on.
    ///
    /// # Errors
    ///
    /// See [`PublishError`]. Then nothing has changed.
    ///
    /// # Cost
    ///
    /// Reads the mappings and the loaded objects of the process, and takes a page and a batch of
    /// one static key.
    pub fn start() -> Result<Self, PublishError> {
        Self::begin(true)
    }

    /// At a client's request: under a filter of system calls, which may kill, no call is made that
    /// only the host can ask for.
    pub(crate) fn for_client() -> Result<Self, PublishError> {
        Self::begin(!dormouse_sys::perf::is_filtered())
    }

    fn begin(with_file: bool) -> Result<Self, PublishError> {
        if environment::is_off() {
            return Err(dormouse_keys::Error::Off.into());
        }
        // Not under the lock: these take the loader's lock, and that of text.
        is_possible(visibility())?;
        let awake = ContextPublishing::start()?;
        let message = context::message();
        let is_taken = published_by_others().map_err(PublishError::Mappings)?;
        let mut published = PUBLISHED.lock().map_err(|_| PublishError::Reentrant)?;
        if published.context.is_none() {
            if is_taken {
                return Err(PublishError::Taken);
            }
            published.context = Some(ContextMapping::publish(message.as_bytes(), with_file)?);
            ContextPublishing::set_on(true);
        }
        published.holders += 1;
        Ok(Self { process: identity::id(), awake })
    }

    /// The keys that this value keeps on.
    pub fn keys(&self) -> &[&'static Key] {
        self.awake.keys()
    }

    /// Publishes until the process ends.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        if self.process != identity::id() {
            return;
        }
        // In a handler that interrupted a start or an end on this thread: the hook goes on with
        // what is published.
        let Ok(mut published) = PUBLISHED.lock() else { return };
        published.holders = published.holders.saturating_sub(1);
        if published.holders == 0 {
            // A reader must see that there is nothing to read before pointers go.
            published.context = None;
            ContextPublishing::set_on(false);
        }
        // The lock is free before the key is patched.
    }
}

/// Has threads publish nothing for now, or again what is published.
pub(crate) fn suspend(suspended: bool) {
    if PUBLISHED.try_lock().is_some_and(|published| published.context.is_some()) {
        ContextPublishing::set_on(!suspended);
    }
}

fn is_possible(visibility: Visibility) -> Result<String, PublishError> {
    match visibility {
        Visibility::Visible(object) => Ok(object),
        Visibility::Hidden(object) => Err(PublishError::Hidden { object }),
        Visibility::Foreign(object) => Err(PublishError::Foreign { object }),
        _ => Err(PublishError::Unsupported),
    }
}

/// Whether groups are published, or can be.
pub(crate) fn capability() -> Capability {
    if PUBLISHED.try_lock().is_some_and(|published| published.context.is_some()) {
        return Capability::ok(CHECK, "the current group of each thread is published (OTEP 4947)");
    }
    let taken = || published_by_others().is_ok_and(|taken| taken).then_some(PublishError::Taken);
    match is_possible(visibility()).map_or_else(Err, |object| taken().map_or(Ok(object), Err)) {
        Ok(object) => {
            Capability::ok(CHECK, format!("not published; readers find `otel_thread_ctx_v1` in {object}"))
        }
        // Nothing is wrong yet. A start that fails returns the error itself.
        Err(PublishError::Hidden { object }) => Capability::ok(
            CHECK,
            format!(
                "not published, and readers would not find `otel_thread_ctx_v1` in {object}: put \
                 println!(\"cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=otel_thread_ctx_v1\") into \
                 the build.rs of the executable's package"
            ),
        ),
        Err(why) => Capability::unavailable(CHECK, why.to_string()),
    }
}
