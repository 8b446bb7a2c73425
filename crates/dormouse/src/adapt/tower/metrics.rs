//! Metrics as a service: any server of `http` requests mounts it at `/metrics`.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::ACCEPT;
use http::{Method, Request, Response};
use tower_service::Service;

use super::answered::Answered;
use crate::features::metrics::Metrics;
use crate::web::WebAnswer;

/// Answers with metrics, ignoring the path and the body of the request; `B` is the body of the
/// response. A separate thread reads them. Figures are counted as long as it, or one of its clones,
/// exists.
///
/// ```
/// use dormouse::metrics::{Metrics, MetricsSpec};
/// use dormouse::tower::MetricsService;
///
/// let metrics = Metrics::start(&MetricsSpec::new())?;
/// let service: MetricsService<Vec<u8>> = MetricsService::new(metrics);
/// # let _ = service;
/// # Ok::<(), dormouse::metrics::MetricsError>(())
/// ```
pub struct MetricsService<B> {
    metrics: Arc<Metrics>,
    body: PhantomData<fn() -> B>,
}

impl<B> MetricsService<B> {
    /// A service that answers with these metrics.
    pub fn new(metrics: impl Into<Arc<Metrics>>) -> Self {
        Self { metrics: metrics.into(), body: PhantomData }
    }
}

impl<B> Clone for MetricsService<B> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.metrics))
    }
}

impl<B> fmt::Debug for MetricsService<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetricsService")
    }
}

impl<R, B: From<Vec<u8>>> Service<Request<R>> for MetricsService<B> {
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Answered<B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<R>) -> Answered<B> {
        if request.method() != Method::GET {
            return Answered::new(WebAnswer::text(405, "metrics are got by GET").into());
        }
        let accept = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let accept = accept.collect::<Vec<_>>().join(",");
        Answered::new(Metrics::respond(Arc::clone(&self.metrics), Some(&accept)))
    }
}
