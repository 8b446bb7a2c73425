//! `GET /steep?ms=20`: waiting. A request that takes long and costs next to nothing.

use std::time::Duration;

use axum::{
    Json,
    extract::{Query, rejection::QueryRejection},
};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::{
    instrument::{probe, tracing},
    routes::refusal::Refusal,
};

/// The longest steep, in milliseconds.
const MAX_MS: u64 = 10_000;

/// For how long.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Timer {
    #[serde(default = "default_ms")]
    ms: u64,
}

fn default_ms() -> u64 {
    20
}

/// The answer.
#[derive(Debug, Serialize)]
pub(super) struct Cup {
    steeped_ms: u64,
}

/// Waits for the tea.
pub(super) async fn wait(timer: Result<Query<Timer>, QueryRejection>) -> Result<Json<Cup>, Refusal> {
    let Query(Timer { ms }) = timer?;
    if ms > MAX_MS {
        return Err(Refusal::bad_request(format!("ms is {ms}, must be at most {MAX_MS}")));
    }
    let start = Instant::now();
    probe!("steep.begin", ms);
    sleep(Duration::from_millis(ms)).await;
    let steeped_ms = start.elapsed().as_millis() as u64;
    probe!("steep.end", ms, late_ms = steeped_ms.saturating_sub(ms));
    tracing::trace!(ms, steeped_ms, "steeped");
    Ok(Json(Cup { steeped_ms }))
}
