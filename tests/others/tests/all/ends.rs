//! Requests with known ends, over sockets and in other people's frameworks.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use actix_web::body::{self, BodySize, MessageBody as _};
use actix_web::http::Version;
use actix_web::{App, HttpResponse, test, web};
use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::routing::{any, get};
use dormouse::tower::GroupLayer;
use dormouse::{Group, OutcomesRow};
use dormouse_testkit::{HANG, eventually, short_or_long};
use futures_util::future::{Either, select};
use futures_util::{StreamExt as _, stream};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tonic::client::Grpc as Client;
use tonic::server::Grpc;
use tonic::transport::Endpoint;
use tonic::{Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

type Codec = ProstCodec<u32, u32>;

fn each() -> usize {
    short_or_long(50, 500)
}

fn layer() -> GroupLayer<fn(&Request) -> std::borrow::Cow<'_, str>> {
    GroupLayer::new(|request| request.extensions().get().map_or("unmatched", MatchedPath::as_str).into())
}

/// Serves, by hyper alone, on a runtime that never ends.
fn serve(app: Router) -> SocketAddr {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = Box::leak(Box::new(runtime.expect("a runtime")));
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a socket");
    let address = listener.local_addr().expect("an address");
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(app.clone());
            tokio::spawn(async move {
                let builder = Builder::new(TokioExecutor::new());
                builder.serve_connection(TokioIo::new(stream), service).await
            });
        }
    });
    address
}

fn outcomes(name: &str, requests: usize) -> OutcomesRow {
    let group = Group::new(name);
    eventually(|| (group.read().requests, group.read().alive) == (requests as u64, 0));
    group.read().outcomes
}

fn request(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a service that accepts");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: tea\r\nConnection: close\r\n\r\n").expect("a socket");
    stream
}

#[test]
fn clients_that_go_are_cancelled_requests() {
    // Longer than what the sockets between them hold.
    let endless = || Body::from_stream(stream::repeat(Ok::<_, Infallible>(vec![7_u8; 64 << 10])));
    let app = Router::new()
        .route("/waits", get(async || std::future::pending::<()>().await))
        .route("/endless", get(async move || endless()))
        .route("/served", get(async || "tea"))
        .layer(layer());
    let address = serve(app);
    for n in 0..each() {
        let group = Group::new("/waits");
        let stream = request(address, "/waits");
        eventually(|| group.read().started == n as u64 + 1);
        // Between 0 and 3 ms.
        std::thread::sleep(Duration::from_micros(n as u64 * 7919 % 3000));
        drop(stream);
        let mut stream = request(address, "/endless");
        let mut bytes = vec![0; 1 + n * 7919 % 300_000];
        stream.read_exact(&mut bytes).expect("bytes");
        stream.shutdown(Shutdown::Both).expect("a connection");
        drop(stream);
        let mut served = String::new();
        request(address, "/served").read_to_string(&mut served).expect("a response");
        assert!(served.ends_with("tea"), "{served}");
    }
    let n = each() as u64;
    let cancelled = OutcomesRow { cancelled: n, ..OutcomesRow::default() };
    assert_eq!(outcomes("/waits", each()), cancelled);
    assert_eq!(outcomes("/endless", each()), cancelled);
    assert_eq!(outcomes("/served", each()), OutcomesRow { completed: n, ..OutcomesRow::default() });
}

async fn unary(request: tonic::Request<u32>) -> Result<Response<u32>, Status> {
    match request.into_inner() {
        0 => Ok(Response::new(1)),
        5 => Err(Status::not_found("of the test")),
        13 => panic!("on purpose"),
        99 => std::future::pending().await,
        _ => Err(Status::unavailable("of the test")),
    }
}

type Numbers = stream::BoxStream<'static, Result<u32, Status>>;

/// A number, and then the status, which is in the trailers.
async fn streaming(request: tonic::Request<u32>) -> Result<Response<Numbers>, Status> {
    let end = match request.into_inner() {
        0 => None,
        99 => return Ok(Response::new(stream::repeat(Ok(7)).boxed())),
        _ => Some(Err(Status::unavailable("of the test"))),
    };
    Ok(Response::new(stream::iter([Ok(7)].into_iter().chain(end)).boxed()))
}

async fn call_unary(request: Request) -> axum::response::Response {
    let request = request.map(tonic::body::Body::new);
    Grpc::new(Codec::default()).unary(service_fn(unary), request).await.map(Body::new)
}

async fn call_streaming(request: Request) -> axum::response::Response {
    let request = request.map(tonic::body::Body::new);
    Grpc::new(Codec::default()).server_streaming(service_fn(streaming), request).await.map(Body::new)
}

