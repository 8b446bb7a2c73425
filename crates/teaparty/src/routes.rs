//! The routes, and the group that each request is charged to.
//!
//! A group is made once per route, when the router is: no look-up per request, and no more groups
//! than routes whatever a client asks for. [`charged`] runs a request in it from its extractors to its
//! response; a handler that hands work to another thread takes the group along.

mod blend;
mod brochure;
mod menu;
mod orders;
mod refusal;
mod steep;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{Method, Uri},
    routing::{get, post},
};

use crate::{
    instrument::{Group, charged},
    routes::refusal::Refusal,
    store::Store,
};

/// The longest body that a client may send.
const MAX_BODY: usize = 4096;

/// The tea house over `store`, in which a request may use `budget` of CPU time and not be noticed.
pub(crate) fn router(store: Arc<Store>, budget: Duration) -> Router {
    let charged = |group, route| charged(group, budget, route);
    let place = Group::new("POST /orders");
    let blend = Group::new("GET /blend");
    Router::new()
        .route("/menu", charged(Group::new("GET /menu"), get(menu::read)))
        .route("/orders", charged(place, post(move |store, order| orders::place(place, store, order))))
        .route("/orders/{id}", charged(Group::new("GET /orders/{id}"), get(orders::read)))
        .route("/blend", charged(blend, get(move |wish| blend::mix(blend, wish))))
        .route("/brochure", charged(Group::new("GET /brochure"), get(brochure::send)))
        .route("/steep", charged(Group::new("GET /steep"), get(steep::wait)))
        .fallback(unknown)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(store)
}

/// Anything else. In no group of its own: the connection's pays.
async fn unknown(method: Method, uri: Uri) -> Refusal {
    Refusal::not_found(format!(
        "no {method} {}; there are GET /menu, POST /orders, GET /orders/{{id}}, GET /blend, GET /brochure, GET /steep",
        uri.path()
    ))
}
