//! The code that dropped cancelled requests is right in 99 of 100 on tonic's own server, over
//! HTTP/2, and on actix.
#![cfg(all(
    feature = "actix",
    feature = "axum",
    feature = "hyper",
    feature = "symbols",
    feature = "tonic",
    feature = "tower"
))]

use std::convert::Infallible;
use std::future::pending;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::thread;

use actix_web::dev::{Service as _, ServiceRequest};
use actix_web::{App, HttpResponse, HttpServer, web};
use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use dormouse::Group;
use dormouse::actix::GroupMiddleware;
use dormouse::tower::GroupLayer;
use dormouse_profile::drops::DropCause;
use dormouse_testkit::{HANG, eventually, in_child};
use futures_util::stream;
use http_body::Body as _;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tower::service_fn;

use crate::cancelled::{SOON, Seen, ask, each, on, reset, runtime};

/// A body without an end.
fn endless() -> impl stream::Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold((), |()| async {
        yield_now().await;
        Some((Ok(Bytes::from_static(&[7; 4096])), ()))
    })
}

async fn serve(request: Request<tonic::body::Body>) -> Result<Response<tonic::body::Body>, Infallible> {
    if !request.uri().path().ends_with("Endless") {
        pending::<()>().await;
    }
    Ok(Response::new(tonic::body::Body::new(Body::from_stream(endless()))))
}

/// Calls a method, and takes the head of the answer and its first frame, if there is one.
async fn call(address: SocketAddr, path: &str) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut send, connection) =
        http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let serving = tokio::spawn(connection);
    for _ in 0..each() {
        let request = Request::post(format!("http://{address}{path}")).body(Body::empty()).unwrap();
        let mut body = Box::pin(send.send_request(request).await.unwrap().into_body());
        _ = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await;
    }
    serving.abort();
}

#[test]
fn tonics_server_knows_who_dropped_its_calls() {
    in_child(|| {
        let Some(_on) = on() else { return };
        let runtime = runtime();
        let begin = |server: Server| {
            let groups = GroupLayer::new(|request: &Request<tonic::body::Body>| {
                request.uri().path().to_owned().into()
            });
            let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
            let address = listener.local_addr().unwrap();
            let server = server.layer(groups);
            runtime.spawn(server.serve_with_incoming(service_fn(serve), TcpIncoming::from(listener)));
            address
        };
        let (patient, impatient) = (begin(Server::builder()), begin(Server::builder().timeout(SOON)));
        runtime.block_on(reset(patient, "/tea.Kitchen/Gone", Group::new("/tea.Kitchen/Gone")));
        runtime.block_on(call(patient, "/tea.Kitchen/Endless"));
        runtime.block_on(call(impatient, "/tea.Kitchen/Late"));
        for (path, cause) in [
            ("/tea.Kitchen/Gone", DropCause::Connection),
            ("/tea.Kitchen/Endless", DropCause::Connection),
            ("/tea.Kitchen/Late", DropCause::Timeout),
        ] {
            let group = Group::new(path);
            eventually(|| group.read().alive == 0);
            assert_eq!(group.read().outcomes.cancelled, each(), "{path}");
            Seen::now().assert_dropped(path, cause, false);
        }
    });
}

/// Serves by actix, on a thread that ends with the process.
fn actix() -> SocketAddr {
    let (tell, told) = channel();
    thread::spawn(move || {
        actix_web::rt::System::new().block_on(async {
            let app = || {
                let groups = GroupMiddleware::new(|request: &ServiceRequest| {
                    format!("actix {}", request.path()).into()
                });
                let stuck = || {
                    web::get().to(async || {
                        sleep(HANG).await;
                        "late"
                    })
                };
                App::new()
                    .wrap(groups)
                    .wrap_fn(|request, service| {
                        let patience = if request.path() == "/late" { SOON } else { HANG };
                        let answer = service.call(request);
                        async move {
                            let late = |_| actix_web::error::ErrorGatewayTimeout("late");
                            timeout(patience, answer).await.map_err(late)?
                        }
                    })
                    .route("/gone", stuck())
                    .route("/late", stuck())
                    .route("/endless", web::get().to(async || HttpResponse::Ok().streaming(endless())))
            };
            let server = HttpServer::new(app).workers(2).h1_allow_half_closed(false).disable_signals();
            let server = server.bind(("127.0.0.1", 0)).unwrap();
            tell.send(server.addrs()[0]).unwrap();
            server.run().await
        })
    });
    told.recv().unwrap()
}

#[test]
fn actix_knows_who_dropped_its_requests() {
    in_child(|| {
        let Some(_on) = on() else { return };
        let address = actix();
        for (path, cause) in [
            ("/gone", DropCause::Connection),
            ("/endless", DropCause::Connection),
            ("/late", DropCause::Timeout),
        ] {
            let name = format!("actix {path}");
            let group = Group::new(&name);
            for n in 1..=each() {
                let mut stream = ask(address, path);
                eventually(|| group.read().started >= n);
                if path != "/gone" {
                    assert_ne!(stream.read(&mut [0; 512]).unwrap(), 0, "{path}");
                }
            }
            eventually(|| group.read().alive == 0);
            assert_eq!(group.read().outcomes.cancelled, each(), "{path}");
            Seen::now().assert_dropped(&name, cause, false);
        }
    });
}
