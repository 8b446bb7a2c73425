//! The server of `dormouse serve`: what agents say, over HTTP.
//!
//! | part | does |
//! |---|---|
//! | [`connections`] | accepts, and bounds what a connection may take |
//! | [`guard`], [`token`] | who may ask |
//! | [`routes`] | which address is what |
//! | [`hub`] | the services, one conversation each, and the last snapshot of each |
//! | [`metrics`] | a scrape of all of them |
//! | [`push`] | the same for a collector that does not scrape |
//! | [`live`] | one of them, once a second |
//! | [`served`] | verbs: the functions that the command line calls, too |
//! | [`body`] | the body of a request that changes something |
//! | [`pprof`] | profiles |
//! | [`page`] | all of it, for people |
//!
//! # Threads
//!
//! Two serve connections and never wait for a service. Each service has one that does, each verb
//! that runs has one, and the list of services is read on another. Pushes have one.

#![allow(clippy::result_large_err, reason = "an answer that says why there is none is still an answer")]

mod answers;
mod body;
mod connections;
mod flow;
mod guard;
mod hub;
mod live;
mod metrics;
mod packed;
mod page;
mod pprof;
mod push;
mod routes;
mod served;
mod token;
mod windows;

use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dormouse_metrics::ClassicBounds;
use dormouse_profile::{Profile, Symbols};
use dormouse_protocol::ProfileRequest;
use rustix::process::{Resource, getrlimit, setrlimit};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::client::session::Subject;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Context, FAIR, say};
use crate::sample::events::EventRequest;
use crate::sample::objectives::ObjectiveList;
use crate::signals::is_hangup_ignored;
use crate::target::Target;
use crate::verb::Offer;
use guard::Guard;
use hub::{Hub, Terms};
use live::LiveStreams;
use page::PageFile;
use routes::{App, ServerInfo};
use served::RunSlots;
use token::Token;

/// How long answers may take to end once the server ends.
const ENDING: Duration = Duration::from_secs(1);

/// The command line.
#[derive(Debug)]
pub(crate) struct Settings {
    /// These services; none: all.
    pub(crate) targets: Vec<Target>,
    /// The services of these users; none: of all.
    pub(crate) users: Vec<u32>,
    pub(crate) listen: SocketAddr,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) public_metrics: bool,
    /// Whether pushes go through the proxy that the environment names.
    pub(crate) push_proxy: bool,
    /// The events that groups count.
    pub(crate) events: EventRequest,
    /// Whether times of tasks are taken.
    pub(crate) waits: bool,
    /// The objectives by which requests are counted.
    pub(crate) objectives: ObjectiveList,
    /// Where classic buckets end, if they are chosen.
    pub(crate) buckets: Option<ClassicBounds>,
    /// Names that this machine is called by, in small letters.
    pub(crate) names: Vec<String>,
}

/// Takes a profile of a process for that time, and writes it in a form.
pub(crate) type TakeProfile =
    fn(&Subject, (&ProfileRequest, Duration), fn(&Profile, &Symbols) -> Vec<u8>, &mut Context) -> Outcome;

/// Watches a process for that time, or for as long as it takes, and writes the tasks that leak as a
/// file for pprof.
pub(crate) type TakeLeaks = fn(&Subject, Option<Duration>, &mut Context) -> Outcome;

/// The verbs, which lie above this.
#[derive(Debug)]
pub(crate) struct Verbs {
    pub(crate) offers: Vec<Offer>,
    pub(crate) profile: TakeProfile,
    pub(crate) leaks: TakeLeaks,
}

/// The document that `--json` begins with.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "kebab-case")]
pub(crate) enum Event<'a> {
    Start { pid: u32, url: &'a str, token_file: String },
}

/// Serves until a signal.
pub(crate) fn run(settings: Settings, verbs: Verbs, context: &mut Context) -> Outcome {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("serve")
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start threads: {error}")))?;
    let result = serve(&runtime, settings, verbs, context);
    // Work that still runs ends with the process, and so do its leases.
    runtime.shutdown_background();
    result
}

