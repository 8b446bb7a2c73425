//! The gRPC services: behind axum, and by tonic's own server.

use http::uri::PathAndQuery;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_stream::{StreamExt as _, iter};
use tonic::Request;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::support::{Service, row};

const SERVICES: [&str; 2] = ["grpc", "grpc-by-itself"];

type Codec = ProstCodec<u32, u32>;

pub(crate) async fn client(address: SocketAddr) -> Grpc<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    Grpc::new(endpoint.connect().await.expect("a service that accepts"))
}

async fn ready(client: &mut Grpc<Channel>) -> &mut Grpc<Channel> {
    client.ready().await.expect("a connection");
    client
}

fn path(method: &str) -> PathAndQuery {
    format!("/others.Numbers/{method}").parse().expect("a path")
}

/// Calls of each kind, of which several are under way at once.
pub(crate) async fn call_all(client: &mut Grpc<Channel>) {
    let square = ready(client).await.unary(Request::new(5_u32), path("Square"), Codec::new()).await;
    assert_eq!(square.expect("a square").into_inner(), 25_u32);
    let count = ready(client).await.server_streaming(Request::new(3_u32), path("Count"), Codec::new()).await;
    let count = count.expect("a stream").into_inner();
    let sum =
        ready(client).await.client_streaming(Request::new(iter(1..4_u32)), path("Sum"), Codec::new()).await;
    assert_eq!(sum.expect("a sum").into_inner(), 6_u32);
    let echo = ready(client).await.streaming(Request::new(iter(1..4_u32)), path("Echo"), Codec::new()).await;
    let echo = echo.expect("a stream").into_inner();
    let numbers: Result<Vec<u32>, _> = count.merge(echo).collect().await;
    assert_eq!(numbers.expect("numbers").len(), 6);
}

pub(crate) fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

#[test]
fn calls_of_all_kinds_have_their_time() {
    for name in SERVICES {
        let mut service = Service::start(name, &[]);
        run(async {
            let clients = (0..3).map(|_| async {
                let mut client = client(service.address).await;
                for _ in 0..2 {
                    call_all(&mut client).await;
                }
            });
            futures_util::future::join_all(clients).await;
        });
        service.await_noted("ended", "/others.Numbers/Count", 6);
        let (shown, _) = service.charged();
        for (method, requests) in [("Square", 6), ("Count", 0), ("Sum", 6), ("Echo", 0)] {
            let row = row(&shown, &format!("/others.Numbers/{method}"));
            assert_eq!((row.requests, row.alive), (requests, 0), "{method}");
            let streams = row.waits.as_ref().and_then(|waits| waits.streams).expect("times");
            assert_eq!(streams.frames > 0, requests == 0, "{method}");
        }
    }
}

#[test]
fn cancelled_streams_and_panics_have_their_time() {
    for name in SERVICES {
        let mut service = Service::start(name, &[]);
        run(async {
            let mut client = client(service.address).await;
            for _ in 0..3 {
                let count = ready(&mut client).await.server_streaming(
                    Request::new(1_000_000_u32),
                    path("Count"),
                    Codec::new(),
                );
                let mut count = count.await.expect("a stream").into_inner();
                for number in 0..2_u32 {
                    assert_eq!(count.message().await.expect("a number"), Some(number));
                }
                drop(count);
                let numbers = Request::new(iter([1, 13_u32]));
                let echo = ready(&mut client).await.streaming(numbers, path("Echo"), Codec::new()).await;
                let mut echo = echo.expect("a stream").into_inner();
                while let Ok(Some(1_u32)) = echo.message().await {}
            }
        });
        service.await_noted("ended", "/others.Numbers/Count", 3);
        for method in ["Count", "Echo"] {
            service.await_alive(&format!("/others.Numbers/{method}"), 0);
        }
        let (shown, _) = service.charged();
        // One panics before it has sent a second message.
        for (method, requests) in [("Count", 0), ("Echo", 3)] {
            assert_eq!(row(&shown, &format!("/others.Numbers/{method}")).requests, requests, "{method}");
        }
    }
}

#[test]
fn a_blocked_worker_is_latency_of_others() {
    for name in SERVICES {
        let mut service = Service::start(name, &["1"]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let call = |mut client: Grpc<Channel>, method| {
            runtime.spawn(async move {
                let answer =
                    ready(&mut client).await.unary(Request::new(7_u32), path(method), Codec::new()).await;
                let answer: u32 = answer.expect("an answer").into_inner();
                answer
            })
        };
        // The tasks of the client run until none of them can go on.
        let send_all = || runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
        let client = runtime.block_on(client(service.address));
        service.await_stamps("/others.Numbers/Square", || {
            assert_eq!(runtime.block_on(call(client.clone(), "Square")).expect("a call"), 49);
        });
        let blocks = call(client.clone(), "Hold");
        send_all();
        service.await_noted("held", "/others.Numbers/Hold", 1);
        let send = || {
            let square = call(client, "Square");
            send_all();
            square
        };
        let receive = |square: JoinHandle<u32>| assert_eq!(runtime.block_on(square).expect("a call"), 49);
        service.assert_queued("/others.Numbers/Square", send, receive);
        assert_eq!(runtime.block_on(blocks).expect("a call"), 7);
    }
}

#[test]
fn idle_connections_await_their_clients() {
    for name in SERVICES {
        let mut service = Service::start(name, &[]);
        run(async {
            let mut client = client(service.address).await;
            call_all(&mut client).await;
            service.assert_awaiting(&["connections"]);
        });
    }
}
