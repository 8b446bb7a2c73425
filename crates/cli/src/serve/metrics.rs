//! A scrape of all services.
//!
//! A service that does not answer in time has nothing in it but `dormouse_up`, which is 0; so has
//! one that this user may not look into, if it was named.

use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use dormouse::metrics::{Exposition, MetricsFormat, add};
use dormouse_metrics::{ExposedProcess, LabelSet, MetricFamily, MetricKind, MetricUnit, MetricValue};

use super::hub::Sight;
use super::packed;

/// Whether a service answers.
static UP: MetricFamily = MetricFamily {
    name: "dormouse.up",
    help: "Whether the service answered in time.",
    unit: MetricUnit::Things("1"),
    kind: MetricKind::Gauge,
};

/// The metrics of the services that have answered.
pub(super) fn exposition(sights: &[Sight]) -> Exposition {
    let mut exposition = Exposition::of_processes();
    for Sight { seat, look } in sights {
        if let (Some(origin), Some(look)) = (seat.origin(), look) {
            add(&mut exposition, &origin, look.stat.clone());
        }
    }
    exposition
}

/// The answer to a scrape.
pub(super) fn answer(sights: &[Sight], headers: &HeaderMap) -> Response {
    let mut exposition = exposition(sights);
    for Sight { seat, look } in sights {
        let process = seat.process();
        let name = seat.origin().map_or_else(|| process.name().to_owned(), |origin| origin.name.clone());
        let named = ExposedProcess { name, pid: process.pid, ..ExposedProcess::default() };
        let up = MetricValue::Count(look.is_some().into());
        exposition.process(named).add(&UP, [LabelSet::NONE; 2], up);
    }
    let accepted: Vec<_> = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok()).collect();
    let format = MetricsFormat::accepted(Some(&accepted.join(",")));
    packed::answer(HeaderValue::from_static(format.content_type()), exposition.encode(format), headers)
}
