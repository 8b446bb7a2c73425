//! WebSockets whose tasks stay in the group of their route.

use std::borrow::Cow;

use ::axum::extract::FromRequestParts;
use ::axum::extract::ws::{self, DefaultOnFailedUpgrade, OnFailedUpgrade, WebSocket};
use ::axum::http::HeaderValue;
use ::axum::http::request::Parts;
use ::axum::response::Response;

use crate::adapt::inherit::carry;

/// axum's extractor of the same name, with a callback that is charged to the group of the handler:
/// axum spawns it outside of every group. The socket is a [connection](crate::Group::connection) of
/// the group: neither another request, nor a part of one, nor a latency.
///
/// ```
/// use axum::{Router, extract::ws::WebSocket, response::Response, routing::any};
/// use dormouse::axum::WebSocketUpgrade; // the only change
///
/// async fn echo(mut socket: WebSocket) {
///     while let Some(Ok(message)) = socket.recv().await {
///         let _ = socket.send(message).await;
///     }
/// }
/// async fn handler(upgrade: WebSocketUpgrade) -> Response {
///     upgrade.on_upgrade(echo)
/// }
/// let app: Router = Router::new().route("/ws", any(handler));
/// # let _ = app;
/// ```
#[derive(Debug)]
#[must_use]
pub struct WebSocketUpgrade<F = DefaultOnFailedUpgrade>(ws::WebSocketUpgrade<F>);

impl<S: Send + Sync> FromRequestParts<S> for WebSocketUpgrade {
    type Rejection = <ws::WebSocketUpgrade as FromRequestParts<S>>::Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        ws::WebSocketUpgrade::from_request_parts(parts, state).await.map(Self)
    }
}

impl<F> WebSocketUpgrade<F> {
    /// Capacity of the read buffer.
    pub fn read_buffer_size(self, size: usize) -> Self {
        Self(self.0.read_buffer_size(size))
    }

    /// Size of the write buffer from which on it is written to the stream.
    pub fn write_buffer_size(self, size: usize) -> Self {
        Self(self.0.write_buffer_size(size))
    }

    /// Largest size of the write buffer in bytes.
    pub fn max_write_buffer_size(self, max: usize) -> Self {
        Self(self.0.max_write_buffer_size(max))
    }

    /// Largest size of a message in bytes.
    pub fn max_message_size(self, max: usize) -> Self {
        Self(self.0.max_message_size(max))
    }

    /// Largest size of a frame in bytes.
    pub fn max_frame_size(self, max: usize) -> Self {
        Self(self.0.max_frame_size(max))
    }

    /// Whether frames without a mask are accepted.
    pub fn accept_unmasked_frames(self, accept: bool) -> Self {
        Self(self.0.accept_unmasked_frames(accept))
    }

    /// Subprotocols that the server can speak, the preferred one first.
    pub fn protocols<I>(self, protocols: I) -> Self
    where
        I: IntoIterator<Item: Into<Cow<'static, str>>>,
    {
        Self(self.0.protocols(protocols))
    }

    /// Subprotocols that the client has requested.
    pub fn requested_protocols(&self) -> impl Iterator<Item = &HeaderValue> {
        self.0.requested_protocols()
    }

    /// Chooses the subprotocol.
    pub fn set_selected_protocol(&mut self, protocol: HeaderValue) {
        self.0.set_selected_protocol(protocol);
    }

    /// The chosen subprotocol.
    pub fn selected_protocol(&self) -> Option<&HeaderValue> {
        self.0.selected_protocol()
    }

    /// Calls `callback` if the upgrade fails.
    pub fn on_failed_upgrade<C: OnFailedUpgrade>(self, callback: C) -> WebSocketUpgrade<C> {
        WebSocketUpgrade(self.0.on_failed_upgrade(callback))
    }

    /// Answers the request, and calls `callback` with the socket, in the group that is current
    /// here.
    #[must_use = "to set up the WebSocket connection, this response must be returned"]
    #[track_caller]
    pub fn on_upgrade<C, T>(self, callback: C) -> Response
    where
        C: FnOnce(WebSocket) -> T + Send + 'static,
        T: Future<Output = ()> + Send + 'static,
        F: OnFailedUpgrade,
    {
        self.0.on_upgrade(carry().callback(callback))
    }
}
