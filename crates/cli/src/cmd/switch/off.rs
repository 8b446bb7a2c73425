//! `dormouse off`: ends leases and the baseline, and lists the holders of keys that stay on.

use std::time::Duration;

use dormouse_protocol::{Changed, OffRequest};
use serde::Deserialize;

use crate::args::help;
use crate::client::session::Subject;
use crate::duration::{milliseconds, parse_hold};
use crate::exit::{Exit, Outcome};
use crate::output::Context;
use crate::render::leases::{Switched, note_held, short_ms, unix_ms_in};
use crate::text::count;
use crate::verb::Asked;
#[cfg(feature = "serve")]
use crate::verb::Offer;

/// Switch keys off
///
/// Clears what `on --keep` and your own `on --for` left. Keys that the service starts with on stay
/// on unless they are named without a wildcard; `reset` restores what they started with. Keys that
/// others hold stay on, which is listed and ends with exit code 1.
#[derive(Debug, clap::Args, Deserialize)]
pub(crate) struct Request {
    #[arg(help = help::GLOB)]
    glob: String,
    /// Leave them on this much longer; if they are on again by then, nothing is patched
    #[arg(long, value_name = "DURATION", value_parser = parse_hold)]
    #[serde(skip)]
    dwell: Option<Duration>,
    /// Also end the leases of others
    #[arg(long)]
    #[serde(skip)]
    force: bool,
}

impl Request {
    /// At once, but for what others hold.
    pub(super) fn now(glob: String) -> Request {
        Request { glob, dwell: None, force: false }
    }
}

impl Asked for Request {
    const NAME: &'static str = "off";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = None;

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        let mut session = subject.session(context.patience)?;
        let dwell_ms = self.dwell.map(milliseconds);
        let off = OffRequest { glob: self.glob.clone(), dwell_ms, force: self.force, release: false };
        let changed: Changed = session.call(off)?;
        let mode = if dwell_ms.is_some() { "dwell" } else { "now" };
        let off_at_unix_ms = dwell_ms.and_then(unix_ms_in);
        Switched::new(("off", mode), session.pid(), off_at_unix_ms, &changed, context).print(context)?;
        if let Some(dwell_ms) = dwell_ms {
            let later = short_ms(dwell_ms);
            context.note(format_args!("what was on goes off in {later}, unless it is switched on again"));
        }
        if changed.start_on > 0 {
            let keys = count(changed.start_on as u64, "key");
            context.note(format_args!(
                "{keys} that the service starts with left on: to switch one off, name it without a wildcard"
            ));
        }
        if !note_held(&changed, context) {
            return Ok(Exit::Ok);
        }
        if self.force {
            context.note("  hint: the service's own code holds these, and only that code can end it");
        } else {
            context.note("  hint: --force ends the leases of others");
        }
        Ok(Exit::Failed)
    }
}