fn serve(runtime: &Runtime, settings: Settings, verbs: Verbs, context: &mut Context) -> Outcome {
    raise_descriptors();
    // Before anybody is told of it, and before there is a file of a token.
    let mut signals = caught(runtime)?;
    let cannot = |error: io::Error| cannot_listen(settings.listen, &error);
    let listener = runtime.block_on(TcpListener::bind(settings.listen)).map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let token = match &settings.token_file {
        Some(path) => Token::of_file(path)?,
        None => Token::of_listener(address)?,
    };
    announce(address, &token, context)?;
    let Settings {
        targets,
        users,
        public_metrics,
        push_proxy,
        events,
        waits,
        objectives,
        buckets,
        names,
        ..
    } = settings;
    let (end, ended) = watch::channel(false);
    let app = Arc::new(App {
        guard: Guard { token, names, public_metrics },
        page_file: PageFile::new(),
        hub: Hub::new(targets, users, Terms::new(events, waits, objectives)),
        run_slots: RunSlots::new(ended.clone()),
        live_streams: LiveStreams::new(ended.clone()),
        buckets,
        server_info: ServerInfo::new(),
        verbs,
    });
    let pusher = push::start(&app.hub, runtime.handle(), push_proxy);
    runtime.block_on(async {
        tokio::spawn(app.hub.clone().keep());
        let told = app.hub.clone();
        tokio::spawn(async move {
            for target in told.missing().await {
                say(format_args!("{FAIR}warning:{FAIR:#} no service is {target} now"));
            }
        });
        let tidied = Arc::clone(&app);
        tokio::spawn(async move { tidied.live_streams.tidy().await });
        let accepting = tokio::spawn(connections::accept(listener, routes::all(&app), ended));
        signalled(&mut signals).await;
        let _ = end.send(true);
        // Streams say that they end. An answer that lasts longer breaks off.
        let _ = tokio::time::timeout(ENDING, accepting).await;
    });
    app.guard.token.remove();
    if let Some(pusher) = pusher {
        pusher.close();
    }
    Ok(Exit::Ok)
}

/// Catches the signals that ask to end.
fn caught(runtime: &Runtime) -> Outcome<Vec<Signal>> {
    let _in = runtime.enter();
    let cannot = |error: io::Error| Failure::failed(format!("cannot catch signals: {error}"));
    let mut signals = Vec::new();
    // Of `nohup`, the end of the terminal is not the end.
    let hangup = (!is_hangup_ignored()).then(SignalKind::hangup);
    for kind in [SignalKind::interrupt(), SignalKind::terminate()].into_iter().chain(hangup) {
        signals.push(signal(kind).map_err(cannot)?);
    }
    Ok(signals)
}

/// Waits for one of them.
async fn signalled(signals: &mut [Signal]) {
    std::future::poll_fn(|cx| {
        let came = signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
        if came { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// Each service, connection and verb takes descriptors: as many as this process may have.
fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With less, less is served.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Says where the server is, and where the token; the token itself to a terminal alone.
fn announce(address: SocketAddr, token: &Token, context: &mut Context) -> Outcome<()> {
    let host = if address.ip().is_unspecified() { "localhost".into() } else { url_host(address) };
    let url = format!("http://{host}:{}/", address.port());
    let (pid, path) = (std::process::id(), token.path().display().to_string());
    if context.json {
        context.document(&Event::Start { pid, url: &url, token_file: path })?;
        context.flush()?;
    } else if io::stderr().is_terminal() {
        say(format_args!("{url}#token={}", token.secret()));
        say(format_args!("the token is in {path}; Ctrl-C ends it"));
    } else {
        say(format_args!("listening on {url}, token in {path}"));
    }
    if !address.ip().is_loopback() {
        let others = "others can reach this, and the token comes over the network as it is";
        say(format_args!("{FAIR}warning:{FAIR:#} {others}: put a proxy with TLS before it"));
    }
    Ok(())
}

fn url_host(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> Failure {
    let failure = Failure::failed(format!("cannot listen on {address}: {error}"));
    match error.kind() {
        io::ErrorKind::AddrInUse => failure.hint("--listen names another address, as in 127.0.0.1:0"),
        io::ErrorKind::PermissionDenied => {
            failure.hint("--listen names another address: ports below 1024 are root's")
        }
        _ => failure.hint("--listen names an address of this machine"),
    }
}
