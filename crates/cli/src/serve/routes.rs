//! Which address is what.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::Response;
use axum::routing::get;
use dormouse_metrics::ClassicBounds;
use hyper_util::service::TowerToHyperService;
use serde::Serialize;

use super::Verbs;
use super::answers::{self, document, failed, nothing, text, wrong_method};
use super::body;
use super::connections::Answer;
use super::guard::{self, Guard, HEALTHY};
use super::hub::{Hub, ServiceSession, SessionPhase};
use super::live::LiveStreams;
use super::metrics;
use super::page::PageFile;
use super::pprof::{self, Asked};
use super::served::{RunSlots, Shape};
use crate::render::processes::{Listing, ProcessRow, Refused};
use crate::target::Process;
use crate::user::User;
use crate::verb::Offer;

/// The server's parts.
#[derive(Debug)]
pub(super) struct App {
    pub(super) guard: Guard,
    pub(super) page_file: PageFile,
    pub(super) hub: Hub,
    pub(super) run_slots: RunSlots,
    pub(super) live_streams: LiveStreams,
    pub(super) server_info: ServerInfo,
    pub(super) verbs: Verbs,
    /// Where classic buckets end, if they are chosen.
    pub(super) buckets: Option<ClassicBounds>,
}

/// The server, as its user calls it.
#[derive(Debug, Serialize)]
pub(super) struct ServerInfo {
    #[serde(flatten)]
    user: User,
    host: String,
    version: &'static str,
}

impl ServerInfo {
    pub(super) fn new() -> ServerInfo {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        ServerInfo { user: User::own(), host, version: env!("CARGO_PKG_VERSION") }
    }
}

type Shared = State<Arc<App>>;

/// The words of a query. One that cannot be read has none, and a verb says so.
type Words = Query<Vec<(String, String)>>;

/// All addresses, behind the guard.
#[derive(Debug, Clone)]
pub(super) struct Routes {
    app: Arc<App>,
    router: Router,
}

/// All addresses.
pub(super) fn all(app: &Arc<App>) -> Routes {
    let router = Router::new()
        .route("/", get(page))
        .route(HEALTHY, get(async || text("ok\n")))
        .route("/metrics", get(scrape))
        .route("/debug/pprof/{kind}", get(profile).post(profile))
        .route("/processes/{pid}/debug/pprof/{kind}", get(profile_of).post(profile_of))
        .route("/api/me", get(me))
        .route("/api/processes", get(processes))
        .route("/api/processes/{pid}/live", get(live))
        .route("/api/processes/{pid}/profile.json", get(flame))
        .route("/api/processes/{pid}/{verb}", get(read).post(change))
        .fallback(async || nothing())
        .with_state(Arc::clone(app));
    Routes { app: Arc::clone(app), router }
}

impl Answer for Routes {
    fn knows(&self, request: &Request) -> bool {
        self.app.guard.knows(request.headers())
    }

    async fn answer(&self, request: Request) -> Response {
        use hyper::service::Service as _;
        let is_options = request.method() == Method::OPTIONS;
        let has_head = !guard::is_costly(request.uri().path());
        let mut response = if let Some(refusal) = self.app.guard.refuse(&request) {
            refusal
        } else {
            let router = TowerToHyperService::new(self.router.clone());
            router.call(request).await.unwrap_or_else(|never| match never {})
        };
        if response.status() == StatusCode::METHOD_NOT_ALLOWED {
            response = misdirected(response, is_options, has_head);
        }
        response = answers::rejected(response).await;
        answers::seal(&mut response);
        response
    }
}

