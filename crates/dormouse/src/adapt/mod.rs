//! Keeping work that is handed on in its group: for threads, futures, pools, runtimes, services.
//!
//! The group that is current where work is handed on is stored *in* the work: in a future or
//! closure that holds a [`Task`](crate::Task) of it. So a runtime needs no hook, no thread-local of
//! ours has to move between threads, and work that never runs is counted as finished when it is
//! dropped. Where no group is current, work is handed on unchanged.

#[cfg(feature = "actix")]
pub mod actix;
#[cfg(any(feature = "axum", feature = "hyper"))]
mod arrived;
#[cfg(feature = "axum")]
pub mod axum;
#[cfg(feature = "tokio")]
mod blocking;
#[cfg(any(feature = "actix", feature = "tower"))]
mod body;
#[cfg(feature = "tower")]
mod cloned;
#[cfg(feature = "tokio")]
mod connection;
#[cfg(any(feature = "actix", feature = "tower"))]
mod first_message;
#[cfg(feature = "tokio")]
pub mod fs;
#[cfg(any(feature = "actix", feature = "tower"))]
mod groups;
#[cfg(all(feature = "tokio", tokio_unstable))]
mod hooks;
/// Without tokio's hooks tasks cannot be distinguished.
#[cfg(all(feature = "tokio", not(tokio_unstable)))]
mod hooks {
    use super::inherit::Inherited;

    pub(super) fn ours<F: Future>(future: Inherited<F>) -> (Inherited<F>, ()) {
        (future, ())
    }
}
#[cfg(feature = "tokio")]
mod http2;
#[cfg(feature = "hyper")]
pub mod hyper;
pub(crate) mod inherit;
#[cfg(feature = "tokio")]
mod join_set;
#[cfg(feature = "tokio")]
mod lazy;
pub(crate) mod outside;
pub(crate) mod part;
#[cfg(feature = "tokio")]
mod pool_queue;
#[cfg(feature = "rayon")]
pub mod rayon;
#[cfg(any(feature = "actix", feature = "tokio", feature = "tower"))]
mod responded;
#[cfg(feature = "tokio")]
mod runtime;
#[cfg(all(feature = "tokio", tokio_unstable))]
mod spawns;
pub mod thread;
#[cfg(feature = "tokio")]
pub mod tokio;
#[cfg(feature = "tonic")]
mod tonic;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "tokio")]
mod web_socket;
