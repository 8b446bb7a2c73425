//! `GET /menu`: a database read, on the worker.

use std::sync::Arc;

use axum::{Json, extract::State};

use crate::{
    instrument::{probe, static_key, tracing, unlikely},
    routes::refusal::Refusal,
    store::{Item, Store},
};

static_key! {
    /// The menu comes with tasting notes. Switch it in the running service: `dormouse on dormouse-teaparty menu.fancy`.
    static FANCY: "menu.fancy" = false;
}

/// The teas, their prices and what is left of them.
pub(super) async fn read(State(store): State<Arc<Store>>) -> Result<Json<Vec<Item>>, Refusal> {
    let fancy = unlikely!(FANCY);
    let items = store.menu(fancy)?;
    probe!("menu.read", items = items.len(), fancy);
    tracing::debug!(items = items.len(), fancy, "menu read");
    Ok(Json(items))
}
