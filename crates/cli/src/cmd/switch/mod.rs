//! `dormouse on`, `off` and `reset`; and what HTTP may ask of them: on for a time, and off.

#![cfg_attr(not(feature = "serve"), allow(dead_code, reason = "HTTP alone asks for a part"))]

pub(crate) mod off;
pub(crate) mod on;
pub(crate) mod reset;

use std::time::Duration;

use serde::Deserialize;

use crate::client::session::Subject;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Context;
use crate::verb::Asked;
#[cfg(feature = "serve")]
use crate::verb::Offer;

/// The longest time for which HTTP switches keys on.
const LONGEST_MS: u64 = 3_600_000;

/// Switches keys on for a time, or off.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Request {
    glob: Option<String>,
    on: Option<bool>,
    for_ms: Option<u64>,
}

impl Asked for Request {
    const NAME: &'static str = "keys";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::changing::<Self>());

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        let wrong = |what: String| Err(Failure::new(Exit::Usage, what));
        let Some(glob) = self.glob.clone() else { return wrong("`glob` is missing: names of keys".into()) };
        match (self.on, self.for_ms) {
            (None, _) => wrong("`on` is missing: true or false".into()),
            (Some(false), _) => off::Request::now(glob).run(subject, context),
            (Some(true), Some(ms @ 1..=LONGEST_MS)) => {
                on::Request::timed(glob, Duration::from_millis(ms)).run(subject, context)
            }
            (Some(true), _) => {
                wrong(format!("`for_ms` is the time until they go off again: from 1 to {LONGEST_MS}"))
            }
        }
    }
}
