//! `dormouse wake`: has dormouse go on in a service that was put to sleep.

use dormouse_protocol::WakeRequest;
use serde::Deserialize;

use crate::client::session::Subject;
use crate::exit::{Exit, Outcome};
use crate::output::Context;
use crate::text::count;
use crate::verb::Asked;
#[cfg(feature = "serve")]
use crate::verb::Offer;

/// Have dormouse go on in a service after `sleep`
///
/// Triggers and the recorder go on with what they had, and keys are as their holders want them by
/// now. Clients whose requests `sleep` has ended request them again.
#[derive(Debug, clap::Args, Deserialize)]
pub(crate) struct Request {}

impl Asked for Request {
    const NAME: &'static str = "wake";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::changing::<Self>());

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        let mut session = subject.session(context.patience)?;
        let woken = session.call(WakeRequest {})?;
        if context.json {
            context.document(&woken)?;
            return Ok(Exit::Ok);
        }
        let who = session.who();
        match woken.was {
            Some(was) => {
                let keys = count(woken.keys as u64, "key");
                context.line(format_args!("{who} is awake: it was {was}; {keys} on again"))?;
            }
            None if woken.keys > 0 => {
                let keys = count(woken.keys as u64, "key");
                context.line(format_args!("{who} was awake but for DORMOUSE_MAX_CPU: {keys} on again"))?;
            }
            None => context.line(format_args!("{who} was awake"))?,
        }
        Ok(Exit::Ok)
    }
}
