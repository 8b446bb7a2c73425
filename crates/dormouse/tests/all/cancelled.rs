//! The place where cancelled requests waited, and the code that dropped them, are right in 99 of
//! 100, for each known end.
#![cfg(all(feature = "axum", feature = "hyper", feature = "symbols", feature = "tower"))]

use std::collections::HashMap;
use std::future::pending;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::{Arc, Barrier};
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
use dormouse::waits::{LivingTask, Placing, TaskState, Waiting, living};
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
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
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

impl Seen {
    /// Asserts that 99 of 100 cancelled requests of the group awaited something whose stack has a
    /// function of that name, and nothing else.
    #[track_caller]
    pub(crate) fn assert_waited(&self, group: &str, function: &str) {
        let rows = self.of(group);
        let is_right = |row: &&&Cancellation| {
            let place = self.names.get(&row.place).map_or(&[][..], Vec::as_slice);
            let is_named = place.iter().any(|frame| frame.function.contains(function));
            is_named && row.waited == Waited::Awaiting && row.more_places == 0
        };
        let [right, all] =
            [&mut rows.iter().filter(is_right) as &mut dyn Iterator<Item = _>, &mut rows.iter()]
                .map(|rows| rows.map(|row| row.requests).sum::<u64>());
        assert!(all > 0 && right * 100 >= all * 99, "{group}: {right} of {all} in {function}: {rows:?}");
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
        eventually(|| awaiting(group) == each());
        // A task that was still being polled would be dropped as an aborted one is.
        until_idle(&runtime);
        drop(runtime);
        let idle = Builder::new_current_thread().build().unwrap();
        for _ in 0..each() {
            idle.spawn(stays(group));
        }
        // Of these nobody has polled.
        drop(idle);
        let seen = Seen::now();
        for (name, cause, _) in KINDS {
            seen.assert_dropped(name, cause, cause.is_at_function() && !OF_RUNTIME.contains(&name));
        }
        seen.assert_dropped("shut down", DropCause::Shutdown, false);
        let unpolled = seen.of("a function, unpolled");
        assert!(unpolled.iter().all(|row| row.waited == Waited::NotBegun && row.place == 0), "{unpolled:?}");
        seen.assert_waited("timeout", "Sleep");
        for row in seen.of("timeout") {
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

/// A handler begins to wait.
pub(crate) static STUCK: Notify = Notify::const_new();

pub(crate) async fn stuck() {
    STUCK.notify_waiters();
    sleep(HANG).await;
}

/// Requests that are open when their server ends, all at once.
pub(crate) fn last_ones() -> u64 {
    each().min(100)
}

/// Gives up what has begun to wait.
async fn gives_up(request: Request, next: Next) -> Response {
    let is_aborted = request.uri().path() == "/aborted";
    let (answer, begins) = (next.run(request), STUCK.notified());
    if is_aborted {
        let task = tokio::spawn(answer);
        begins.await;
        task.abort();
        assert!(task.await.is_err_and(|error| error.is_cancelled()));
    } else {
        tokio::select! {
            biased;
            answer = answer => return answer,
            () = begins => {}
        }
    }
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}

async fn endless() -> Body {
    Body::from_stream(stream::unfold((), |()| async {
        yield_now().await;
        Some((Ok::<_, std::io::Error>(Bytes::from_static(&[7; 4096])), ()))
    }))
}

/// Groups have the names of the server and of the path.
fn app(server: &'static str) -> Router {
    let by_path = || {
        GroupLayer::new(move |request: &Request| {
            let path = request.extensions().get::<MatchedPath>().unwrap();
            format!("{server} {}", path.as_str()).into()
        })
    };
    let tower = (HandleErrorLayer::new(|_| async { StatusCode::REQUEST_TIMEOUT }), TimeoutLayer::new(SOON));
    let outside = Router::new().route("/outside", get(stuck)).layer(by_path()).layer(from_fn(impatient));
    let layered = Router::new().route("/layered", get(stuck)).layer(by_path()).layer(tower);
    let inside = Router::new().route("/inside", get(stuck)).layer(from_fn(impatient)).layer(by_path());
    let given_up = Router::new().route("/lost", get(stuck)).route("/aborted", get(stuck));
    let given_up = given_up.layer(by_path()).layer(from_fn(gives_up));
    let gone =
        ["/gone", "/reset", "/last"].iter().fold(Router::new(), |app, path| app.route(path, any(stuck)));
    let gone = gone.route("/endless", get(endless)).layer(by_path());
    outside.merge(layered).merge(inside).merge(given_up).merge(gone)
}

/// Serves by axum, or by hyper alone.
async fn serve(server: &'static str, listener: TcpListener) {
    if server == "axum" {
        return axum::serve(listener, app(server)).await.unwrap();
    }
    while let Ok((stream, _)) = listener.accept().await {
        let service = TowerToHyperService::new(app(server));
        tokio::spawn(async move {
            let builder = auto::Builder::new(TokioExecutor::new());
            builder.serve_connection(TokioIo::new(stream), service).await
        });
    }
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

/// Waits until no worker of a runtime with two of them is in the middle of a poll: each has to run
/// one of two tasks that wait for one another.
pub(crate) fn until_idle(runtime: &Runtime) {
    let both = Arc::new(Barrier::new(2));
    let tasks = [both.clone(), both].map(|both| runtime.spawn(async move { _ = both.wait() }));
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
}

/// The number of tasks of a group that await something.
pub(crate) fn awaiting(group: Group) -> u64 {
    let is_one = |task: &LivingTask| task.group == group.id() && task.state == TaskState::Awaiting;
    living().filter(is_one).count() as u64
}

fn servers_know(server: &'static str) {
    let Some(_on) = on() else { return };
    let (clients, service) = (runtime(), runtime());
    let listener = service.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    service.spawn(serve(server, listener));
    let name = |path: &str| format!("{server} {path}");
    for path in ["/outside", "/layered", "/inside", "/lost", "/aborted", "/gone", "/endless"] {
        let group = Group::new(&name(path));
        for _ in 1..=each() {
            let mut stream = ask(address, path);
            if path == "/gone" {
                eventually(|| awaiting(group) == 1);
            } else {
                assert_ne!(stream.read(&mut [0; 512]).unwrap(), 0, "{path}");
            }
            drop(stream);
            eventually(|| group.read().alive == 0);
        }
    }
    clients.block_on(reset(address, "/reset", Group::new(&name("/reset"))));
    let last = Group::new(&name("/last"));
    let streams: Vec<_> = (0..last_ones()).map(|_| ask(address, "/last")).collect();
    eventually(|| awaiting(last) == last_ones());
    // A connection that was still being polled would be dropped as an aborted task is.
    until_idle(&service);
    drop(service);
    eventually(|| last.read().alive == 0);
    drop(streams);
    let seen = Seen::now();
    for (path, cause) in [
        ("/outside", DropCause::Timeout),
        ("/layered", DropCause::Timeout),
        ("/lost", DropCause::Select),
        ("/aborted", DropCause::Abort),
        ("/gone", DropCause::Connection),
        ("/endless", DropCause::Connection),
        ("/reset", DropCause::Connection),
        ("/last", DropCause::Shutdown),
    ] {
        let requests = if path == "/last" { last_ones() } else { each() };
        assert_eq!(Group::new(&name(path)).read().outcomes.cancelled, requests, "{path}");
        seen.assert_dropped(&name(path), cause, ["/outside", "/lost"].contains(&path));
        if path != "/endless" {
            seen.assert_waited(&name(path), "Sleep");
        }
    }
    let inside = Group::new(&name("/inside")).read().outcomes;
    assert_eq!((inside.client_error, inside.cancelled, seen.of(&name("/inside")).len()), (each(), 0, 0));
}

#[test]
fn axum_knows_who_dropped_its_requests() {
    in_child(|| servers_know("axum"));
}

#[test]
fn hyper_knows_who_dropped_its_requests() {
    in_child(|| servers_know("hyper"));
}
