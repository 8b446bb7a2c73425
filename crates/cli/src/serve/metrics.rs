//! A scrape of all services.
//!
//! A service that does not answer in time has nothing in it but `dormouse_up`, which is 0; so has
//! one that this user may not look into, if it was named.

use std::borrow::Cow;
use std::collections::HashMap;

use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use dormouse::metrics::{Exposition, MetricsFormat, add, add_shown};
use dormouse_metrics::{
    ClassicBounds, ExposedProcess, LabelSet, MetricFamily, MetricKind, MetricUnit, MetricValue,
};
use dormouse_protocol::{Stat, StatPart};

use super::hub::{ServiceSession, ServiceSnapshot, Snapshot};
use super::packed;

/// Whether a service answers.
static UP: MetricFamily = MetricFamily {
    name: "dormouse.up",
    help: "Whether the service answered in time.",
    unit: MetricUnit::Things("1"),
    kind: MetricKind::Gauge,
};

/// How many of a service's groups have no points.
static LEFT_OUT: MetricFamily = MetricFamily {
    name: "dormouse.groups.left.out",
    help: "Groups of the service without metrics, because its user has too many. Absent if there are none.",
    unit: MetricUnit::Things("{group}"),
    kind: MetricKind::Gauge,
};

/// How many services are not served.
static SERVICES_LEFT_OUT: MetricFamily = MetricFamily {
    name: "dormouse.services.left.out",
    help: "Services that dormouse serve does not serve, because there are too many.",
    unit: MetricUnit::Things("{service}"),
    kind: MetricKind::Gauge,
};

/// The format that a client likes best.
pub(super) fn format(headers: &HeaderMap) -> MetricsFormat {
    let accepted: Vec<_> = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok()).collect();
    MetricsFormat::accepted(Some(&accepted.join(",")))
}

/// The part of an answer to `stat` that a format shows.
pub(super) fn part(format: MetricsFormat) -> StatPart {
    match format {
        MetricsFormat::Text => StatPart::Requests,
        MetricsFormat::OpenMetrics => StatPart::Exemplars,
        MetricsFormat::Protobuf => StatPart::Histograms,
    }
}

/// The groups that a scrape shows of another user, over all its services.
const MOST_GROUPS: usize = 4096;

/// The groups of other users that may be shown yet.
#[derive(Debug, Default)]
pub(super) struct GroupShares(HashMap<u32, usize>);

impl GroupShares {
    /// The figures of a service that are shown, and how many of its groups are left out.
    pub(super) fn shown<'a>(
        &mut self,
        session: &ServiceSession,
        snapshot: &'a Snapshot,
    ) -> (Cow<'a, Stat>, usize) {
        let mut stat = Cow::Borrowed(&snapshot.stat);
        let mut left_out = snapshot.groups_left_out;
        if session.user().is_some() {
            let free = self.0.entry(session.process().uid).or_insert(MOST_GROUPS);
            let too_many = stat.groups.len().saturating_sub(*free);
            if too_many > 0 {
                stat.to_mut().groups.truncate(*free);
            }
            left_out += too_many;
            *free -= stat.groups.len();
        }
        (stat, left_out)
    }
}

/// Adds to the last process what was left out of it.
pub(super) fn add_left_out(exposition: &mut Exposition, groups: usize) {
    if groups > 0
        && let Some(mut part) = exposition.last_process()
    {
        part.add(&LEFT_OUT, [LabelSet::NONE; 2], MetricValue::Count(groups as u64));
    }
}

/// Adds the metrics of a service that has answered, as far as a format shows them.
pub(super) fn add_service(
    to: &mut Exposition,
    service: &ServiceSnapshot,
    shares: &mut GroupShares,
    shown: Option<MetricsFormat>,
) {
    let ServiceSnapshot { session, snapshot } = service;
    if let (Some(origin), Some(snapshot)) = (session.origin(), snapshot) {
        let (stat, left_out) = shares.shown(session, snapshot);
        match shown {
            Some(format) => add_shown(format, to, &origin, &stat),
            None => add(to, &origin, &stat),
        }
        add_left_out(to, left_out);
    }
}

/// The answer to a scrape; `left_out` processes have no session.
pub(super) fn answer(
    services: &[ServiceSnapshot],
    left_out: usize,
    format: MetricsFormat,
    buckets: Option<ClassicBounds>,
    headers: &HeaderMap,
) -> Response {
    let (mut exposition, mut shares) = (Exposition::of_processes(), GroupShares::default());
    for service in services {
        add_service(&mut exposition, service, &mut shares, Some(format));
    }
    if let Some(buckets) = buckets {
        exposition.set_bounds(buckets);
    }
    for ServiceSnapshot { session, snapshot } in services {
        let process = session.process();
        let name = session.origin().map_or_else(|| process.name().to_owned(), |origin| origin.name.clone());
        let user = session.user().map(str::to_owned);
        let named = ExposedProcess { name, pid: process.pid, user, ..ExposedProcess::default() };
        let up = MetricValue::Count(snapshot.is_some().into());
        exposition.process(named).add(&UP, [LabelSet::NONE; 2], up);
    }
    let own =
        ExposedProcess { name: "dormouse".into(), pid: std::process::id(), ..ExposedProcess::default() };
    let left_out = MetricValue::Count(left_out as u64);
    exposition.process(own).add(&SERVICES_LEFT_OUT, [LabelSet::NONE; 2], left_out);
    packed::answer(HeaderValue::from_static(format.content_type()), exposition.encode(format), headers)
}
