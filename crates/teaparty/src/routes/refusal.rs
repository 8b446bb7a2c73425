//! The refusal of a request: a status, and `{"error": …}` with the reason.

use axum::{
    Json,
    extract::rejection::{JsonRejection, PathRejection, QueryRejection},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::json;
use tokio::task::JoinError;

/// A refused or failed request.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    message: String,
}

impl Refusal {
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.into() }
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, message: message.into() }
    }

    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self { status: StatusCode::CONFLICT, message: message.into() }
    }

    /// A request that axum could not take apart. Its 422, well-formed JSON of the wrong shape, is a
    /// bad request here as everything else is.
    fn rejected(status: StatusCode, message: String) -> Self {
        match status {
            StatusCode::UNPROCESSABLE_ENTITY => Self::bad_request(message),
            status => Self { status, message },
        }
    }

    /// A failure of the service; the client can do nothing about it.
    pub(super) fn failed(what: &str, error: &dyn std::error::Error) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, message: format!("{what}: {error}") }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.message }))).into_response()
    }
}

impl From<JsonRejection> for Refusal {
    fn from(rejection: JsonRejection) -> Self {
        Self::rejected(rejection.status(), rejection.body_text())
    }
}

impl From<PathRejection> for Refusal {
    fn from(rejection: PathRejection) -> Self {
        Self::rejected(rejection.status(), rejection.body_text())
    }
}

impl From<QueryRejection> for Refusal {
    fn from(rejection: QueryRejection) -> Self {
        Self::rejected(rejection.status(), rejection.body_text())
    }
}

impl From<rusqlite::Error> for Refusal {
    fn from(error: rusqlite::Error) -> Self {
        Self::failed("the database failed", &error)
    }
}

impl From<JoinError> for Refusal {
    fn from(error: JoinError) -> Self {
        Self::failed("the work for this request did not finish", &error)
    }
}
