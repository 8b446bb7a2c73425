//! A web service whose routes are groups: it serves requests of its own, and says what each route
//! cost.
//!
//! ```sh
//! cargo run -p dormouse --example axum --features tokio,tower
//! ```

use axum::extract::{MatchedPath, Path, Request};
use axum::{Router, routing::get};
use dormouse::{Event, Group, tower::GroupLayer};
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

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A service starts the agent, so that the `dormouse` command can look in: dormouse::init()
    let _counting = dormouse::start_counting(&[Event::TASK_CLOCK])?;
    let groups = GroupLayer::new(|request: &Request| {
        request.extensions().get().map_or("unmatched", MatchedPath::as_str).to_owned().into()
    });
    let router =
        Router::new().route("/menu", get(menu)).route("/orders/{cups}", get(order)).route_layer(groups);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    dormouse::tokio::spawn(async move { axum::serve(listener, router).await });

    for n in 0..12 {
        let path = if n % 3 == 0 { "orders/2" } else { "menu" };
        let mut guest = TcpStream::connect(address).await?;
        let request = format!("GET /{path} HTTP/1.1\r\nHost: tea\r\nConnection: close\r\n\r\n");
        guest.write_all(request.as_bytes()).await?;
        let mut response = String::new();
        guest.read_to_string(&mut response).await?;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    }

    println!("{:<15} {:>8} {:>10}", "GROUP", "REQUESTS", "CPU µs");
    for stat in Group::all().into_iter().map(Group::read) {
        println!("{:<15} {:>8} {:>10}", stat.name, stat.requests, stat.cpu.as_micros());
    }
    Ok(())
}
