//! The place where cancelled requests waited, and the code that dropped them, are right in 99 of
//! 100 on tonic's own server, over HTTP/2, and on actix.
#![cfg(all(
    feature = "actix",
    feature = "axum",
    feature = "hyper",
    feature = "symbols",
    feature = "tonic",
    feature = "tower"
))]

use std::convert::Infallible;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::task::{Context, Poll};
use std::thread;

use actix_web::dev::{ServerHandle, Service as _, ServiceRequest};
use actix_web::{App, HttpResponse, HttpServer, web};
use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use dormouse::Group;
use dormouse::actix::GroupMiddleware;
use dormouse::tower::GroupLayer;
use dormouse_profile::drops::DropCause;
use dormouse_testkit::{eventually, in_child};
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream;
use http_body::Body as _;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::timeout;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tower::layer::layer_fn;
use tower::{Service, service_fn};

use crate::cancelled::{
    SOON, STUCK, Seen, ask, awaiting, each, last_ones, on, reset, runtime, stuck, until_idle,
};

/// A body without an end.
fn endless() -> impl stream::Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold((), |()| async {
        yield_now().await;
        Some((Ok(Bytes::from_static(&[7; 4096])), ()))
    })
}

async fn serve(request: Request<tonic::body::Body>) -> Result<Response<tonic::body::Body>, Infallible> {
    if !request.uri().path().ends_with("Endless") {
        stuck().await;
    }
    Ok(Response::new(tonic::body::Body::new(Body::from_stream(endless()))))
}

/// A layer of a service's own around the groups, which gives up calls of some methods.
#[derive(Clone)]
struct GivesUp<S>(S);

impl<S, B> Service<Request<tonic::body::Body>> for GivesUp<S>
where
    S: Service<
            Request<tonic::body::Body>,
            Response = Response<B>,
            Error = Infallible,
            Future: Send + 'static,
        >,
    B: axum::body::HttpBody<Data = Bytes, Error: Into<axum::BoxError>> + Send + 'static,
{
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let path = request.uri().path().to_owned();
        let call = self.0.call(request);
        let begins = STUCK.notified();
        Box::pin(async move {
            match path.as_str() {
                "/tea.Kitchen/Lost" => tokio::select! {
                    biased;
                    answer = call => return Ok(answer?.map(tonic::body::Body::new)),
                    () = begins => {}
                },
                "/tea.Kitchen/Aborted" => {
                    let task = tokio::spawn(call);
                    begins.await;
                    task.abort();
                    assert!(task.await.is_err_and(|error| error.is_cancelled()));
                }
                _ => return Ok(call.await?.map(tonic::body::Body::new)),
            }
            Ok(Response::new(tonic::body::Body::empty()))
        })
    }
}

/// A connection, and its task.
async fn connect(address: SocketAddr) -> (http2::SendRequest<Body>, JoinHandle<hyper::Result<()>>) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (send, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    (send, tokio::spawn(connection))
}

fn request(address: SocketAddr, path: &str) -> Request<Body> {
    Request::post(format!("http://{address}{path}")).body(Body::empty()).unwrap()
}

/// Calls a method, and takes the head of the answer and its first frame, if there is one.
async fn call(address: SocketAddr, path: &str) {
    let (mut send, serving) = connect(address).await;
    for _ in 0..each() {
        let mut body = Box::pin(send.send_request(request(address, path)).await.unwrap().into_body());
        _ = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await;
    }
    serving.abort();
}

#[test]
fn tonics_server_knows_who_dropped_its_calls() {
    in_child(|| {
        let Some(_on) = on() else { return };
        let (clients, service) = (runtime(), runtime());
        let begin = |server: Server| {
            let groups = GroupLayer::new(|request: &Request<tonic::body::Body>| {
                request.uri().path().to_owned().into()
            });
            let listener = service.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
            let address = listener.local_addr().unwrap();
            let server = server.layer(layer_fn(GivesUp)).layer(groups);
            service.spawn(server.serve_with_incoming(service_fn(serve), TcpIncoming::from(listener)));
            address
        };
        let (patient, impatient) = (begin(Server::builder()), begin(Server::builder().timeout(SOON)));
        clients.block_on(reset(patient, "/tea.Kitchen/Gone", Group::new("/tea.Kitchen/Gone")));
        clients.block_on(call(patient, "/tea.Kitchen/Endless"));
        clients.block_on(call(impatient, "/tea.Kitchen/Late"));
        clients.block_on(call(patient, "/tea.Kitchen/Lost"));
        clients.block_on(call(patient, "/tea.Kitchen/Aborted"));
        let last = Group::new("/tea.Kitchen/Last");
        let (mut send, connection) = clients.block_on(connect(patient));
        let calls: Vec<_> =
            (0..last_ones()).map(|_| send.send_request(request(patient, last.name()))).collect();
        // The connection sends them.
        let calls = clients.spawn(join_all(calls));
        eventually(|| awaiting(last) == last_ones());
        until_idle(&service);
        drop(service);
        for (path, cause, is_stuck) in [
            ("/tea.Kitchen/Gone", DropCause::Connection, true),
            ("/tea.Kitchen/Endless", DropCause::Connection, false),
            ("/tea.Kitchen/Late", DropCause::Timeout, true),
            ("/tea.Kitchen/Lost", DropCause::Select, true),
            ("/tea.Kitchen/Aborted", DropCause::Abort, true),
            ("/tea.Kitchen/Last", DropCause::Shutdown, true),
        ] {
            let group = Group::new(path);
            eventually(|| group.read().alive == 0);
            let requests = if path == last.name() { last_ones() } else { each() };
            assert_eq!(group.read().outcomes.cancelled, requests, "{path}");
            let seen = Seen::now();
            seen.assert_dropped(path, cause, false);
            if is_stuck {
                seen.assert_waited(path, "Sleep");
            }
        }
        drop((calls, connection));
    });
}

