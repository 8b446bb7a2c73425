//! A web service on axum: routes, a WebSocket, server-sent events, a proxy with a pooled client,
//! static files, a fallback and a background task.
//!
//! Its arguments are the number of workers, the address of its upstream and the folder of its
//! files.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ws::{Message, WebSocket};
use axum::extract::{MatchedPath, Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse as _, Response};
use axum::{Router, routing::get, routing::post};
use dormouse::Group;
use dormouse::axum::WebSocketUpgrade;
use dormouse::hyper::Executor;
use dormouse::tower::GroupLayer;
use futures_util::stream::{Stream, unfold};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tower_http::services::ServeDir;

use crate::known;

#[derive(Clone)]
struct App {
    client: Client<HttpConnector, Body>,
    upstream: SocketAddr,
    imports: UnboundedSender<()>,
}

pub(crate) fn run() -> io::Result<()> {
    let mut arguments = std::env::args().skip(3);
    let mut next = || arguments.next().ok_or(io::ErrorKind::InvalidInput);
    let upstream = next()?.parse().map_err(io::Error::other)?;
    let files = next()?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    // The files are read on threads of tokio's own.
    let runtime =
        dormouse::tokio::group_blocking(runtime.worker_threads(known::workers()).enable_all()).build()?;
    runtime.block_on(serve(upstream, &files))
}

async fn serve(upstream: SocketAddr, files: &str) -> io::Result<()> {
    let (imports, orders) = unbounded_channel();
    tokio::spawn(Group::new("import").instrument(import(orders)));
    let client = Client::builder(Executor::group(Group::new("upstream"))).build_http();
    let routes = GroupLayer::new(|request: &Request| {
        let path = request.extensions().get().map(MatchedPath::as_str);
        let path = path.unwrap_or_else(|| match request.uri().path() {
            path if path.starts_with("/files/") => "/files",
            _ => "unmatched",
        });
        path.to_owned().into()
    });
    let app = Router::new()
        .route("/compute", get(compute))
        .route("/socket", get(socket))
        .route("/events/{count}", get(events))
        .route("/small", get(forward))
        .route("/large", get(forward))
        .route("/report", get(report))
        .route("/import", post(order_import))
        .route("/never", get(async || std::future::pending::<()>().await))
        .route("/fail", get(async || -> StatusCode { panic!("a handler fails") }))
        .route("/block", get(async || known::hold("/block")))
        .route("/fast", get(async || "fast\n"))
        .nest_service("/files", ServeDir::new(files))
        .layer(routes)
        .with_state(App { client, upstream, imports });
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    known::serve(listener.local_addr()?);
    axum::serve(dormouse::axum::listener(listener, Group::new("connections")), app).await
}

async fn compute() -> &'static str {
    known::burn("/compute", Duration::from_millis(20));
    "computed"
}

async fn socket(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(talk)
}

async fn talk(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if let Message::Text(text) = message {
            known::burn("/socket", Duration::from_millis(20));
            if socket.send(Message::Text(text)).await.is_err() {
                return;
            }
        }
    }
}

/// Each event is computed when the body is polled, long after the handler.
async fn events(Path(count): Path<u32>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    Sse::new(unfold(0..count, async |mut numbers| {
        let number = numbers.next()?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        known::burn("/events/{count}", Duration::from_millis(20));
        Some((Ok(Event::default().data(number.to_string())), numbers))
    }))
}

async fn forward(State(app): State<App>, mut request: Request) -> Result<Response, StatusCode> {
    let path = request.uri().path().to_owned();
    known::burn(&path, Duration::from_millis(150));
    let uri = Uri::try_from(format!("http://{}{path}", app.upstream));
    *request.uri_mut() = uri.map_err(|_| StatusCode::BAD_REQUEST)?;
    let answer = app.client.request(request).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
    Ok(answer.into_response())
}

/// The work goes on after the answer.
async fn report() -> StatusCode {
    dormouse::tokio::spawn(async {
        known::burn("/report", Duration::from_millis(20));
    });
    StatusCode::ACCEPTED
}

async fn order_import(State(app): State<App>) -> StatusCode {
    known::burn("/import", Duration::from_millis(20));
    app.imports.send(()).map_or(StatusCode::SERVICE_UNAVAILABLE, |()| StatusCode::ACCEPTED)
}

async fn import(mut orders: UnboundedReceiver<()>) {
    while orders.recv().await.is_some() {
        known::burn("import", Duration::from_millis(20));
        known::note("done", "import", 1);
    }
}