#[test]
fn calls_of_grpc_end_as_their_status_says() {
    let mut app = Router::new();
    for number in ["0", "5", "13", "14", "99"] {
        app = app.route(&format!("/unary/{number}"), any(call_unary));
        app = app.route(&format!("/streaming/{number}"), any(call_streaming));
    }
    let address = serve(app.layer(layer()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let path = |kind: &str, number: u32| format!("/{kind}/{number}").parse().expect("a path");
    let waits = Group::new("/unary/99");
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let mut client = Client::new(endpoint.connect().await.expect("a service that accepts"));
        for _ in 0..each() {
            for (number, code) in [(0, 0), (5, 5), (14, 14), (13, 1), (99, 4)] {
                client.ready().await.expect("a connection");
                let before = waits.read().started;
                let call = client.unary(tonic::Request::new(number), path("unary", number), Codec::default());
                let patience = async {
                    if number != 99 {
                        return tokio::time::sleep(HANG).await;
                    }
                    // The client gives up once the service has the request.
                    while waits.read().started == before {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                match select(pin!(call), pin!(patience)).await {
                    Either::Left((Ok(_), _)) => assert_eq!(code, 0),
                    Either::Left((Err(status), _)) if number != 13 => assert_eq!(status.code() as i32, code),
                    Either::Left((Err(_), _)) => {}
                    Either::Right(_) => assert_eq!(number, 99),
                }
            }
            for number in [0, 14, 99] {
                client.ready().await.expect("a connection");
                let (request, path) = (tonic::Request::new(number), path("streaming", number));
                let call = client.server_streaming(request, path, Codec::default()).await;
                let mut numbers = call.expect("a stream").into_inner();
                assert_eq!(numbers.message().await.expect("a number"), Some(7));
                if number == 0 {
                    assert_eq!(numbers.message().await.expect("the end"), None);
                } else if number == 14 {
                    assert_eq!(numbers.message().await.unwrap_err().code(), tonic::Code::Unavailable);
                }
            }
        }
    });
    // The client's connection ends with its runtime, and with it the last stream.
    drop(runtime);
    let n = each() as u64;
    let none = OutcomesRow::default;
    for (name, right) in [
        ("/unary/0", OutcomesRow { completed: n, ..none() }),
        ("/unary/5", OutcomesRow { client_error: n, ..none() }),
        ("/unary/14", OutcomesRow { error: n, ..none() }),
        ("/unary/13", OutcomesRow { panicked: n, ..none() }),
        ("/unary/99", OutcomesRow { cancelled: n, ..none() }),
        ("/streaming/0", OutcomesRow { completed: n, ..none() }),
        ("/streaming/14", OutcomesRow { error: n, ..none() }),
    ] {
        assert_eq!(outcomes(name, each()), right, "{name}");
    }
    // Its messages go on until the client goes: no request.
    assert_eq!(outcomes("/streaming/99", 0), none());
    assert_eq!(Group::new("/streaming/99").read().finished, n);
}

#[test]
fn requests_of_actix_end_as_they_do() {
    use dormouse::actix::GroupMiddleware;

    async fn streams() -> HttpResponse {
        let frames = [1, 2, 3].map(|_| Ok::<_, Infallible>(web::Bytes::from_static(b"tea")));
        HttpResponse::Ok().streaming(stream::iter(frames))
    }
    async fn refuses() -> Result<HttpResponse, actix_web::Error> {
        Err(actix_web::error::ErrorBadGateway("of the test"))
    }
    let groups = GroupMiddleware::new(|request: &actix_web::dev::ServiceRequest| {
        format!("actix {}", request.path()).into()
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(tokio::task::LocalSet::new().run_until(async {
        let app = App::new()
            .wrap(groups)
            .route("/served", web::get().to(async || "tea"))
            .route("/streamed", web::get().to(streams))
            .route("/cut", web::get().to(streams))
            .route("/unread", web::get().to(streams))
            .route("/replaced", web::get().to(streams))
            .route("/refuses", web::get().to(refuses))
            .route("/waits", web::get().to(async || std::future::pending::<&str>().await))
            .route("/panics", web::get().to(async || -> &str { panic!("on purpose") }));
        let app = test::init_service(app).await;
        for _ in 0..each() {
            let call = |path: &str| test::call_service(&app, test::TestRequest::get().uri(path).to_request());
            for path in ["/served", "/streamed", "/refuses", "/missing"] {
                body::to_bytes(call(path).await.into_body()).await.expect("a body");
            }
            // The server has begun to send it.
            let mut body = Box::pin(call("/cut").await.into_body());
            assert!(poll_fn(|cx| body.as_mut().poll_next(cx)).await.is_some());
            drop(body);
            // By HTTP/2 the server asks for the size first, and sends the head: the client is gone.
            let by_2 = |path| test::TestRequest::get().uri(path).version(Version::HTTP_2).to_request();
            let unread = test::call_service(&app, by_2("/unread")).await;
            assert_eq!(unread.response().body().size(), BodySize::Stream);
            drop(unread);
            drop(test::call_service(&app, by_2("/replaced")).await);
            assert!(tokio::time::timeout(Duration::from_millis(1), call("/waits")).await.is_err());
            let mut panics = Box::pin(call("/panics"));
            let poll = poll_fn(|cx| {
                Poll::Ready(catch_unwind(AssertUnwindSafe(|| panics.as_mut().poll(cx).is_ready())))
            });
            assert!(poll.await.is_err());
        }
    }));
    let n = each() as u64;
    let none = OutcomesRow::default;
    for (name, right) in [
        ("actix /served", OutcomesRow { completed: n, ..none() }),
        ("actix /streamed", OutcomesRow { completed: n, ..none() }),
        ("actix /refuses", OutcomesRow { error: n, ..none() }),
        ("actix /missing", OutcomesRow { client_error: n, ..none() }),
        ("actix /cut", OutcomesRow { cancelled: n, ..none() }),
        ("actix /unread", OutcomesRow { cancelled: n, ..none() }),
        ("actix /replaced", OutcomesRow { completed: n, ..none() }),
        ("actix /waits", OutcomesRow { cancelled: n, ..none() }),
        ("actix /panics", OutcomesRow { panicked: n, ..none() }),
    ] {
        assert_eq!(outcomes(name, each()), right, "{name}");
    }
}
