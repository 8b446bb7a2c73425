//! gRPC services by tonic, behind axum and by tonic's own server, with the four kinds of calls.
//! Their code is what tonic's generator makes of four methods, without the generator; messages are
//! those of `google.protobuf.UInt32Value`.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::ListenerExt as _;
use dormouse::Group;
use dormouse::tower::GroupLayer;
use futures_util::{StreamExt as _, TryStreamExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

use crate::known;

type Stream<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

/// Names that the service knows: a client may call others.
const METHODS: [&str; 5] = [
    "/others.Numbers/Square",
    "/others.Numbers/Count",
    "/others.Numbers/Sum",
    "/others.Numbers/Echo",
    "/others.Numbers/Hold",
];

/// Behind axum.
pub(crate) fn run() -> io::Result<()> {
    block_on(async |listener| {
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        let methods = GroupLayer::new(|request: &axum::extract::Request| {
            let path = request.uri().path();
            METHODS.into_iter().find(|method| *method == path).unwrap_or("unknown method").into()
        });
        let app = Routes::new(Numbers).into_axum_router().layer(methods);
        let listener = dormouse::axum::listener(listener, Group::new("connections"));
        axum::serve(listener, dormouse::axum::streams(app)).await
    })
}

/// By tonic's own server.
pub(crate) fn run_by_itself() -> io::Result<()> {
    block_on(async |listener| {
        let methods = GroupLayer::new(|request: &http::Request<Body>| {
            let path = request.uri().path();
            METHODS.into_iter().find(|method| *method == path).unwrap_or("unknown method").into()
        });
        let connections = Group::new("connections");
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let incoming = incoming.map_ok(move |stream| dormouse::tokio::connection(stream, connections));
        let server = Server::builder().layer(methods).add_service(Numbers);
        server.serve_with_incoming(incoming).await.map_err(io::Error::other)
    })
}

fn block_on(serve: impl AsyncFnOnce(TcpListener) -> io::Result<()>) -> io::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(known::workers()).enable_all().build()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        known::serve(listener.local_addr()?);
        serve(listener).await
    })
}

async fn square(request: Request<u32>) -> Result<Response<u32>, Status> {
    known::burn(METHODS[0], Duration::from_millis(30));
    Ok(Response::new(request.into_inner().wrapping_pow(2)))
}

/// A task of its own computes what the stream sends. It ends at its next number if the client has
/// gone.
async fn count(request: Request<u32>) -> Result<Response<ReceiverStream<Result<u32, Status>>>, Status> {
    let (send, numbers) = mpsc::channel(1);
    dormouse::tokio::spawn(async move {
        for number in 0..request.into_inner() {
            known::burn(METHODS[1], Duration::from_millis(20));
            if send.send(Ok(number)).await.is_err() {
                break;
            }
        }
        known::burn(METHODS[1], Duration::from_millis(20));
        known::note("ended", METHODS[1], 1);
    });
    Ok(Response::new(ReceiverStream::new(numbers)))
}

async fn sum(request: Request<Streaming<u32>>) -> Result<Response<u32>, Status> {
    let (mut numbers, mut sum) = (request.into_inner(), 0);
    while let Some(number) = numbers.message().await? {
        known::burn(METHODS[2], Duration::from_millis(20));
        sum += number;
    }
    Ok(Response::new(sum))
}

/// Panics at the number 13. Built for debugging, a call that panics takes 0.6 ms of the framework's
/// work, so each number is longer than in the other methods.
fn echo(request: Request<Streaming<u32>>) -> Ready<Result<Response<Stream<u32>>, Status>> {
    let echoed = request.into_inner().map(|number| {
        known::burn(METHODS[3], Duration::from_millis(40));
        assert_ne!(number.as_ref().ok(), Some(&13), "a stream fails");
        number
    });
    ready(Ok(Response::new(Box::pin(echoed))))
}

/// Blocks its worker.
async fn hold(request: Request<u32>) -> Result<Response<u32>, Status> {
    known::hold(METHODS[4]);
    Ok(Response::new(request.into_inner()))
}

#[derive(Clone)]
struct Numbers;

impl NamedService for Numbers {
    const NAME: &'static str = "others.Numbers";
}

impl Service<http::Request<Body>> for Numbers {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::<u32, u32>::default());
            Ok(match request.uri().path() {
                "/others.Numbers/Square" => grpc.unary(service_fn(square), request).await,
                "/others.Numbers/Count" => grpc.server_streaming(service_fn(count), request).await,
                "/others.Numbers/Sum" => grpc.client_streaming(service_fn(sum), request).await,
                "/others.Numbers/Echo" => grpc.streaming(service_fn(echo), request).await,
                "/others.Numbers/Hold" => grpc.unary(service_fn(hold), request).await,
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}
