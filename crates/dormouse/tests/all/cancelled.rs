//! The place where cancelled requests waited, and the code that dropped them, are right in 99 of
//! 100, for each known end.
#![cfg(all(feature = "axum", feature = "hyper", feature = "symbols", feature = "tower"))]

use std::collections::HashMap;
use std::future::pending;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::error_handling::HandleErrorLayer;
use axum::extract::{MatchedPath, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get};
use dormouse::tower::GroupLayer;
use dormouse::waits::places::place;
use dormouse::waits::{Placing, Waiting};
use dormouse::{Group, Instrumented};
use dormouse_profile::drops::{DropCause, drop_cause};
use dormouse_profile::{NameFinder, Node, Profile, SourceFrame};
use dormouse_testkit::{HANG, eventually, in_child, short_or_long, skip};
use dormouse_unwind::own;
use dormouse_waits::{Cancellation, Waited, read_cancelled};
use futures_util::future::{join, select};
use futures_util::stream;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};
use tower::timeout::TimeoutLayer;

pub(crate) const SOON: Duration = Duration::from_millis(1);

/// Requests of each kind.
pub(crate) fn each() -> u64 {
    short_or_long(20, 1_000)
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Takes times and places, with all functions of this program and of the C library learned, where
/// threads begin; `None` where stacks are not walked by tables.
pub(crate) fn on() -> Option<(Waiting, Placing)> {
    let on = (Waiting::start().unwrap(), Placing::start().unwrap());
    let objects = [self::on as *const () as u64, libc::getpid as *const () as u64];
    if !objects.into_iter().all(own::learn_object) {
        skip("stacks are not walked by unwind tables here");
        return None;
    }
    Some(on)
}

/// The cancelled requests of each group, with the names of the stacks that are mentioned.
pub(crate) struct Seen {
    rows: Vec<Cancellation>,
    names: HashMap<u32, Vec<SourceFrame>>,
}

impl Seen {
    pub(crate) fn now() -> Self {
        let mut rows = Vec::new();
        read_cancelled(|row| rows.push(row.clone())).expect("places are taken");
        let numbers = rows.iter().flat_map(|row| [row.place, row.stack]);
        let stacks: HashMap<u32, Vec<u64>> =
            numbers.filter_map(|number| Some((number, place(number)?.stack))).collect();
        let nodes = stacks.values().flatten().map(|&address| Node { parent: 0, address }).collect();
        let symbols = NameFinder::own().unwrap().symbols(&Profile { stacks: nodes, ..Profile::default() });
        let named = |stack: &Vec<u64>| stack.iter().flat_map(|&at| symbols.get(at).to_vec()).collect();
        Self { rows, names: stacks.iter().map(|(&number, stack)| (number, named(stack))).collect() }
    }

    /// The rows of a group, which have all its cancelled requests.
    #[track_caller]
    fn of(&self, group: &str) -> Vec<&Cancellation> {
        let group = Group::new(group);
        let rows: Vec<_> = self.rows.iter().filter(|row| row.group == group.id()).collect();
        let sum: u64 = rows.iter().map(|row| row.requests).sum();
        assert_eq!(sum, group.read().outcomes.cancelled, "{}", group.name());
        rows
    }

    /// Asserts that 99 of 100 requests of the group were dropped by `cause`; `is_own`: in a
    /// function of this file.
    #[track_caller]
    pub(crate) fn assert_dropped(&self, group: &str, cause: DropCause, is_own: bool) {
        let is_right = |row: &&&Cancellation| {
            let Some(frames) = self.names.get(&row.stack) else { return false };
            let called: Vec<_> = frames.iter().map(SourceFrame::called).collect();
            let (found, at) = drop_cause(&called, row.is_panicking);
            let is_here = |frame: &SourceFrame| frame.file.ends_with("all/cancelled.rs");
            found == cause && (!is_own || at.is_some_and(|at| frames[at..].iter().any(is_here)))
        };
        let rows = self.of(group);
        let count =
            |rows: &mut dyn Iterator<Item = &&Cancellation>| rows.map(|row| row.requests).sum::<u64>();
        let (right, all) = (count(&mut rows.iter().filter(is_right)), count(&mut rows.iter()));
        let wrong = || {
            let row = rows.iter().find(|row| !is_right(row)).unwrap();
            let frames = self.names.get(&row.stack).map_or(&[][..], Vec::as_slice);
            let line = |of: &SourceFrame| format!("  {} {}:{}", of.function, of.file, of.line);
            let text = frames.iter().map(line).collect::<Vec<_>>().join("\n");
            format!("{group}: {right} of {all} by {cause:?}; stack {}:\n{text}", row.stack)
        };
        assert!(all > 0 && right * 100 >= all * 99, "{}", wrong());
    }
}

fn stays(group: Group) -> Instrumented<impl Future<Output = ()> + Send> {
    group.instrument(async { sleep(HANG).await })
}

/// Something that cancels a request of a group.
type Kind = (&'static str, DropCause, fn(Group) -> Pin<Box<dyn Future<Output = ()> + Send>>);

const KINDS: [Kind; 11] = [
    ("timeout", DropCause::Timeout, |group| {
        Box::pin(async move {
            timeout(SOON, stays(group)).await.unwrap_err();
        })
    }),
    ("timeout of a task", DropCause::Timeout, |group| {
        Box::pin(async move {
            tokio::spawn(timeout(SOON, stays(group))).await.unwrap().unwrap_err();
        })
    }),
    ("timeout around a function", DropCause::Timeout, |group| {
        Box::pin(async move {
            // Begun in its first poll: the time may be over before a second one.
            let inner = async {
                stays(group).await;
            };
            timeout(SOON, inner).await.unwrap_err();
        })
    }),
    ("select", DropCause::Select, |group| {
        Box::pin(async move {
            tokio::select! {
                biased;
                () = stays(group) => {}
                () = yield_now() => {}
            }
        })
    }),
    ("select with a timeout that has not struck", DropCause::Select, |group| {
        Box::pin(async move {
            let inner = async {
                let _never = timeout(HANG, stays(group)).await;
            };
            tokio::select! {
                biased;
                () = inner => {}
                () = yield_now() => {}
            }
        })
    }),
    ("select of futures", DropCause::Select, |group| {
        Box::pin(async move { drop(select(Box::pin(stays(group)), Box::pin(yield_now())).await) })
    }),
    ("abort", DropCause::Abort, |group| {
        Box::pin(async move {
            let task = tokio::spawn(stays(group));
            yield_now().await;
            task.abort();
            task.await.unwrap_err();
        })
    }),
    ("abort of a set", DropCause::Abort, |group| {
        Box::pin(async move {
            let mut tasks = JoinSet::new();
            tasks.spawn(async move { stays(group).await });
            yield_now().await;
            tasks.shutdown().await;
        })
    }),
    ("a panic beside it", DropCause::Panic, |group| {
        Box::pin(async move {
            let unwinds = async {
                yield_now().await;
                std::panic::resume_unwind(Box::new(()));
            };
            tokio::spawn(join(stays(group), unwinds)).await.unwrap_err();
        })
    }),
    ("a function", DropCause::Function, |group| {
        Box::pin(async move {
            let mut task = Box::pin(stays(group));
            assert!(futures_util::poll!(&mut task).is_pending());
            drop(task);
        })
    }),
    ("a function, unpolled", DropCause::Function, |group| Box::pin(async move { drop(stays(group)) })),
];

/// The futures of these are dropped by the runtime: they are whole tasks.
const OF_RUNTIME: [&str; 2] = ["timeout of a task", "a panic beside it"];

#[test]
fn tasks_know_who_dropped_them() {
    in_child(|| {
        let Some(_on) = on() else { return };
        let runtime = runtime();
        for (name, _, cancel) in KINDS {
            let group = Group::new(name);
            runtime.block_on(async {
                let all: Vec<_> = (0..each()).map(|_| tokio::spawn(cancel(group))).collect();
                for one in all {
                    one.await.unwrap();
                }
            });
            assert_eq!(group.read().outcomes.cancelled, each(), "{name}");
        }
        let group = Group::new("shut down");
        for _ in 0..each() {
            runtime.spawn(stays(group));
        }
        // Dropped by the workers; those of which nobody has polled wait in a queue.
        drop(runtime);
        let seen = Seen::now();
        for (name, cause, _) in KINDS {
            seen.assert_dropped(name, cause, cause.is_at_function() && !OF_RUNTIME.contains(&name));
        }
        seen.assert_dropped("shut down", DropCause::Shutdown, false);
        let unpolled = seen.of("a function, unpolled");
        assert!(unpolled.iter().all(|row| row.waited == Waited::NotBegun && row.place == 0), "{unpolled:?}");
        for row in seen.of("timeout") {
            let leaf = &seen.names[&row.place];
            assert!(leaf.iter().any(|frame| frame.function.contains("Sleep")), "{leaf:?}");
            assert!(row.waited == Waited::Awaiting && row.more_places == 0, "{row:?}");
            assert!(row.ages.count() == row.requests && row.ages.max_ns >= 1_000_000, "{row:?}");
        }
    });
}

#[test]
fn requests_from_before_have_no_age() {
    in_child(|| {
        let group = Group::new("early");
        let mut early = Box::pin(group.instrument(pending::<()>()));
        let mut poll = || early.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        assert!(poll().is_pending());
        let Some(_on) = on() else { return };
        drop(early);
        let seen = Seen::now();
        let [row] = seen.of("early")[..] else { panic!("one row") };
        assert_eq!((row.requests, row.ages.count(), row.place, row.waited), (1, 0, 0, Waited::Unknown));
    });
}

#[test]
fn parts_and_answered_requests_are_not_among_them() {
    in_child(|| {
        let Some(_on) = on() else { return };
        let group = Group::new("answers");
        runtime().block_on(async {
            group.instrument(async { drop(dormouse::inherit(pending::<()>())) }).await;
            let inside = group.instrument(timeout(SOON, pending::<()>()));
            inside.await.unwrap_err();
            drop(group.connection().instrument(pending::<()>()));
        });
        assert_eq!((Seen::now().of("answers").len(), group.read().requests), (0, 2));
    });
}

async fn impatient(request: Request, next: Next) -> Response {
    match timeout(SOON, next.run(request)).await {
        Ok(response) => response,
        Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
    }
}

async fn stuck() {
    sleep(HANG).await;
}

async fn endless() -> Body {
    Body::from_stream(stream::unfold((), |()| async {
        yield_now().await;
        Some((Ok::<_, std::io::Error>(Bytes::from_static(&[7; 4096])), ()))
    }))
}

fn app() -> Router {
    let by_path = || {
        GroupLayer::new(|request: &Request| {
            request.extensions().get::<MatchedPath>().unwrap().as_str().to_owned().into()
        })
    };
    let tower = (HandleErrorLayer::new(|_| async { StatusCode::REQUEST_TIMEOUT }), TimeoutLayer::new(SOON));
    let outside = Router::new().route("/outside", get(stuck)).layer(by_path()).layer(from_fn(impatient));
    let layered = Router::new().route("/layered", get(stuck)).layer(by_path()).layer(tower);
    let inside = Router::new().route("/inside", get(stuck)).layer(from_fn(impatient)).layer(by_path());
    let gone = ["/gone", "/reset"].iter().fold(Router::new(), |app, path| app.route(path, any(stuck)));
    let gone = gone.route("/endless", get(endless)).layer(by_path());
    outside.merge(layered).merge(inside).merge(gone)
}

pub(crate) fn ask(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: tea\r\n\r\n").unwrap();
    stream
}

/// Sends requests by HTTP/2 and resets their streams once they are served.
pub(crate) async fn reset(address: SocketAddr, path: &str, group: Group) {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut send, connection) =
        http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let serving = tokio::spawn(connection);
    for n in 1..=each() {
        let request = Request::post(format!("http://{address}{path}")).body(Body::empty()).unwrap();
        let answer = send.send_request(request);
        let served = async {
            while group.read().started < n {
                sleep(SOON).await;
            }
        };
        drop(select(Box::pin(answer), Box::pin(served)).await);
    }
    while group.read().alive > 0 {
        sleep(SOON).await;
    }
    serving.abort();
}

#[test]
fn servers_know_who_dropped_their_requests() {
    in_child(|| {
        let Some(_on) = on() else { return };
        let runtime = Arc::new(runtime());
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(listener, app()).await });
        for path in ["/outside", "/layered", "/inside", "/gone", "/endless"] {
            let group = Group::new(path);
            for n in 1..=each() {
                let mut stream = ask(address, path);
                eventually(|| group.read().started >= n);
                if path != "/gone" {
                    assert_ne!(stream.read(&mut [0; 512]).unwrap(), 0, "{path}");
                }
            }
            eventually(|| group.read().alive == 0);
        }
        runtime.block_on(reset(address, "/reset", Group::new("/reset")));
        let seen = Seen::now();
        for path in ["/outside", "/layered"] {
            assert_eq!(Group::new(path).read().outcomes.cancelled, each(), "{path}");
        }
        seen.assert_dropped("/outside", DropCause::Timeout, true);
        seen.assert_dropped("/layered", DropCause::Timeout, false);
        for path in ["/gone", "/endless", "/reset"] {
            assert_eq!(Group::new(path).read().outcomes.cancelled, each(), "{path}");
            seen.assert_dropped(path, DropCause::Connection, false);
        }
        let inside = Group::new("/inside").read().outcomes;
        assert_eq!((inside.client_error, inside.cancelled, seen.of("/inside").len()), (each(), 0, 0));
    });
}
