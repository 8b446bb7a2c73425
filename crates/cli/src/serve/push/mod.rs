//! Pushing metrics by OTLP: those of all processes go to a collector, every minute by default.
//!
//! A separate thread takes the reading, encodes and posts it. So a slow or missing collector delays
//! only the next push. A failed push loses resolution, but no counts of a process that goes on:
//! totals are pushed, or differences to what was taken last ([`deltas`]).
//!
//! When `serve` ends it pushes once more, for at most three seconds and without a retry.
//!
//! Failures are reported when they begin and when they end, not each time.

mod answer;
mod deltas;
mod post;
mod pusher;
mod settings;
#[cfg(test)]
mod tests;

use dormouse::metrics::Exposition;
use dormouse_protocol::StatPart;
use tokio::runtime::Handle;

use self::deltas::Deltas;
use self::pusher::{PushBody, PushSource, Pusher};
use self::settings::{Asked, PushSettings};
use super::hub::{Hub, Identity, report_of};
use super::metrics::{GroupShares, add_service};
use crate::output::{FAIR, say};

/// The services of a hub, as bodies of pushes.
struct HubSource {
    hub: Hub,
    runtime: Handle,
    attributes: Vec<(String, String)>,
    /// `None` if totals are pushed.
    deltas: Option<Deltas>,
    /// The last process of the request by which the last push was broken off.
    broke_at: Option<Identity>,
}

impl PushSource for HubSource {
    fn begin(&mut self) {
        if self.deltas.is_some() {
            let _ = self.bodies();
        }
    }

    fn bodies(&mut self) -> Result<Vec<PushBody>, String> {
        let services = self.runtime.block_on(self.hub.snapshots(StatPart::Histograms));
        let mut services = services.map_err(|failure| report_of(failure).message)?;
        // Other users' services come last, and those behind a request that broke off a push come
        // before it: one that fails each time keeps no other from being pushed.
        let broke_at = self.broke_at.take();
        services.sort_by_key(|service| {
            let is_before = broke_at.is_some_and(|at| service.session.identity() <= at);
            (service.session.user().is_some(), is_before)
        });
        if let Some(deltas) = &mut self.deltas {
            deltas.begin(&services);
        }
        let (mut bodies, mut shares) = (Vec::new(), GroupShares::default());
        for service in &services {
            let mut exposition = match self.deltas {
                Some(_) => Exposition::of_differences(),
                None => Exposition::of_processes(),
            };
            match &mut self.deltas {
                Some(deltas) => deltas.add(&mut exposition, service, &mut shares),
                None => add_service(&mut exposition, service, &mut shares, None),
            }
            let points = exposition.points();
            if points > 0 {
                let request = exposition.otlp(&self.attributes);
                PushBody::add(&mut bodies, service.session.identity(), points, &request);
            }
        }
        Ok(bodies)
    }

    fn taken(&mut self, processes: &[Identity]) {
        if let Some(deltas) = &mut self.deltas {
            deltas.taken(processes);
        }
    }

    fn broke_at(&mut self, processes: &[Identity]) {
        self.broke_at = processes.last().copied();
    }
}

/// Pushes the metrics of the services, if the environment names a collector; through the proxy of
/// the environment only if `proxy`.
pub(super) fn start(hub: &Hub, runtime: &Handle, proxy: bool) -> Option<Pusher> {
    let Asked { settings, warnings } = settings::from_environment();
    for warning in &warnings {
        warn(warning);
    }
    let settings = PushSettings { proxy, ..settings? };
    let (hub, runtime, attributes) = (hub.clone(), runtime.clone(), settings.attributes.clone());
    let deltas = settings.delta.then(Deltas::new);
    let source = HubSource { hub, runtime, attributes, deltas, broke_at: None };
    Pusher::start(settings, source, warn).inspect_err(|error| warn(error)).ok()
}

fn warn(text: &str) {
    say(format_args!("{FAIR}warning:{FAIR:#} push: {text}"));
}
