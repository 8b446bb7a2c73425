//! Pushing metrics by OTLP: those of all processes go to a collector, every minute by default.
//!
//! A separate thread takes the reading, encodes and posts it. So a slow or missing collector delays
//! only the next push. Totals are pushed: nothing is kept for later, and a failed push loses
//! resolution, but no counts.
//!
//! When `serve` ends it pushes once more, for at most three seconds and without a retry.
//!
//! Failures are reported when they begin and when they end, not each time.

mod answer;
mod post;
mod pusher;
mod settings;
#[cfg(test)]
mod tests;

use dormouse_protocol::Brief;
use tokio::runtime::Handle;

use self::pusher::Pusher;
use self::settings::Asked;
use super::hub::{Hub, report_of};
use super::metrics;
use crate::output::{FAIR, say};

/// Pushes the metrics of the services, if the environment names a collector.
pub(super) fn start(hub: &Hub, runtime: &Handle) -> Option<Pusher> {
    let Asked { settings, warnings } = settings::from_environment();
    for warning in &warnings {
        warn(warning);
    }
    let settings = settings?;
    let (hub, runtime, attributes) = (hub.clone(), runtime.clone(), settings.attributes.clone());
    let source = move || {
        let services =
            runtime.block_on(hub.snapshots(Brief::All)).map_err(|failure| report_of(failure).message)?;
        Ok(metrics::exposition(&services, None).otlp(&attributes))
    };
    Pusher::start(settings, source, warn).inspect_err(|error| warn(error)).ok()
}

fn warn(text: &str) {
    say(format_args!("{FAIR}warning:{FAIR:#} push: {text}"));
}
