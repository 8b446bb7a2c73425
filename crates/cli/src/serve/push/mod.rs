//! OTLP pushed: the metrics of all processes go to a collector, every minute by default.
//!
//! A thread of its own asks for the reading, encodes and posts it. A collector that is slow or gone
//! thus delays nothing but the next push. Totals are pushed: nothing is kept for later, and a push
//! that has failed loses resolution, and no counts.
//!
//! The end of `serve` is one more push, made in three seconds at most and tried once.
//!
//! Failures are told when they begin and when they end, not each time.

mod answer;
mod post;
mod pusher;
mod settings;
#[cfg(test)]
mod tests;

use tokio::runtime::Handle;

use self::pusher::Pusher;
use self::settings::Asked;
use super::hub::{Hub, report_of};
use super::metrics;
use crate::output::{FAIR, say};

/// Pushes what the services say, if the environment names a collector.
pub(super) fn start(hub: &Hub, runtime: &Handle) -> Option<Pusher> {
    let Asked { settings, warnings } = settings::from_environment();
    for warning in &warnings {
        warn(warning);
    }
    let settings = settings?;
    let (hub, runtime, attributes) = (hub.clone(), runtime.clone(), settings.attributes.clone());
    let source = move || {
        let sights = runtime.block_on(hub.looks()).map_err(|failure| report_of(failure).message)?;
        Ok(metrics::exposition(&sights).otlp(&attributes))
    };
    Pusher::start(settings, source, warn).inspect_err(|error| warn(error)).ok()
}

fn warn(text: &str) {
    say(format_args!("{FAIR}warning:{FAIR:#} push: {text}"));
}