/// Serves by actix, on a thread that ends with the server.
fn actix() -> (SocketAddr, ServerHandle, thread::JoinHandle<std::io::Result<()>>) {
    let (tell, told) = channel();
    let serving = thread::spawn(move || {
        actix_web::rt::System::new().block_on(async {
            let app = || {
                let groups = GroupMiddleware::new(|request: &ServiceRequest| {
                    format!("actix {}", request.path()).into()
                });
                let stuck = || {
                    web::get().to(async || {
                        stuck().await;
                        "late"
                    })
                };
                App::new()
                    .wrap(groups)
                    .wrap_fn(|request, service| {
                        let path = request.path().to_owned();
                        let answer = service.call(request);
                        let begins = STUCK.notified();
                        async move {
                            let late = || actix_web::error::ErrorGatewayTimeout("late");
                            match path.as_str() {
                                "/late" => timeout(SOON, answer).await.map_err(|_| late())?,
                                "/lost" => tokio::select! {
                                    biased;
                                    answer = answer => answer,
                                    () = begins => Err(late()),
                                },
                                "/aborted" => {
                                    let task = actix_web::rt::spawn(answer);
                                    begins.await;
                                    task.abort();
                                    task.await.map_err(|_| late())?
                                }
                                _ => answer.await,
                            }
                        }
                    })
                    .route("/gone", stuck())
                    .route("/late", stuck())
                    .route("/lost", stuck())
                    .route("/aborted", stuck())
                    .route("/last", stuck())
                    .route("/endless", web::get().to(async || HttpResponse::Ok().streaming(endless())))
            };
            let server = HttpServer::new(app).workers(2).h1_allow_half_closed(false).disable_signals();
            let server = server.bind(("127.0.0.1", 0)).unwrap();
            let address = server.addrs()[0];
            let server = server.run();
            tell.send((address, server.handle())).unwrap();
            server.await
        })
    });
    let (address, handle) = told.recv().unwrap();
    (address, handle, serving)
}

#[test]
fn actix_knows_who_dropped_its_requests() {
    in_child(|| {
        let Some(_on) = on() else { return };
        let (address, server, serving) = actix();
        let name = |path: &str| format!("actix {path}");
        for path in ["/gone", "/endless", "/late", "/lost", "/aborted"] {
            let group = Group::new(&name(path));
            for n in 1..=each() {
                let mut stream = ask(address, path);
                if path == "/gone" {
                    eventually(|| group.read().started >= n);
                } else {
                    assert_ne!(stream.read(&mut [0; 512]).unwrap(), 0, "{path}");
                }
            }
            eventually(|| group.read().alive == 0);
        }
        let last = Group::new(&name("/last"));
        let streams: Vec<_> = (0..last_ones()).map(|_| ask(address, "/last")).collect();
        eventually(|| awaiting(last) == last_ones());
        // Without grace.
        drop(server.stop(false));
        serving.join().unwrap().unwrap();
        eventually(|| last.read().alive == 0);
        drop(streams);
        let seen = Seen::now();
        for (path, cause, is_stuck) in [
            ("/gone", DropCause::Connection, true),
            ("/endless", DropCause::Connection, false),
            ("/late", DropCause::Timeout, true),
            ("/lost", DropCause::Select, true),
            ("/aborted", DropCause::Abort, true),
            ("/last", DropCause::Shutdown, true),
        ] {
            let requests = if path == "/last" { last_ones() } else { each() };
            assert_eq!(Group::new(&name(path)).read().outcomes.cancelled, requests, "{path}");
            seen.assert_dropped(&name(path), cause, false);
            if is_stuck {
                seen.assert_waited(&name(path), "Sleep");
            }
        }
    });
}
