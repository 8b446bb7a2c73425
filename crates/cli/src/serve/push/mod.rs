//! Pushing metrics by OTLP: those of all processes go to a collector, every minute by default.
//!
//! A separate thread takes the reading, encodes and posts it. So a slow or missing collector delays
//! only the next push. A failed push loses resolution, but no counts: totals are pushed, or
//! differences to what was taken last ([`deltas`]).
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

use dormouse_protocol::StatPart;
use tokio::runtime::Handle;

use self::deltas::Deltas;
use self::pusher::{PushSource, Pusher};
use self::settings::{Asked, PushSettings};
use super::hub::{Hub, ServiceSnapshot, report_of};
use super::metrics;
use crate::output::{FAIR, say};

/// The services of a hub, as bodies of pushes.
struct HubSource {
    hub: Hub,
    runtime: Handle,
    attributes: Vec<(String, String)>,
    /// `None` if totals are pushed.
    deltas: Option<Deltas>,
}

impl HubSource {
    fn services(&self) -> Result<Vec<ServiceSnapshot>, String> {
        let services = self.runtime.block_on(self.hub.snapshots(StatPart::Histograms));
        services.map_err(|failure| report_of(failure).message)
    }
}

impl PushSource for HubSource {
    fn begin(&mut self) {
        if self.deltas.is_some()
            && let Ok(services) = self.services()
            && let Some(deltas) = &mut self.deltas
        {
            deltas.exposition(&services);
        }
    }

    fn request(&mut self) -> Result<Vec<u8>, String> {
        let services = self.services()?;
        let exposition = match &mut self.deltas {
            Some(deltas) => deltas.exposition(&services),
            None => metrics::exposition(&services, None),
        };
        Ok(exposition.otlp(&self.attributes))
    }

    fn taken(&mut self) {
        if let Some(deltas) = &mut self.deltas {
            deltas.taken();
        }
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
    let source = HubSource { hub, runtime, attributes, deltas };
    Pusher::start(settings, source, warn).inspect_err(|error| warn(error)).ok()
}

fn warn(text: &str) {
    say(format_args!("{FAIR}warning:{FAIR:#} push: {text}"));
}
