//! A key-value store with its own accept loop and a protocol of lines, as small databases have it.
//!
//! A connection is a task of the group `connections`. Each command has a group, which charges for
//! what it does between the line and the answer.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dormouse::Group;
use dormouse::tokio::ServedStream;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::{self, error::RecvError};

use crate::known;

type Stream = ServedStream<TcpStream>;

/// The state that all connections share.
struct Shared {
    store: Mutex<HashMap<String, String>>,
    published: broadcast::Sender<String>,
    groups: Groups,
}

/// A group for each command: made once, because a lookup by name takes a lock.
struct Groups {
    get: Group,
    set: Group,
    wait: Group,
    publish: Group,
    subscribe: Group,
    hold: Group,
    fail: Group,
    unknown: Group,
}

pub(crate) fn run() -> io::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(known::workers()).enable_all().build()?.block_on(accept())
}

async fn accept() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    known::serve(listener.local_addr()?);
    let shared = Arc::new(Shared {
        store: Mutex::default(),
        published: broadcast::channel(16).0,
        groups: Groups {
            get: Group::new("get"),
            set: Group::new("set"),
            wait: Group::new("wait"),
            publish: Group::new("publish"),
            subscribe: Group::new("subscribe"),
            hold: Group::new("hold"),
            fail: Group::new("fail"),
            unknown: Group::new("unknown command"),
        },
    });
    let connections = Group::new("connections");
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // A connection that fails ends; the others go on.
        let stream = dormouse::tokio::received(stream);
        tokio::spawn(connections.connection().instrument(serve(stream, Arc::clone(&shared))));
    }
}

async fn serve(stream: Stream, shared: Arc<Shared>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        let words: Vec<&str> = line.split_whitespace().collect();
        let groups = &shared.groups;
        let answer = match words[..] {
            ["get", key] => groups.get.request().instrument(async { get(&shared, key) }).await,
            ["set", key, value] => groups.set.request().instrument(async { set(&shared, key, value) }).await,
            ["wait", ms] => groups.wait.request().instrument(wait(ms)).await,
            ["publish", message] => {
                groups.publish.request().instrument(async { publish(&shared, message) }).await
            }
            ["subscribe"] => return groups.subscribe.request().instrument(subscribe(stream, &shared)).await,
            ["hold"] => groups.hold.request().instrument(async { hold() }).await,
            ["fail"] => groups.fail.request().instrument(async { panic!("a command fails") }).await,
            _ => groups.unknown.request().instrument(async { "unknown command".to_owned() }).await,
        };
        stream.write_all(format!("{answer}\n").as_bytes()).await?;
        line.clear();
    }
    Ok(())
}

fn get(shared: &Shared, key: &str) -> String {
    known::burn("get", Duration::from_millis(10));
    shared.store.lock().expect("nobody panics with it").get(key).cloned().unwrap_or_default()
}

/// Computes with the lock held, so that other connections are stalled.
fn set(shared: &Shared, key: &str, value: &str) -> String {
    let asked = Instant::now();
    let mut store = shared.store.lock().expect("nobody panics with it");
    known::note("stalled", "set", asked.elapsed().as_nanos() as u64);
    known::burn("set", Duration::from_millis(10));
    store.insert(key.to_owned(), value.to_owned());
    "ok".to_owned()
}

async fn wait(ms: &str) -> String {
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_millis(ms.parse().unwrap_or(0))).await;
    known::note("waited", "wait", begun.elapsed().as_nanos() as u64);
    "waited".to_owned()
}

/// Blocks its worker.
fn hold() -> String {
    known::hold("hold");
    "held".to_owned()
}

fn publish(shared: &Shared, message: &str) -> String {
    known::burn("publish", Duration::from_millis(20));
    // An error is that nobody has subscribed.
    shared.published.send(message.to_owned()).unwrap_or(0).to_string()
}

/// Ends when the client hangs up.
async fn subscribe(mut stream: BufReader<Stream>, shared: &Shared) -> io::Result<()> {
    let mut published = shared.published.subscribe();
    stream.write_all(b"subscribed\n").await?;
    let mut line = String::new();
    loop {
        tokio::select! {
            message = published.recv() => match message {
                Ok(message) => {
                    known::burn("subscribe", Duration::from_millis(40));
                    stream.write_all(format!("{message}\n").as_bytes()).await?;
                }
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Ok(()),
            },
            read = stream.read_line(&mut line) => if read? == 0 { return Ok(()) },
        }
    }
}
