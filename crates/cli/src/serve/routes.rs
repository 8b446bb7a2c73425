//! Which address is what.

use std::sync::Arc;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Path, Query, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use hyper_util::service::TowerToHyperService;

use super::Verbs;
use super::answers::{self, bytes, document, failed, nothing, text, wrong_method};
use super::connections::Answer;
use super::guard::{Guard, HEALTHY};
use super::hub::{Hub, Seat, Standing};
use super::live::Gallery;
use super::metrics;
use super::page::Front;
use super::pprof::{self, Asked};
use super::served::{Shape, Stage};
use super::switch::{self, Me};
use super::verb::{self, Call, Verb};
use crate::exit::Outcome;
use crate::render::processes::{Listing, Refused, Row};

/// The server's parts.
#[derive(Debug)]
pub(super) struct App {
    pub(super) guard: Guard,
    pub(super) front: Front,
    pub(super) hub: Hub,
    pub(super) stage: Stage,
    pub(super) gallery: Gallery,
    pub(super) me: Me,
    pub(super) verbs: Verbs,
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
        .route("/api/processes/{pid}/keys", get(keys).post(switch_keys))
        .route("/api/processes/{pid}/trace", post(trace))
        .route("/api/processes/{pid}/watch", post(watch))
        .route("/api/processes/{pid}/{verb}", get(read))
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
        let mut response = if let Some(refusal) = self.app.guard.refuse(&request) {
            refusal
        } else {
            let router = TowerToHyperService::new(self.router.clone());
            router.call(request).await.unwrap_or_else(|never| match never {})
        };
        if response.status() == StatusCode::METHOD_NOT_ALLOWED {
            response = misdirected(response, is_options);
        }
        answers::seal(&mut response);
        response
    }
}

/// An answer to a method that an address does not have: the methods that it has.
fn misdirected(of: Response, is_options: bool) -> Response {
    let Some(allowed) = of.headers().get("allow").cloned() else { return of };
    let mut response = wrong_method("what Allow says");
    if is_options {
        response = Response::new(axum::body::Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    response.headers_mut().insert("allow", allowed);
    response
}

async fn page(State(app): Shared, request: Request) -> Response {
    app.front.answer(request.headers())
}

async fn scrape(State(app): Shared, request: Request) -> Response {
    match app.hub.looks().await {
        Ok(sights) => {
            let headers = request.headers().clone();
            let answered = tokio::task::spawn_blocking(move || metrics::answer(&sights, &headers)).await;
            answered.unwrap_or_else(|_| answers::refusal(StatusCode::BAD_GATEWAY, "failed", "it broke off"))
        }
        Err(failure) => failed(&failure),
    }
}

async fn me(State(app): Shared) -> Response {
    document(&app.me)
}

async fn processes(State(app): Shared) -> Response {
    let seats = match app.hub.services().await {
        Ok(seats) => seats,
        Err(failure) => return failed(&failure),
    };
    let standings: Vec<_> = seats.iter().map(|seat| (seat, seat.standing())).collect();
    let processes = standings.iter().map(|(seat, standing)| row(seat, standing)).collect();
    document(&Listing { processes })
}

fn row<'a>(seat: &'a Seat, standing: &'a Standing) -> Row<'a> {
    let (agent, refused) = match standing {
        Standing::Answers(hello) => (Some(&**hello), None),
        Standing::Refused(report) => (None, Some(Refused::of(report))),
        Standing::Coming | Standing::Ended => {
            (None, Some(Refused { kind: "failed", message: "it has given no answer yet" }))
        }
    };
    let process = seat.process();
    let name = agent.map_or(process.name(), |hello| &hello.name);
    Row { pid: process.pid, name, uid: process.uid, agent, refused }
}

async fn live(State(app): Shared, Path(name): Path<String>) -> Response {
    match app.hub.find(&name).await {
        Ok(seat) => app.gallery.stream(app.hub.clone(), seat),
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
    let mut taking = match pprof::asked(kind, words) {
        Ok(Asked::Symbol) => return pprof::no_symbols(),
        Ok(Asked::Profile(taking)) => taking,
        Err(refusal) => return refusal,
    };
    let found = match name.or_else(|| taking.service.take()) {
        Some(name) => app.hub.find(&name).await,
        None => app.hub.only().await,
    };
    match found {
        Ok(seat) => taking.answer(&app.stage, app.verbs.profile, &seat, Shape::Bytes).await,
        Err(failure) => failed(&failure),
    }
}

async fn flame(State(app): Shared, Path(name): Path<String>, Query(words): Words) -> Response {
    let taking = match pprof::for_page(&words) {
        Ok(taking) => taking,
        Err(refusal) => return refusal,
    };
    match app.hub.find(&name).await {
        Ok(seat) => taking.answer(&app.stage, app.verbs.profile, &seat, Shape::Document).await,
        Err(failure) => failed(&failure),
    }
}

async fn keys(State(app): Shared, Path(name): Path<String>, Query(words): Words) -> Response {
    app.reading("keys", &name, &words).await
}

async fn read(
    State(app): Shared,
    Path((name, verb)): Path<(String, String)>,
    Query(words): Words,
) -> Response {
    app.reading(&verb, &name, &words).await
}

async fn trace(State(app): Shared, Path(name): Path<String>, request: Request) -> Response {
    app.changing(&verb::TRACE, &name, request).await
}

async fn watch(State(app): Shared, Path(name): Path<String>, request: Request) -> Response {
    app.changing(&verb::WATCH, &name, request).await
}

async fn switch_keys(State(app): Shared, Path(name): Path<String>, request: Request) -> Response {
    let body = match switch::object(request).await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let call = match app.hub.find(&name).await {
        Ok(seat) => switch::keys(&seat.target(), body),
        Err(failure) => return failed(&failure),
    };
    let response = match call {
        Ok(call) => app.call(call).await,
        Err(refusal) => return refusal,
    };
    if !response.status().is_success() {
        return response;
    }
    let kind = response.headers().get(CONTENT_TYPE).cloned().unwrap_or(answers::JSON);
    let signed = to_bytes(response.into_body(), usize::MAX).await.ok().and_then(|body| app.me.sign(&body));
    match signed {
        Some(signed) => bytes(kind, signed),
        None => answers::refusal(StatusCode::BAD_GATEWAY, "failed", "the answer broke off"),
    }
}

impl App {
    async fn reading(&self, verb: &str, name: &str, words: &[(String, String)]) -> Response {
        let Some(verb) = verb::reading(verb) else { return nothing() };
        let called = self.hub.find(name).await.map(|seat| verb.call(&seat.target(), words));
        match called {
            Ok(Ok(call)) => self.call(call).await,
            Ok(Err(why)) => answers::bad(&why),
            Err(failure) => failed(&failure),
        }
    }

    async fn changing(&self, verb: &Verb, name: &str, request: Request) -> Response {
        let body = match switch::object(request).await {
            Ok(body) => body,
            Err(refusal) => return refusal,
        };
        match self.hub.find(name).await.map(|seat| switch::call(verb, &seat.target(), body)) {
            Ok(Ok(call)) => self.call(call).await,
            Ok(Err(refusal)) => refusal,
            Err(failure) => failed(&failure),
        }
    }

    async fn call(&self, call: Call) -> Response {
        let (Call { line, shape, longest }, run) = (call, self.verbs.run);
        self.stage.answer(shape, longest, move |context| -> Outcome { run(&line, context) }).await
    }
}
