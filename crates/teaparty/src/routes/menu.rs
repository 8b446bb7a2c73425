//! `GET /menu`: a database read, on the worker.

use std::sync::Arc;

use axum::{Json, extract::State};

use crate::{
    instrument::{probe, static_key, tracing, unlikely},
    routes::refusal::Refusal,
    store::{Item, Store},
    tally::TALLY,
};

static_key! {
    /// The menu comes with tasting notes. Switch it in the running service:
    /// `dormouse on dormouse-teaparty menu.fancy`.
    static FANCY: "menu.fancy" = false;
}

/// The teas, their prices and their stock.
pub(super) async fn read(State(store): State<Arc<Store>>) -> Result<Json<Vec<Item>>, Refusal> {
    let fancy = unlikely!(FANCY);
    let items = store.menu(fancy)?;
    TALLY.add(0);
    probe!("menu.read", items = items.len(), fancy);
    tracing::debug!(items = items.len(), fancy, "menu read");
    Ok(Json(items))
}
