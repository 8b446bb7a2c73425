//! The routes, and the group to which each request is charged.
//!
//! There are as many groups as routes, whatever a client asks for. [`Charges::of`] runs a request
//! in the group of its route, from its extractors to its response; work that a handler hands to
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
    instrument::{Charges, static_key, unlikely},
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
    let charges = Charges { budget, tax_percent };
    Router::new()
        .route("/menu", get(charges.of("GET /menu", menu::read)))
        .route("/orders", post(charges.of("POST /orders", orders::place)))
        .route("/orders/{id}", get(charges.of("GET /orders/{id}", orders::read)))
        .route("/blend", get(charges.of("GET /blend", blend::mix)))
        .route("/brochure", get(charges.of("GET /brochure", brochure::send)))
        .route("/steep", get(charges.of("GET /steep", steep::wait)))
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