/// An answer to a method that an address does not have: the methods that it has.
fn misdirected(of: Response, is_options: bool, has_head: bool) -> Response {
    let Some(mut allowed) = of.headers().get("allow").cloned() else { return of };
    if !has_head {
        let methods = allowed.to_str().unwrap_or_default().split(',').filter(|method| *method != "HEAD");
        allowed = HeaderValue::try_from(methods.collect::<Vec<_>>().join(",")).unwrap_or(allowed);
    }
    let mut response = wrong_method("what Allow says");
    if is_options {
        response = Response::new(axum::body::Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    response.headers_mut().insert("allow", allowed);
    response
}

async fn page(State(app): Shared, request: Request) -> Response {
    app.page_file.answer(request.headers())
}

async fn scrape(State(app): Shared, request: Request) -> Response {
    let format = metrics::format(request.headers());
    match app.hub.snapshots(metrics::part(format)).await {
        Ok(services) => {
            let (headers, left_out) = (request.headers().clone(), app.hub.left_out());
            let buckets = app.buckets.clone();
            let answer = move || metrics::answer(&services, left_out, format, buckets, &headers);
            let answered = tokio::task::spawn_blocking(answer).await;
            answered.unwrap_or_else(|_| answers::refusal(StatusCode::BAD_GATEWAY, "failed", "it broke off"))
        }
        Err(failure) => failed(&failure),
    }
}

async fn me(State(app): Shared) -> Response {
    document(&app.server_info)
}

async fn processes(State(app): Shared) -> Response {
    let sessions = match app.hub.services().await {
        Ok(sessions) => sessions,
        Err(failure) => return failed(&failure),
    };
    let standings: Vec<_> = sessions.iter().map(|session| (session, session.phase())).collect();
    let processes = standings.iter().map(|(session, phase)| row(session, phase)).collect();
    document(&Listing { processes })
}

fn row<'a>(session: &'a ServiceSession, phase: &'a SessionPhase) -> ProcessRow<'a> {
    let (agent, refused) = match phase {
        SessionPhase::Answers(hello) => (Some(&**hello), None),
        SessionPhase::Refused(report) => (None, Some(Refused::of(report))),
        SessionPhase::Coming | SessionPhase::Ended => {
            (None, Some(Refused { kind: "failed", message: "it has given no answer yet" }))
        }
    };
    let process = session.process();
    let name = agent.map_or(process.name(), |hello| &hello.name);
    let Process { pid, start_ticks, uid, .. } = *process;
    ProcessRow { pid, start_ticks, name, uid, agent, refused }
}

async fn live(State(app): Shared, Path(name): Path<String>) -> Response {
    match app.hub.find(&name).await {
        Ok(session) => app.live_streams.stream(app.hub.clone(), session),
        Err(failure) => failed(&failure),
    }
}

async fn profile(State(app): Shared, Path(kind): Path<String>, Query(words): Words) -> Response {
    take(&app, None, &kind, &words).await
}

async fn profile_of(
    State(app): Shared,
    Path((name, kind)): Path<(String, String)>,
    Query(words): Words,
) -> Response {
    take(&app, Some(name), &kind, &words).await
}

async fn take(app: &App, name: Option<String>, kind: &str, words: &[(String, String)]) -> Response {
    let mut asked = match pprof::asked(kind, words) {
        Ok(asked) => asked,
        Err(refusal) => return refusal,
    };
    let service = match &mut asked {
        Asked::Symbol => return pprof::no_symbols(),
        Asked::Profile(taking) => taking.service.take(),
        Asked::Leaks(query) => query.service.take(),
    };
    let found = match name.or(service) {
        Some(name) => app.hub.find(&name).await,
        None => app.hub.only().await,
    };
    match (found, asked) {
        (Ok(session), Asked::Profile(taking)) => {
            taking.answer(&app.run_slots, app.verbs.profile, &session, Shape::Bytes).await
        }
        (Ok(session), Asked::Leaks(query)) => query.answer(&app.run_slots, app.verbs.leaks, &session).await,
        (Ok(_), Asked::Symbol) => pprof::no_symbols(),
        (Err(failure), _) => failed(&failure),
    }
}

async fn flame(State(app): Shared, Path(name): Path<String>, Query(words): Words) -> Response {
    let taking = match pprof::for_page(&words) {
        Ok(taking) => taking,
        Err(refusal) => return refusal,
    };
    match app.hub.find(&name).await {
        Ok(session) => taking.answer(&app.run_slots, app.verbs.profile, &session, Shape::Document).await,
        Err(failure) => failed(&failure),
    }
}

async fn read(
    State(app): Shared,
    Path((name, verb)): Path<(String, String)>,
    Query(words): Words,
) -> Response {
    match app.offer(&verb, false) {
        Ok(offer) => app.call(offer, &name, &words).await,
        Err(refusal) => refusal,
    }
}

async fn change(
    State(app): Shared,
    Path((name, verb)): Path<(String, String)>,
    request: Request,
) -> Response {
    let offer = match app.offer(&verb, true) {
        Ok(offer) => offer,
        Err(refusal) => return refusal,
    };
    match body::words(request).await {
        Ok(words) => app.call(offer, &name, &words).await,
        Err(refusal) => refusal,
    }
}

impl App {
    /// The verb of that name, by POST if it changes something.
    fn offer(&self, name: &str, changes: bool) -> Result<Offer, Response> {
        let mut named = self.verbs.offers.iter().filter(|offer| offer.name == name).peekable();
        let is_known = named.peek().is_some();
        match named.find(|offer| offer.changes == changes) {
            Some(offer) => Ok(*offer),
            None if is_known => Err(wrong_method(if changes { "GET" } else { "POST" })),
            None => Err(nothing()),
        }
    }

    async fn call(&self, offer: Offer, name: &str, words: &[(String, String)]) -> Response {
        let found = self.hub.find(name).await;
        let called = found.and_then(|session| Ok(((offer.read)(words)?, session.subject())));
        match called {
            Ok((call, subject)) => self.run_slots.call(call, subject).await,
            Err(failure) => failed(&failure),
        }
    }
}
