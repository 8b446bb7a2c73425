//! Verbs as functions: the command line and HTTP read the same request type, and call the same
//! function with it.
//!
//! A field that HTTP must not set (it writes a file, runs a command, or keeps something on) is
//! `#[serde(skip)]`, so a query cannot name it.

#[cfg(feature = "serve")]
pub(crate) mod words;

#[cfg(feature = "serve")]
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::args::help;
use crate::client::session::Subject;
#[cfg(feature = "serve")]
use crate::duration::parse;
use crate::exit::Outcome;
use crate::output::Context;
use crate::target::Target;

/// The arguments of a subcommand.
pub(crate) trait Subcommand: clap::Args {
    /// The verb that HTTP offers of it.
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = None;

    /// Runs it.
    fn run(&self, context: &mut Context) -> Outcome;
}

/// The request of a verb, without the process that it is about. The command line has it by
/// [`clap::Args`], HTTP by [`Offer`].
pub(crate) trait Asked: DeserializeOwned + Send + 'static {
    /// Its name in a path.
    #[cfg_attr(not(feature = "serve"), allow(dead_code, reason = "HTTP alone has paths"))]
    const NAME: &'static str;

    /// The help text of the target.
    const TARGET: &'static str = help::TARGET;

    /// The verb that HTTP offers of it; `None` if only the command line has it.
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer>;

    /// Whether the answer is lines, until the end of the client; else it is one document.
    fn is_stream(&self) -> bool {
        false
    }

    /// Answers about a process.
    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome;
}

// The command line of a verb: the process, and the request. (A doc comment here would replace the
// request's in `--help`.)
#[derive(Debug, clap::Args)]
pub(crate) struct Line<R: Asked + clap::Args> {
    #[arg(help = R::TARGET)]
    target: Target,
    #[command(flatten)]
    pub(crate) request: R,
}

impl<R: Asked + clap::Args> Subcommand for Line<R> {
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = R::OFFER;

    fn run(&self, context: &mut Context) -> Outcome {
        self.request.run(&Subject::of(&self.target), context)
    }
}

/// A verb that HTTP offers.
#[cfg(feature = "serve")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) name: &'static str,
    /// Whether it changes something: it is asked for by POST, with JSON.
    pub(crate) changes: bool,
    /// Reads the request from the words of a query or a body.
    pub(crate) read: fn(&[(String, String)]) -> Outcome<Call>,
}

/// A request that was read.
#[cfg(feature = "serve")]
pub(crate) struct Call {
    pub(crate) is_stream: bool,
    /// For how long it asks.
    pub(crate) length: Option<Duration>,
    pub(crate) run: Run,
}

/// Runs a request that was read.
#[cfg(feature = "serve")]
pub(crate) type Run = Box<dyn FnOnce(&Subject, &mut Context) -> Outcome + Send>;

#[cfg(feature = "serve")]
impl Offer {
    /// By GET.
    pub(crate) const fn reading<R: Asked>() -> Offer {
        Offer { name: R::NAME, changes: false, read: call::<R> }
    }

    /// By POST.
    pub(crate) const fn changing<R: Asked>() -> Offer {
        Offer { name: R::NAME, changes: true, read: call::<R> }
    }
}

#[cfg(feature = "serve")]
fn call<R: Asked>(given: &[(String, String)]) -> Outcome<Call> {
    let request: R = words::read(R::NAME, given)?;
    let is_stream = request.is_stream();
    let length = given.iter().find(|(name, _)| name == "for").and_then(|(_, text)| parse(text).ok());
    Ok(Call { is_stream, length, run: Box::new(move |subject, context| request.run(subject, context)) })
}
