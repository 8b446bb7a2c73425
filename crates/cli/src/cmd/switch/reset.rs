//! `dormouse reset`: restores the state that keys had when the service started.

use dormouse_protocol::{Changed, ResetRequest};
use serde::Deserialize;

use crate::args::help;
use crate::client::session::Subject;
use crate::exit::{Exit, Outcome};
use crate::output::Context;
use crate::render::leases::{Switched, note_held};
use crate::verb::Asked;
#[cfg(feature = "serve")]
use crate::verb::Offer;

/// Restore the states that keys started with
///
/// Undoes `on --keep` and `off`, and ends your own `on --for`. Keys that others hold stay on, which
/// is listed and ends with exit code 1.
#[derive(Debug, clap::Args, Deserialize)]
pub(crate) struct Request {
    #[arg(help = help::GLOB)]
    glob: String,
}

impl Asked for Request {
    const NAME: &'static str = "reset";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = None;

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        let mut session = subject.session(context.patience)?;
        let changed: Changed = session.call(ResetRequest { glob: self.glob.clone() })?;
        Switched::new(("reset", "now"), session.pid(), None, &changed, context).print(context)?;
        Ok(if note_held(&changed, context) { Exit::Failed } else { Exit::Ok })
    }
}
