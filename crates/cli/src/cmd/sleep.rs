//! `dormouse sleep`: pauses all that dormouse does in a service.

use dormouse_protocol::SleepRequest;
use serde::Deserialize;

use crate::client::session::Subject;
use crate::exit::{Exit, Outcome};
use crate::output::Context;
use crate::text::count;
use crate::verb::Asked;
#[cfg(feature = "serve")]
use crate::verb::Offer;

/// Pause all that dormouse does in a service, until `wake`
///
/// Keys go off, nothing is counted or measured, triggers and the recorder pause with what they
/// have, and the requests of others end. The service's own branches and budgets stay as they are.
#[derive(Debug, clap::Args, Deserialize)]
pub(crate) struct Request {}

impl Asked for Request {
    const NAME: &'static str = "sleep";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::changing::<Self>());

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        let mut session = subject.session(context.patience)?;
        let slept = session.call(SleepRequest {})?;
        if context.json {
            context.document(&slept)?;
        } else {
            let keys = count(slept.keys as u64, "key");
            let clients = count(slept.clients as u64, "client");
            let who = session.who();
            context.line(format_args!("{who} is {}: {keys} off, work for {clients} ended", slept.asleep))?;
            context.note(format_args!("`dormouse wake {}` wakes it", subject.target));
        }
        Ok(Exit::Ok)
    }
}
