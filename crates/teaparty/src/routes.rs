//! The routes, and the group to which each request is charged.
//!
//! There are as many groups as routes, whatever a client asks for. [`charged`] runs a request in
//! the group of its route, from its extractors to its response; work that a handler hands to
//! another thread is charged to that group, too.

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
    instrument::{charged, static_key, unlikely},
    routes::refusal::Refusal,
    store::Store,
};

/// The longest body that a client may send.
const MAX_BODY: usize = 4096;

static_key! {
    /// Nothing depends on it: `dormouse experiment dormouse-teaparty teaparty.nothing` finds
    /// nothing.
    static NOTHING: "teaparty.nothing" = false;
}

/// The tea house over `store`. A request that uses more than `budget` of CPU time leaves a record,
/// and while it is taxed uses `tax_percent` more than it needs.
pub(crate) fn router(store: Arc<Store>, budget: Duration, tax_percent: u16) -> Router {
    // A key is known by the places that read it. This one is read once.
    let _ = unlikely!(NOTHING);
    let charged = |name, route| charged(name, budget, tax_percent, route);
    Router::new()
        .route("/menu", charged("GET /menu", get(menu::read)))
        .route("/orders", charged("POST /orders", post(orders::place)))
        .route("/orders/{id}", charged("GET /orders/{id}", get(orders::read)))
        .route("/blend", charged("GET /blend", get(blend::mix)))
        .route("/brochure", charged("GET /brochure", get(brochure::send)))
        .route("/steep", charged("GET /steep", get(steep::wait)))
        .fallback(unknown)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(store)
}

/// Any other path. It has no group: the group of the connection pays.
async fn unknown(method: Method, uri: Uri) -> Refusal {
    Refusal::not_found(format!(
        "no {method} {}; there are GET /menu, POST /orders, GET /orders/{{id}}, GET /blend, GET /brochure, GET /steep",
        uri.path()
    ))
}
