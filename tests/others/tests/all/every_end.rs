//! Each known end on each framework: every request is counted right. `docs/design/outcomes.md` has
//! the table.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::mpsc::channel;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use actix_web::dev::{ServerHandle, Service as _, ServiceRequest};
use actix_web::{App, HttpResponse, HttpServer, web};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Path;
use axum::http::{HeaderMap, Request, Response};
use axum::middleware::{Next, from_fn};
use axum::routing::any;
use axum::{BoxError, Router};
use dormouse::actix::GroupMiddleware;
use dormouse::tower::GroupLayer;
use dormouse::{Group, OutcomesRow};
use dormouse_testkit::{HANG, eventually, in_child, short_or_long};
use futures_util::future::{BoxFuture, select};
use futures_util::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tower::layer::layer_fn;
use tower::{Layer as _, Service, service_fn};

const ENDS: [&str; 15] = [
    "200",
    "404",
    "500",
    "grpc-0",
    "grpc-14",
    "gone",
    "timeout-inside",
    "timeout-outside",
    "abort",
    "panic",
    "caught-inside",
    "caught-outside",
    "lost-select",
    "cut-off",
    // The runtime, or the server, ends.
    "shut-down",
];

/// Requests of each end on each framework: 69 cells, 11,040 requests in a long run.
fn each() -> usize {
    short_or_long(10, 160)
}

const SOON: Duration = Duration::from_millis(1);

/// A handler begins to wait.
static STUCK: Notify = Notify::const_new();

async fn stuck() {
    STUCK.notify_waiters();
    sleep(HANG).await;
}

/// The output of a future, unless it panics.
async fn catch<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Some),
        Err(_) => Poll::Ready(None),
    })
    .await
}

fn answer(status: u16, body: Body) -> Response<Body> {
    Response::builder().status(status).body(body).expect("a response")
}

/// A message, and then gRPC's status in trailers.
fn grpc(code: &'static str) -> Response<Body> {
    let trailers =
        HeaderMap::from_iter([("grpc-status".parse().expect("a name"), code.parse().expect("a value"))]);
    let frames = [Frame::data(Bytes::from_static(b"\0\0\0\0\x01t")), Frame::trailers(trailers)];
    let mut response = answer(200, Body::new(StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)))));
    response.headers_mut().insert("content-type", "application/grpc".parse().expect("a value"));
    response
}

/// A handler: what is inside of the layer of groups.
async fn handle(end: &str) -> Response<Body> {
    match end {
        "200" => {}
        "404" => return answer(404, "no".into()),
        "500" => return answer(500, "no".into()),
        "grpc-0" => return grpc("0"),
        "grpc-14" => return grpc("14"),
        "timeout-inside" => {
            timeout(SOON, stuck()).await.expect_err("nothing wakes it");
            return answer(504, "late".into());
        }
        "panic" | "caught-outside" => panic!("on purpose"),
        "caught-inside" => {
            assert!(catch(async { panic!("on purpose") }).await.is_none());
            return answer(500, "no".into());
        }
        // More than the sockets between service and client hold.
        "cut-off" => {
            let frame = || Ok::<_, Infallible>(vec![7_u8; 64 << 10]);
            return answer(200, Body::from_stream(stream::repeat_with(frame)));
        }
        _ => stuck().await,
    }
    answer(200, "tea".into())
}

/// The layers of a service around that of groups; `None`: they give the request up.
async fn around<F: Future>(
    end: &str,
    call: F,
    spawn: impl FnOnce(F) -> JoinHandle<F::Output>,
) -> Option<F::Output> {
    let begins = STUCK.notified();
    match end {
        "timeout-outside" => timeout(SOON, call).await.ok(),
        "caught-outside" => catch(call).await,
        "abort" => {
            let task = spawn(call);
            begins.await;
            task.abort();
            task.await.ok()
        }
        "lost-select" => tokio::select! {
            biased;
            answer = call => Some(answer),
            () = begins => None,
        },
        _ => Some(call.await),
    }
}

/// [`around`] as a layer of tower.
#[derive(Clone)]
struct Around<S>(S);

impl<S, R, B> Service<Request<R>> for Around<S>
where
    S: Service<Request<R>, Response = Response<B>, Error = Infallible, Future: Send + 'static>,
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let end = end_of(request.uri().path());
        let call = self.0.call(request);
        Box::pin(async move {
            let answered = around(&end, call, tokio::spawn).await;
            Ok(match answered {
                Some(Ok(response)) => response.map(Body::new),
                None => answer(503, "given up".into()),
            })
        })
    }
}

