//! A scrape of all services.
//!
//! A service that does not answer in time has nothing in it but `dormouse_up`, which is 0; so has
//! one that this user may not look into, if it was named.

use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use dormouse::metrics::{Exposition, MetricsFormat, add, add_shown};
use dormouse_metrics::{ExposedProcess, LabelSet, MetricFamily, MetricKind, MetricUnit, MetricValue};
use dormouse_protocol::Brief;

use super::hub::ServiceSnapshot;
use super::packed;

/// Whether a service answers.
static UP: MetricFamily = MetricFamily {
    name: "dormouse.up",
    help: "Whether the service answered in time.",
    unit: MetricUnit::Things("1"),
    kind: MetricKind::Gauge,
};

/// The format that a client likes best.
pub(super) fn format(headers: &HeaderMap) -> MetricsFormat {
    let accepted: Vec<_> = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok()).collect();
    MetricsFormat::accepted(Some(&accepted.join(",")))
}

/// The part of an answer to `stat` that a format shows.
pub(super) fn brief(format: MetricsFormat) -> Brief {
    match format {
        MetricsFormat::Text => Brief::Requests,
        MetricsFormat::OpenMetrics => Brief::Exemplars,
        MetricsFormat::Protobuf => Brief::All,
    }
}

/// The metrics of the services that have answered, as far as a format shows them.
pub(super) fn exposition(services: &[ServiceSnapshot], shown: Option<MetricsFormat>) -> Exposition {
    let mut exposition = Exposition::of_processes();
    for ServiceSnapshot { session, snapshot } in services {
        if let (Some(origin), Some(snapshot)) = (session.origin(), snapshot) {
            let stat = snapshot.stat.clone();
            match shown {
                Some(format) => add_shown(format, &mut exposition, &origin, stat),
                None => add(&mut exposition, &origin, stat),
            }
        }
    }
    exposition
}

/// The answer to a scrape.
pub(super) fn answer(services: &[ServiceSnapshot], format: MetricsFormat, headers: &HeaderMap) -> Response {
    let mut exposition = exposition(services, Some(format));
    for ServiceSnapshot { session, snapshot } in services {
        let process = session.process();
        let name = session.origin().map_or_else(|| process.name().to_owned(), |origin| origin.name.clone());
        let named = ExposedProcess { name, pid: process.pid, ..ExposedProcess::default() };
        let up = MetricValue::Count(snapshot.is_some().into());
        exposition.process(named).add(&UP, [LabelSet::NONE; 2], up);
    }
    packed::answer(HeaderValue::from_static(format.content_type()), exposition.encode(format), headers)
}
