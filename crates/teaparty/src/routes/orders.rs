//! `POST /orders`: a database write, on a thread that may wait for the writer's lock; and
//! `GET /orders/{id}`, one group for all ids.

use std::sync::Arc;

use axum::{
    Json,
    extract::{
        Path, State,
        rejection::{JsonRejection, PathRejection},
    },
    http::{StatusCode, header::LOCATION},
    response::IntoResponse,
};
use serde::Deserialize;

use crate::{
    instrument::{probe, spawn_blocking, tracing},
    routes::refusal::Refusal,
    store::{NotPlaced, Order, Store},
    tally::TALLY,
};

/// The most cups of one order.
const MAX_CUPS: u32 = 12;

/// The order that a guest wants.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OrderBody {
    tea: String,
    cups: u32,
}

/// Takes an order.
pub(super) async fn place(
    State(store): State<Arc<Store>>,
    body: Result<Json<OrderBody>, JsonRejection>,
) -> Result<impl IntoResponse, Refusal> {
    let Json(OrderBody { tea, cups }) = body?;
    if !(1..=MAX_CUPS).contains(&cups) {
        return Err(Refusal::bad_request(format!("cups is {cups}, must be from 1 to {MAX_CUPS}")));
    }
    let placed = spawn_blocking(move || match store.place(&tea, cups) {
        Ok(order) => {
            TALLY.add(cups);
            probe!("order.placed", id = order.id, tea = order.tea, cups);
            Ok(order)
        }
        Err(reason) => {
            probe!("order.refused", tea, cups, ?reason);
            Err(refusal(reason, &tea, cups))
        }
    });
    let order = placed.await??;
    tracing::info!(id = order.id, tea = order.tea, cups, "order placed");
    Ok((StatusCode::CREATED, [(LOCATION, format!("/orders/{}", order.id))], Json(order)))
}

/// Reads an order back.
pub(super) async fn read(
    State(store): State<Arc<Store>>,
    id: Result<Path<u32>, PathRejection>,
) -> Result<Json<Order>, Refusal> {
    let Path(id) = id?;
    let order = store.order(id)?;
    probe!("order.read", id, found = order.is_some());
    tracing::debug!(id, found = order.is_some(), "order read");
    order.map(Json).ok_or_else(|| Refusal::not_found(format!("no order {id}, or one too old to remember")))
}

fn refusal(reason: NotPlaced, tea: &str, cups: u32) -> Refusal {
    match reason {
        NotPlaced::UnknownTea => {
            Refusal::bad_request(format!("no tea is called {tea:?}; GET /menu lists them"))
        }
        NotPlaced::SoldOut { left } => {
            Refusal::conflict(format!("{cups} cups of {tea} are asked for and {left} are left"))
        }
        NotPlaced::Database(error) => error.into(),
    }
}