fn end_of(path: &str) -> String {
    path.trim_start_matches('/').to_owned()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// A service that runs until it is ended.
struct Served {
    name: &'static str,
    address: SocketAddr,
    end: Box<dyn FnOnce()>,
}

/// A service on a runtime of its own, which ends with it.
fn on_runtime<F>(name: &'static str, serve: impl FnOnce(TcpListener) -> F) -> Served
where
    F: Future<Output: Send> + Send + 'static,
{
    let runtime = runtime();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a socket");
    let address = listener.local_addr().expect("an address");
    let inside = runtime.enter();
    runtime.spawn(serve(listener));
    drop(inside);
    Served { name, address, end: Box::new(move || drop(runtime)) }
}

fn groups<R>(
    name: &'static str,
) -> GroupLayer<impl for<'a> Fn(&'a Request<R>) -> std::borrow::Cow<'a, str> + Clone> {
    GroupLayer::new(move |request: &Request<R>| format!("{name} {}", end_of(request.uri().path())).into())
}

fn by_axum() -> Served {
    async fn outside(request: axum::extract::Request, next: Next) -> Response<Body> {
        let end = end_of(request.uri().path());
        let answered = around(&end, next.run(request), tokio::spawn).await;
        answered.unwrap_or_else(|| answer(503, "given up".into()))
    }
    let handler = any(async |Path(end): Path<String>| handle(&end).await);
    let app = Router::new().route("/{end}", handler).layer(groups("axum")).layer(from_fn(outside));
    on_runtime("axum", async move |listener| axum::serve(listener, app).await)
}

fn by_hyper() -> Served {
    let handler = |request: Request<hyper::body::Incoming>| async move {
        Ok::<_, Infallible>(handle(&end_of(request.uri().path())).await)
    };
    let service = Around(groups("hyper").layer(service_fn(handler)));
    on_runtime("hyper", async move |listener| {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let builder = Builder::new(dormouse::hyper::Executor::server());
                builder.serve_connection(TokioIo::new(stream), service).await
            });
        }
    })
}

fn by_tonic() -> Served {
    let handler = |request: Request<tonic::body::Body>| async move {
        let response = handle(&end_of(request.uri().path())).await;
        Ok::<_, Infallible>(response.map(tonic::body::Body::new))
    };
    let server = Server::builder().layer(layer_fn(Around)).layer(groups("tonic"));
    on_runtime("tonic", async move |listener| {
        server.serve_with_incoming(service_fn(handler), TcpIncoming::from(listener)).await
    })
}

async fn handle_by_actix(end: web::Path<String>) -> HttpResponse {
    let (head, body) = handle(&end).await.into_parts();
    let status = actix_web::http::StatusCode::from_u16(head.status.as_u16()).expect("a status");
    HttpResponse::build(status).streaming(body.into_data_stream())
}

fn by_actix() -> Served {
    let (tell, told) = channel();
    let serving = thread::spawn(move || {
        actix_web::rt::System::new().block_on(async {
            let app = || {
                let groups = GroupMiddleware::new(|request: &ServiceRequest| {
                    format!("actix {}", end_of(request.path())).into()
                });
                let app = App::new().wrap(groups).wrap_fn(|request, service| {
                    let end = end_of(request.path());
                    let call = service.call(request);
                    async move {
                        let answered = around(&end, call, actix_web::rt::spawn).await;
                        answered.unwrap_or_else(|| Err(actix_web::error::ErrorServiceUnavailable("given up")))
                    }
                });
                app.route("/{end}", web::get().to(handle_by_actix))
            };
            let server = HttpServer::new(app).workers(2).h1_allow_half_closed(false).disable_signals();
            let server = server.bind(("127.0.0.1", 0)).expect("a socket");
            let address = server.addrs()[0];
            let server = server.run();
            tell.send((address, server.handle())).expect("the test");
            server.await.expect("a server that ends");
        });
    });
    let (address, handle): (_, ServerHandle) = told.recv().expect("a server");
    let end = move || {
        // Without grace.
        drop(handle.stop(false));
        serving.join().expect("a thread that ends");
    };
    Served { name: "actix", address, end: Box::new(end) }
}

fn group(name: &str, end: &str) -> Group {
    Group::new(&format!("{name} {end}"))
}

/// A moment that nobody has planned, within three milliseconds.
fn some_time(n: usize) -> Duration {
    Duration::from_micros(n as u64 * 7919 % 3000)
}

/// How many bytes a client takes before it is gone.
fn some_bytes(n: usize) -> usize {
    1 + n * 7919 % 300_000
}

fn ask(address: SocketAddr, end: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a service that accepts");
    stream.set_read_timeout(Some(HANG)).expect("a timeout");
    write!(stream, "GET /{end} HTTP/1.1\r\nHost: tea\r\nConnection: close\r\n\r\n").expect("a socket");
    stream
}

