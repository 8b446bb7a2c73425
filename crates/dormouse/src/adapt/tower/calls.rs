//! A layer around a client: each request is a call to its peer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use dormouse_waits::calls::{CallKind, Peer, PeerName};
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::body::GRPC_STATUS;
use crate::core::calls::Call;

/// A layer around a client of HTTP or gRPC: hyper-util's `Client`, tonic's `Channel`, or any
/// service of such requests. Each request is a [`Call`] of the group that is current where the
/// service is called.
///
/// A call lasts until the head of its response. The peer is the host of the request's URI, else
/// that of its header `Host`; of gRPC service and method. A call failed if the service returns an
/// error, if the status is 4xx or 5xx, if gRPC's status, in headers or trailers, is not 0, or if
/// the body ends with an error.
///
/// ```
/// use hyper_util::client::legacy::Client;
/// use hyper_util::rt::TokioExecutor;
/// use tower::Layer;
///
/// let client = Client::builder(TokioExecutor::new()).build_http::<String>();
/// let client = dormouse::tower::calls().layer(client);
/// # let _ = client;
/// ```
///
/// # Cost
///
/// Asleep a sleeping instruction, otherwise the cost of a [`Call`] and of a reading of the headers
/// for gRPC.
pub fn calls() -> PeerLayer {
    PeerLayer
}

/// See [`calls`].
#[derive(Debug, Clone, Copy)]
pub struct PeerLayer;

impl<S> Layer<S> for PeerLayer {
    type Service = PeerService<S>;

    fn layer(&self, inner: S) -> PeerService<S> {
        PeerService(inner)
    }
}

/// The service that [`PeerLayer`] makes.
#[derive(Debug, Clone)]
pub struct PeerService<S>(S);

impl<S, R, B> Service<Request<R>> for PeerService<S>
where
    S: Service<Request<R>, Response = Response<B>>,
    B: Body,
{
    type Response = Response<PeerBody<B>>;
    type Error = S::Error;
    type Future = PeerResponse<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let call = Call::to(|| peer(&request));
        PeerResponse { future: self.0.call(request), call: Some(call) }
    }
}

fn peer<R>(request: &Request<R>) -> PeerName {
    let (uri, headers) = (request.uri(), request.headers());
    let content = headers.get(CONTENT_TYPE);
    let is_grpc = |content: &HeaderValue| content.as_bytes().starts_with(b"application/grpc");
    if content.is_some_and(is_grpc) && is_method(uri.path()) {
        return PeerName::of(CallKind::Grpc, uri.path());
    }
    if let Some(host) = uri.host() {
        PeerName::host(host, uri.port_u16())
    } else {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        PeerName::of(CallKind::Http, host.unwrap_or_default())
    }
}

/// Whether it is the path of a method as protobuf's style has it, `/a.b.Service/Method`. A proxy
/// passes on what its clients say of content and path, and a path with values is no name.
fn is_method(path: &str) -> bool {
    let is_capital = |name: &str| name.starts_with(|first: char| first.is_ascii_uppercase());
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let parts = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    parts.is_some_and(|(service, method)| {
        service.rsplit('.').next().is_some_and(is_capital)
            && service.split('.').all(is_name)
            && is_capital(method)
            && is_name(method)
    })
}

/// Whether gRPC's status is there and no success.
fn is_grpc_error(headers: &HeaderMap) -> bool {
    headers.get(GRPC_STATUS).is_some_and(|status| status.as_bytes() != b"0")
}

pin_project! {
    /// The future of [`PeerService`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct PeerResponse<F> {
        #[pin]
        future: F,
        // `None` after its end.
        call: Option<Call>,
    }
}

impl<F, B, E> Future for PeerResponse<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<PeerBody<B>>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.future.poll(cx));
        let Some(call) = this.call.take() else { return Poll::Pending };
        Poll::Ready(match answer {
            Ok(response) => {
                let is_error = response.status().as_u16() >= 400 || is_grpc_error(response.headers());
                // A call fails once.
                let peer = call.answered(is_error).filter(|_| !is_error);
                Ok(response.map(|body| PeerBody { body, peer }))
            }
            Err(error) => {
                call.end(true);
                Err(error)
            }
        })
    }
}

pin_project! {
    /// The body of the response to a call, which may still fail.
    #[derive(Debug)]
    pub struct PeerBody<B> {
        #[pin]
        body: B,
        // `None` once the call has failed.
        peer: Option<Peer>,
    }
}

/// The body of no call, which other layers put in place of a response.
impl<B: Default> Default for PeerBody<B> {
    fn default() -> Self {
        Self { body: B::default(), peer: None }
    }
}

impl<B: Body> Body for PeerBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(cx));
        let is_error = match &frame {
            Some(Ok(frame)) => frame.trailers_ref().is_some_and(is_grpc_error),
            Some(Err(_)) => true,
            None => false,
        };
        if is_error && let Some(peer) = this.peer.take() {
            peer.failed();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_no_path_with_values() {
        for path in ["/tea.Kitchen/Brew", "/grpc.health.v1.Health/Check", "/Greeter/SayHello"] {
            assert!(is_method(path), "{path}");
        }
        for path in [
            "/reset/ann@tea.test/TOKEN",
            "/menu/17",
            "/a.b/c1",
            "/a.B/C/D",
            "/a.b/",
            "/tea.Kitchen",
            "/",
            "*",
        ] {
            assert!(!is_method(path), "{path}");
        }
    }

    #[test]
    fn other_layers_can_make_empty_bodies() {
        fn empty<B: Default>() -> B {
            B::default()
        }
        assert!(empty::<PeerBody<String>>().is_end_stream());
        assert!(empty::<super::super::GroupBody<String>>().is_end_stream());
    }
}
