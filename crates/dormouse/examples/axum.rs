//! A web service whose routes are groups, with metrics and profiles on routes of its own. It serves
//! requests of its own and ends; with an address it serves until it is killed.
//!
//! ```sh
//! cargo run -p dormouse --example axum --features axum,tower
//! cargo run -p dormouse --example axum --features axum,tower -- 127.0.0.1:8080
//! curl http://127.0.0.1:8080/metrics
//! go tool pprof 'http://127.0.0.1:8080/debug/pprof/profile?seconds=5'
//! ```

use axum::body::Body;
use axum::extract::{MatchedPath, Path, Request};
use axum::{Router, routing::get};
use dormouse::metrics::{Metrics, MetricsSpec};
use dormouse::tower::{GroupLayer, MetricsService};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Uses the processor, as a handler does that renders a page.
fn work(rounds: u64) -> u64 {
    (0..rounds).fold(1, |hash, n| std::hint::black_box(hash ^ n).wrapping_mul(0x0100_0000_01b3))
}

async fn menu() -> String {
    work(20_000).to_string()
}

async fn order(Path(cups): Path<u64>) -> String {
    dormouse::probe!("order.placed", cups); // Asleep: one instruction.
    // The blocking pool's thread charges the route that hands the work on.
    let brewed = dormouse::tokio::spawn_blocking(move || work(100_000 * cups)).await;
    brewed.map_or_else(|why| why.to_string(), |tea| tea.to_string())
}

/// The routes of the service, and those that tell of them. The latter come behind the layer, so
/// they are in no group; a service keeps them where strangers do not come.
fn router(metrics: Metrics) -> Router {
    let groups = GroupLayer::new(|request: &Request| {
        request.extensions().get().map_or("unmatched", MatchedPath::as_str).to_owned().into()
    });
    let routes = Router::new().route("/menu", get(menu)).route("/orders/{cups}", get(order));
    let metrics = MetricsService::<Body>::new(metrics);
    routes.layer(groups).merge(dormouse::axum::pprof()).route_service("/metrics", metrics)
}

/// The body of an answer of this service.
async fn fetch(address: std::net::SocketAddr, path: &str) -> std::io::Result<Vec<u8>> {
    let mut guest = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    guest.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    guest.read_to_end(&mut answer).await?;
    let head = answer.windows(4).position(|part| part == b"\r\n\r\n").unwrap_or_default();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{path}: {}", answer[..head].escape_ascii());
    Ok(answer.split_off(head + 4))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // So that the `dormouse` command can look in. A service goes on without.
    if let Err(why) = dormouse::init() {
        eprintln!("dormouse is off: {why}");
    }
    // Groups are counted as long as this lives, and times of tasks are taken.
    let metrics = Metrics::start(&MetricsSpec::new().waits())?;
    let wanted = std::env::args().nth(1);
    let listener = TcpListener::bind(wanted.as_deref().unwrap_or("127.0.0.1:0")).await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    let server = tokio::spawn(axum::serve(listener, router(metrics)).into_future());
    if wanted.is_some() {
        server.await??;
        return Ok(());
    }

    for n in 0..12 {
        fetch(address, if n % 3 == 0 { "/orders/2" } else { "/menu" }).await?;
    }
    let text = String::from_utf8(fetch(address, "/metrics").await?)?;
    for line in text.lines().filter(|line| line.contains("{group=\"/") && !line.contains("_bucket{")) {
        println!("{line}");
    }
    let profile = fetch(address, "/debug/pprof/wall?seconds=1").await?;
    println!("a profile of {} bytes", profile.len());
    Ok(())
}