/// Sends each request by HTTP/1, on a connection of its own.
fn by_http_1(served: Served, ends: &[&str]) {
    let Served { name, address, end: end_it } = served;
    let mut open = Vec::new();
    for end in ends {
        for n in 0..each() {
            let mut stream = ask(address, end);
            match *end {
                "shut-down" => open.push(stream),
                "gone" => {
                    eventually(|| group(name, end).read().started > n as u64);
                    thread::sleep(some_time(n));
                }
                "cut-off" => {
                    stream.read_exact(&mut vec![0; some_bytes(n)]).expect("bytes");
                    stream.shutdown(Shutdown::Both).expect("a connection");
                }
                // Cut off by a panic.
                _ => _ = stream.read_to_end(&mut Vec::new()),
            }
        }
    }
    eventually(|| group(name, "shut-down").read().alive == each() as u64);
    end_it();
}

/// Sends all requests by HTTP/2, on one connection.
fn by_http_2(served: Served, ends: &[&str]) {
    let Served { name, address, end: end_it } = served;
    let clients = runtime();
    let open = clients.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.expect("a service that accepts");
        let (mut send, connection) =
            http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .expect("a connection");
        tokio::spawn(connection);
        let mut open = Vec::new();
        for end in ends {
            for n in 0..each() {
                let request = Request::post(format!("http://{address}/{end}"));
                let answer = send.send_request(request.body(Body::empty()).expect("a request"));
                match *end {
                    "shut-down" => open.push(tokio::spawn(answer)),
                    "gone" => {
                        let goes = async {
                            while group(name, end).read().started <= n as u64 {
                                sleep(SOON).await;
                            }
                            sleep(some_time(n)).await;
                        };
                        drop(select(pin!(answer), pin!(goes)).await);
                    }
                    "cut-off" => {
                        let (mut body, mut read) = (answer.await.expect("a head").into_body(), 0);
                        while read < some_bytes(n) {
                            let frame = body.frame().await.expect("more").expect("a frame");
                            read += frame.into_data().map_or(0, |data| data.len());
                        }
                    }
                    _ => {
                        if let Ok(response) = answer.await {
                            let _cut_off = response.into_body().collect().await;
                        }
                    }
                }
            }
        }
        (send, open)
    });
    eventually(|| group(name, "shut-down").read().alive == each() as u64);
    end_it();
    drop((open, clients));
}

/// Each kind of end on tasks alone, which have results in place of statuses.
fn plain_tasks(ends: &[&'static str]) {
    async fn task(end: &str) -> Result<(), ()> {
        match end {
            "404" => assert!(dormouse::outcome("client_error")),
            "500" => return Err(()),
            "timeout-inside" => return timeout(SOON, stuck()).await.map_err(|_| ()),
            "panic" | "caught-outside" => panic!("on purpose"),
            "caught-inside" => {
                assert!(catch(async { panic!("on purpose") }).await.is_none());
                return Err(());
            }
            "200" => {}
            _ => stuck().await,
        }
        Ok(())
    }
    let runtime = runtime();
    for &end in ends {
        for _ in 0..each() {
            let task = group("task", end).instrument_result(task(end));
            if end == "shut-down" {
                runtime.spawn(task);
            } else {
                let around = runtime.spawn(around(end, task, tokio::spawn));
                let _panicked = runtime.block_on(around);
            }
        }
    }
}

/// The outcomes of requests that all have that end.
fn right(end: &str) -> OutcomesRow {
    let mut of = OutcomesRow::default();
    let count = match end {
        "200" | "grpc-0" => &mut of.completed,
        "404" => &mut of.client_error,
        "500" | "grpc-14" | "timeout-inside" => &mut of.error,
        "panic" | "caught-inside" | "caught-outside" => &mut of.panicked,
        _ => &mut of.cancelled,
    };
    *count = each() as u64;
    of
}

#[test]
fn each_end_is_counted_right_on_each_framework() {
    in_child(|| {
        // Its hook sees panics that are caught inside.
        let _agent = dormouse::init().expect("an agent");
        // actix sends no trailers.
        let of_actix = ENDS.map(|end| (!end.starts_with("grpc")).then_some(end));
        let of_actix: Vec<_> = of_actix.into_iter().flatten().collect();
        // A task has neither a status nor a client.
        let is_of_task = |end: &&str| !["gone", "cut-off"].contains(end);
        let of_tasks: Vec<_> = of_actix.iter().copied().filter(is_of_task).collect();
        by_http_1(by_axum(), &ENDS);
        by_http_1(by_hyper(), &ENDS);
        by_http_2(by_tonic(), &ENDS);
        by_http_1(by_actix(), &of_actix);
        plain_tasks(&of_tasks);
        let all = [
            ("axum", &ENDS[..]),
            ("hyper", &ENDS),
            ("tonic", &ENDS),
            ("actix", &of_actix),
            ("task", &of_tasks),
        ];
        let mut cells = 0;
        for (name, ends) in all {
            for end in ends {
                let of = group(name, end);
                eventually(|| of.read().alive == 0);
                assert_eq!(of.read().outcomes, right(end), "{name} {end}");
                cells += 1;
            }
        }
        assert_eq!(cells, 3 * 15 + 13 + 11);
    });
}
