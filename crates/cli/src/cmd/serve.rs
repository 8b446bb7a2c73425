//! `dormouse serve`: the command line of the server in [`crate::serve`].

use std::net::SocketAddr;
use std::path::PathBuf;

use dormouse_metrics::ClassicBounds;

use crate::duration;
use crate::exit::Outcome;
use crate::output::Context;
use crate::sample::events::EventRequest;
use crate::sample::objectives::ObjectiveList;
use crate::serve::{self, Settings};
use crate::target::Target;
use crate::user::uid_of;
use crate::verb::Subcommand;

/// Serve metrics, profiles, every reading verb and a page over HTTP, for all services of this host
///
/// The services count while this runs, and stop by themselves when it ends. Everything but the
/// page, which contains no data, needs the token, which is in a file that only your user can read:
/// `Authorization: Bearer TOKEN`, or TOKEN as the password of any user. Other machines cannot
/// connect unless --listen allows it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these processes, by id or name; without any, all with dormouse in them
    #[arg(value_name = "TARGET", value_parser = process)]
    targets: Vec<Target>,
    /// Only processes of this user, by name or number; may be given more than once
    #[arg(long = "user", value_name = "USER", value_parser = uid_of)]
    users: Vec<u32>,
    /// Where to listen
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9464", value_parser = address)]
    listen: SocketAddr,
    /// Read the token from this file; if it does not exist, it is created with a new token, and
    /// kept
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Answer /metrics without the token
    #[arg(long)]
    public_metrics: bool,
    /// Push through the proxy that the environment names, as by `HTTPS_PROXY`
    #[arg(long)]
    push_proxy: bool,
    /// Events for groups to count beside CPU time; `dormouse list` lists them
    #[arg(short, long = "event", value_name = "EVENTS", default_value = "task-clock")]
    events: EventRequest,
    /// Take no times of tasks, which cost the services a little of each poll
    #[arg(long)]
    no_waits: bool,
    /// Have the services count requests by objectives, as in 'GET /*: 99.9% < 250ms; POST *: 99% <
    /// 1s': globs of groups, and the share of their requests to be answered within a time
    #[arg(long = "objective", value_name = "OBJECTIVES", allow_hyphen_values = true)]
    objectives: Option<ObjectiveList>,
    /// Where the classic buckets of requests and calls end, as in 125ms,250ms,1s. Each end moves to
    /// the nearest power of 2 by quarters, in seconds, at which counts are exact
    #[arg(long, value_name = "TIMES", value_parser = buckets, allow_hyphen_values = true)]
    buckets: Option<ClassicBounds>,
    /// Also answer requests for this host name, which a proxy or a cluster may use for this machine
    #[arg(long, value_name = "NAME", value_parser = host)]
    allow_host: Vec<String>,
}

fn process(text: &str) -> Result<Target, String> {
    match text.parse()? {
        Target::File(_) => Err("it is a file: name a process or give its id".into()),
        target => Ok(target),
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "it is no address with a port, as 127.0.0.1:9464 or [::1]:9464".into())
}

fn buckets(text: &str) -> Result<ClassicBounds, String> {
    let times: Result<Vec<_>, String> = text.split(',').map(duration::parse).collect();
    ClassicBounds::near(&times?).map_err(|why| why.to_string())
}

/// A name in small letters, without scheme, port and path.
fn host(text: &str) -> Result<String, String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_name) {
        return Err("it must be a plain name such as tea.example: leave out http:// and the port".into());
    }
    Ok(text.to_ascii_lowercase())
}

impl Subcommand for Args {
    fn run(&self, context: &mut Context) -> Outcome {
        let settings = Settings {
            targets: self.targets.clone(),
            users: self.users.clone(),
            listen: self.listen,
            token_file: self.token_file.clone(),
            public_metrics: self.public_metrics,
            push_proxy: self.push_proxy,
            events: self.events.clone(),
            waits: !self.no_waits,
            objectives: self.objectives.clone().unwrap_or_default(),
            buckets: self.buckets.clone(),
            names: self.allow_host.clone(),
        };
        serve::run(settings, super::verbs(), context)
    }
}
