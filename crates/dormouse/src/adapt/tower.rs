//! A `tower` layer: each request is charged to the group of its route.
//!
//! The service's `call` and the future of its response are one task. `poll_ready` is passed through
//! uncharged, for it belongs to no request. A body that is streamed after the response is polled by
//! the connection's task, and charged to that one's group, if it has one: instrument the stream's
//! own work (`dormouse::tokio::spawn` in the handler inherits) if it is heavy.
//!
//! # Bound
//!
//! A name may come from what a client sends. A layer makes at most so many groups (64, or
//! [`GroupLayer::with_bound`]); requests of further names are charged to `other`. (When the last
//! place is left and several names come for it at the same moment, each of them makes a group, and
//! all but one are not used.) Of a name [`MAX_NAME`](crate::MAX_NAME) bytes count.
//!
//! ```
//! use axum::{Router, extract::{MatchedPath, Request}, routing::get};
//! use dormouse::tower::GroupLayer;
//!
//! let layer = GroupLayer::new(|request: &Request| {
//!     // Not the method as it comes, which a client may invent.
//!     request.extensions().get().map_or("unmatched", MatchedPath::as_str).to_owned().into()
//! });
//! let router: Router = Router::new().route("/menu", get(async || "tea")).route_layer(layer);
//! # let _ = router;
//! ```

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;

use crate::group::{Group, cut};
use crate::registry::{OTHER, Place};
use crate::task::Instrumented;

/// How many groups a layer makes unless told otherwise.
pub const DEFAULT_BOUND: usize = 64;

/// Charges each request to the group that a function names; see the [module](self).
#[derive(Clone)]
pub struct GroupLayer<N> {
    name: N,
    groups: Arc<Groups>,
}

impl<N> GroupLayer<N> {
    /// A layer that names the group of a request by its route: a few names, never one per request.
    pub fn new<R>(name: N) -> Self
    where
        N: Fn(&R) -> Cow<'_, str>,
    {
        Self::with_bound(DEFAULT_BOUND, name)
    }

    /// A layer that makes at most `bound` groups, beside `other`.
    pub fn with_bound<R>(bound: usize, name: N) -> Self
    where
        N: Fn(&R) -> Cow<'_, str>,
    {
        Self { name, groups: Arc::new(Groups::new(bound)) }
    }
}

impl<N> fmt::Debug for GroupLayer<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupLayer").field("groups", &self.groups).finish_non_exhaustive()
    }
}

impl<S, N: Clone> Layer<S> for GroupLayer<N> {
    type Service = GroupService<S, N>;

    fn layer(&self, inner: S) -> Self::Service {
        GroupService { inner, layer: self.clone() }
    }
}

/// The service that [`GroupLayer`] makes.
#[derive(Debug, Clone)]
pub struct GroupService<S, N> {
    inner: S,
    layer: GroupLayer<N>,
}

impl<S, N, R> Service<R> for GroupService<S, N>
where
    S: Service<R>,
    N: Fn(&R) -> Cow<'_, str>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Instrumented<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let mut task = self.layer.groups.named(&(self.layer.name)(&request)).task();
        let response = task.run(|| self.inner.call(request));
        task.instrument(response)
    }
}

/// The groups of one layer, in the order of their first requests. A service has few routes, so a
/// look through them beats a map behind a lock that all workers share.
#[derive(Debug)]
struct Groups {
    /// Filled from the front.
    known: Box<[Place]>,
    other: Place,
}

impl Groups {
    fn new(bound: usize) -> Self {
        Self { known: (0..bound).map(|_| Place::new()).collect(), other: Place::new() }
    }

    /// The group of that name, or `other` if there is room for no more.
    fn named(&self, name: &str) -> Group {
        let name = cut(name);
        for place in &self.known {
            match place.get() {
                Some(group) if group.name == name => return Group(group),
                Some(_) => {}
                None => return self.add(name),
            }
        }
        self.other()
    }

    fn other(&self) -> Group {
        Group(self.other.get_or_init(|| Group::new(OTHER).0))
    }

    #[cold]
    fn add(&self, name: &str) -> Group {
        let group = Group::new(name);
        // If the process has as many groups as it can have, this is `other`, and not worth a place.
        if group.name() != name {
            return group;
        }
        // All requests of one name try the same places, so the name gets one of them.
        let took = |place: &Place| Group(place.get_or_init(|| group.0)) == group;
        if self.known.iter().any(took) { group } else { self.other() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_bound_are_other() {
        let groups = Groups::new(2);
        for _ in 0..2 {
            for (name, group) in [("route a", "route a"), ("route b", "route b"), ("route c", "other")] {
                assert_eq!(groups.named(name).name(), group);
            }
        }
        assert!(!Group::all().iter().any(|group| group.name() == "route c"));
        assert_eq!(Groups::new(0).named("route d").name(), "other");
    }

    #[test]
    fn a_long_name_takes_one_place() {
        let groups = Groups::new(2);
        let long = "PROPFIND".repeat(10_000);
        let group = groups.named(&long);
        assert_eq!((group.name().len(), groups.named(&long)), (crate::MAX_NAME, group));
        assert!(groups.known[1].get().is_none());
    }
}
