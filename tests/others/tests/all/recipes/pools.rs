//! Pools, files, actors, and clients that bring their own tasks.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use dormouse::hyper::Executor;
use dormouse::rayon::InGroup as _;
use dormouse::tokio::{fs, group_blocking, spawn_in};
use dormouse::{Carried, Event, Group, carry};
use dormouse_testkit::{process_cpu_ns, spin_for};
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};
use tokio::runtime::{Builder, Handle};
use tower::ServiceExt as _;
use tower_http::services::ServeDir;

use super::here;

fn count_cpu_time() {
    dormouse::start_counting(&[Event::TASK_CLOCK]).expect("CPU time").keep();
}

fn thumbnail(image: u64) -> u64 {
    assert_eq!(here(), "GET /album");
    spin_for(Duration::from_millis(2));
    image
}

fn album() -> u64 {
    (0..50_u64).into_par_iter().map(thumbnail).in_group().sum()
}

fn sort(numbers: &mut [u64]) {
    assert_eq!(here(), "sort");
    if numbers.len() > 100 {
        let middle = numbers.len() / 2;
        numbers.select_nth_unstable(middle);
        let (left, right) = numbers.split_at_mut(middle);
        dormouse::rayon::join(|| sort(left), || sort(right));
    } else {
        numbers.sort_unstable();
    }
}

#[test]
fn rayon_charges_pieces_to_the_caller() {
    count_cpu_time();
    let group = Group::new("GET /album");
    assert_eq!(group.scope(album), 1225);
    let cpu = group.read().cpu;
    assert!(cpu >= Duration::from_millis(100) && cpu < Duration::from_millis(115), "{cpu:?}");
    let mut numbers: Vec<u64> = (0..1000).rev().collect();
    Group::new("sort").scope(|| sort(&mut numbers));
    assert!(numbers.is_sorted());
}

#[test]
fn a_library_pool_has_a_name() {
    let images = Group::new("image library");
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(2)
        .spawn_handler(|thread| images.spawn_thread(move || thread.run()).map(drop))
        .build()
        .expect("a pool");

    assert!(pool.install(|| (0..100).into_par_iter().all(|_| here() == "image library")));
}

#[test]
fn files_are_charged_to_who_reads_them() {
    count_cpu_time();
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("tea"), vec![7; 32 << 20]).expect("a file");
    let runtime = group_blocking(Builder::new_multi_thread().worker_threads(1)).build().expect("a runtime");

    let group = Group::new("GET /tea");
    let before = process_cpu_ns();
    runtime.block_on(group.instrument(async {
        let tea = fs::read(folder.path().join("tea")).await.expect("the file");
        assert_eq!(tea.len(), 32 << 20);
    }));
    let (all, charged) = (process_cpu_ns() - before, group.read().cpu.as_nanos() as u64);
    assert!(charged > 1_000_000 && charged <= all, "{charged} of {all}");
    let files = ServeDir::new(folder.path());
    runtime.block_on(async {
        let request = http::Request::get("/tea").body(String::new()).expect("a request");
        let answer = files.oneshot(request).await.expect("an answer");
        assert_eq!(answer.collect().await.expect("a body").to_bytes().len(), 32 << 20);
    });
    drop(runtime);
    assert!(Group::new("tokio blocking").read().cpu > Duration::from_millis(1));
}

/// A message, and the group of its sender.
struct Order {
    cups: u32,
    from: Carried,
    answer: tokio::sync::oneshot::Sender<(u32, String)>,
}

async fn kitchen(mut orders: tokio::sync::mpsc::Receiver<Order>) {
    while let Some(order) = orders.recv().await {
        assert_eq!(here(), "kitchen");
        let done = order.from.run(|| (order.cups, here()));
        let _ = order.answer.send(done);
    }
}

#[test]
fn an_actor_has_its_own_group() {
    Builder::new_current_thread().build().expect("a runtime").block_on(async {
        let (orders, inbox) = tokio::sync::mpsc::channel(8);
        spawn_in(Group::new("kitchen"), kitchen(inbox));

        let asks = async {
            let (answer, done) = tokio::sync::oneshot::channel();
            let order = Order { cups: 2, from: carry(), answer };
            orders.send(order).await.ok()?;
            done.await.ok()
        };
        let done = Group::new("POST /orders").instrument(asks).await;
        assert_eq!(done, Some((2, "POST /orders".to_owned())));
    });
}

/// A runtime on a thread of the group: whatever a library spawns there is in the group.
fn runtime_in(group: Group) -> std::io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    group.spawn_thread(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(handle)
}

/// Answers requests on a thread, and returns where.
fn peer() -> SocketAddr {
    let peer = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = peer.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in peer.incoming() {
            let mut stream = stream.expect("a client");
            while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntea";
                stream.write_all(answer.as_bytes()).expect("a client that reads");
            }
        }
    });
    address
}

#[test]
fn reqwest_works_in_a_runtime_of_its_group() {
    count_cpu_time();
    let (address, upstream) = (peer(), Group::new("reqwest"));
    let handle = runtime_in(upstream).expect("a runtime");
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");

    Builder::new_current_thread().build().expect("a runtime").block_on(async {
        for _ in 0..10 {
            let request = client.get(format!("http://{address}/")).send();
            let text = handle.spawn(async { request.await?.text().await });
            assert_eq!(text.await.expect("a task").expect("an answer"), "tea");
        }
        let there = handle.spawn(async { here() });
        assert_eq!(there.await.expect("a task"), "reqwest");
    });
    assert!(upstream.read().cpu > Duration::from_micros(100), "{:?}", upstream.read());
}

#[test]
fn a_pooled_connection_belongs_to_the_client() {
    let uri: http::Uri = format!("http://{}/", peer()).parse().expect("an address");
    let client: Client<_, String> = Client::builder(Executor::group(Group::new("upstream"))).build_http();

    let route = Group::new("GET /first");
    Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(async {
        for _ in 0..3 {
            let answer = route.instrument(client.get(uri.clone())).await.expect("an answer");
            assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), "tea");
        }
        assert_eq!((route.read().started, route.read().alive), (3, 0), "it has requests alone");
        assert!(Group::new("upstream").read().alive >= 1, "the connection is there");
    });
}
