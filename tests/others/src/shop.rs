//! A shop that asks others: a stock over HTTP, a price list over gRPC, a cache that is like Redis,
//! and a database.
//!
//! Its arguments are the number of workers and the addresses of stock, prices and cache.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::{Router, routing::get};
use dormouse::tower::{GroupLayer, PeerService, calls};
use dormouse::{Call, CallKind};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use rusqlite::Connection;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;
use tower::{Layer as _, Service as _};

use crate::known;

/// The time that each statement takes, at least.
const STATEMENT: Duration = Duration::from_millis(3);

/// The time that the shop has for a late answer.
const PATIENCE: Duration = Duration::from_millis(5);

#[derive(Clone)]
struct App {
    stock: PeerService<Client<HttpConnector, Body>>,
    stock_address: SocketAddr,
    prices: PeerService<Channel>,
    cache: SocketAddr,
    database: Arc<Mutex<Connection>>,
}

pub(crate) fn run() -> io::Result<()> {
    let mut addresses = std::env::args().skip(3);
    let mut next = || -> io::Result<SocketAddr> {
        addresses.next().ok_or(io::ErrorKind::InvalidInput)?.parse().map_err(io::Error::other)
    };
    let [stock, prices, cache] = [next()?, next()?, next()?];
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(known::workers()).enable_all().build()?;
    runtime.block_on(serve(stock, prices, cache))
}

async fn serve(stock_address: SocketAddr, prices: SocketAddr, cache: SocketAddr) -> io::Result<()> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let stock = calls().layer(client);
    let channel = Endpoint::from_shared(format!("http://{prices}")).map_err(io::Error::other)?;
    let prices = calls().layer(channel.connect().await.map_err(io::Error::other)?);
    let database = Connection::open_in_memory().map_err(io::Error::other)?;
    let create = "CREATE TABLE orders (number INTEGER PRIMARY KEY, cups INTEGER)";
    database.execute(create, ()).map_err(io::Error::other)?;
    let database = Arc::new(Mutex::new(database));
    let routes = GroupLayer::new(|request: &Request| {
        request.extensions().get().map_or("unmatched", MatchedPath::as_str).to_owned().into()
    });
    let app = Router::new()
        .route("/order/{number}", get(order))
        .route("/price", get(price))
        .route("/late", get(late))
        .layer(routes)
        .with_state(App { stock, stock_address, prices, cache, database });
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    known::serve(listener.local_addr()?);
    axum::serve(listener, app).await
}

/// Notes the longest time that a call has taken, as its caller sees it.
async fn longest<T>(peer: &str, call: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let answer = call.await;
    known::note_most("longest", peer, begun.elapsed().as_nanos() as u64);
    answer
}

async fn order(State(app): State<App>, axum::extract::Path(number): axum::extract::Path<u32>) -> StatusCode {
    let cached = longest("/order redis", app.command(&format!("GET cups:{number}"))).await;
    let stock = longest("/order http", app.stock("/cups")).await;
    let stored = longest("/order sql", app.store(number)).await;
    match (cached, stock, stored) {
        (Ok(_), Ok(status), Ok(_)) if status.is_success() => StatusCode::CREATED,
        _ => StatusCode::BAD_GATEWAY,
    }
}

async fn price(State(app): State<App>) -> Result<String, StatusCode> {
    let price = longest("/price grpc", app.square(7)).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
    Ok(price.to_string())
}

async fn late(State(app): State<App>) -> StatusCode {
    let answer = timeout(PATIENCE, app.stock("/never")).await;
    answer.map_or(StatusCode::GATEWAY_TIMEOUT, |_| StatusCode::OK)
}

impl App {
    async fn stock(&self, path: &str) -> Result<StatusCode, hyper_util::client::legacy::Error> {
        let request = Request::get(format!("http://{}{path}", self.stock_address)).body(Body::empty());
        let answer = self.stock.clone().call(request.expect("a path")).await?;
        Ok(answer.status())
    }

    async fn square(&self, number: u32) -> Result<u32, tonic::Status> {
        let mut client = Grpc::new(self.prices.clone());
        client.ready().await.map_err(|_| tonic::Status::unavailable("no connection"))?;
        let path = "/others.Numbers/Square".parse().expect("a path");
        let answer = client.unary(tonic::Request::new(number), path, ProstCodec::<u32, u32>::default()).await;
        Ok(answer?.into_inner())
    }

    async fn command(&self, command: &str) -> io::Result<String> {
        let talk = async {
            let mut stream = TcpStream::connect(self.cache).await?;
            stream.write_all(format!("{command}\n").as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            if answer.starts_with('-') { Err(io::Error::other(answer)) } else { Ok(answer) }
        };
        Call::begin(CallKind::Redis, command).instrument(talk).await
    }

    /// The second order of a number is refused.
    async fn store(&self, number: u32) -> Result<usize, rusqlite::Error> {
        let database = Arc::clone(&self.database);
        let store = move || {
            let statement = format!("INSERT INTO orders VALUES ({number}, 'many')");
            Call::begin(CallKind::Sql, &statement).run(|| {
                std::thread::sleep(STATEMENT);
                database.lock().expect("nobody panics with it").execute(&statement, ())
            })
        };
        dormouse::tokio::spawn_blocking(store).await.expect("it does not panic")
    }
}
