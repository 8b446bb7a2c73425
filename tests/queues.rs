//! The queues in which tasks of a live service wait, as the command shows them.
//!
//! The service is this program, run once more: its pools are empty, its channel and its pool of
//! threads are full.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Waker};
use std::time::Duration;

use dormouse::Group;
use dormouse::sync::PermitQueue;
use dormouse_testkit::eventually;
use serde_json::Value;
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit, mpsc};
use tokio::time::timeout;

use crate::support::run;
use crate::tasks::TaskService;

/// The line of this file that ends with a mark.
fn line_of(mark: &str) -> u64 {
    let mut lines = include_str!("queues.rs").lines().zip(1..);
    lines.find(|(line, _)| line.ends_with(mark)).expect("a marked line").1
}

static POTS: Semaphore = Semaphore::const_new(0);
static POOL: Pool = Pool(Semaphore::const_new(1));
static CONNECTIONS: PermitQueue = PermitQueue::new("connections");

/// A pool in the style of others.
struct Pool(Semaphore);

impl Pool {
    async fn get(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        self.0.acquire().await
    }
}

/// Things that pools of others hand out.
struct Cups;

impl deadpool::managed::Manager for Cups {
    type Type = ();
    type Error = Infallible;

    async fn create(&self) -> Result<(), Infallible> {
        Ok(())
    }

    async fn recycle(
        &self,
        (): &mut (),
        _: &deadpool::managed::Metrics,
    ) -> deadpool::managed::RecycleResult<Infallible> {
        Ok(())
    }
}

impl bb8::ManageConnection for Cups {
    type Connection = ();
    type Error = Infallible;

    async fn connect(&self) -> Result<(), Infallible> {
        Ok(())
    }

    async fn is_valid(&self, (): &mut ()) -> Result<(), Infallible> {
        Ok(())
    }

    fn has_broken(&self, (): &mut ()) -> bool {
        false
    }
}

fn spawn(group: &'static str, work: impl Future<Output = ()> + Send + 'static) {
    Group::new(group).scope(|| dormouse::tokio::spawn(work));
}

fn park() {
    loop {
        std::thread::park();
    }
}

/// Waits again and again: where a task waits is known from its next poll on.
const AGAIN: Duration = Duration::from_millis(50);

/// Waits in queues of other crates, as their users do.
async fn wait_in_others() {
    let deadpool = deadpool::managed::Pool::<Cups>::builder(Cups).max_size(1).build().expect("a pool");
    std::mem::forget(deadpool.get().await);
    spawn("deadpool", async move {
        loop {
            let _ = timeout(AGAIN, async {
                deadpool.get().await.is_ok() // deadpool
            })
            .await;
        }
    });
    let bb8 = bb8::Pool::builder().max_size(1).build(Cups).await.expect("a pool");
    std::mem::forget(bb8.get_owned().await);
    spawn("bb8", async move {
        loop {
            let _ = timeout(AGAIN, async {
                bb8.get().await.is_ok() // bb8
            })
            .await;
        }
    });
    let (sender, receiver) = async_channel::bounded(1);
    sender.send(0).await.expect("the receiver is there");
    spawn("async-channel", async move {
        let _receiver = receiver;
        loop {
            let _ = timeout(AGAIN, async {
                sender.send(1).await.is_ok() // async-channel
            })
            .await;
        }
    });
    let (sender, receiver) = flume::bounded(1);
    sender.send_async(0).await.expect("the receiver is there");
    spawn("flume", async move {
        let _receiver = receiver;
        loop {
            let _ = timeout(AGAIN, async {
                sender.send_async(1).await.is_ok() // flume
            })
            .await;
        }
    });
}

/// A lock that nobody wraps.
static SHELF: Mutex<()> = Mutex::new(());

/// Blocks a thread for ever, in a poll.
fn block(group: &'static str) {
    std::mem::forget(SHELF.lock());
    std::thread::spawn(move || {
        let mut work = pin!(Group::new(group).instrument(async {
            drop(SHELF.lock()); // futex
        }));
        work.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    });
}

/// The service: it ends with its standard input.
#[test]
#[ignore = "the service of other tests"]
fn service() {
    dormouse::init().expect("an agent");
    let work = async {
        let (sender, _receiver) = mpsc::channel(1);
        sender.send(0).await.expect("the receiver is there");
        for _ in 0..3 {
            spawn("GET /tea", async {
                loop {
                    let _ = timeout(AGAIN, async {
                        POTS.acquire().await.is_ok() // semaphore
                    })
                    .await;
                }
            });
        }
        spawn("POST /orders", async move {
            loop {
                let _ = timeout(AGAIN, async {
                    sender.send(1).await.is_ok() // channel
                })
                .await;
            }
        });
        let connection = CONNECTIONS.take(POOL.get());
        spawn("GET /blend", async {
            let _connection = connection.await;
            pending::<()>().await;
        });
        // Each begins to wait after the one before it has what it waits for.
        while POOL.0.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        spawn("GET /menu", async {
            let _connection = CONNECTIONS.take(POOL.get()).await; // connection
        });
        let (begins, begun) = tokio::sync::oneshot::channel();
        Group::new("POST /report").scope(|| {
            dormouse::tokio::spawn_blocking(|| {
                let _ = begins.send(());
                park();
            })
        });
        begun.await.expect("the report begins");
        Group::new("GET /file").scope(|| {
            dormouse::tokio::spawn_blocking(|| ()); // thread
        });
        wait_in_others().await;
        block("GET /shelf");
        // A pool's thread that has nothing to do.
        Group::new("rows").spawn_thread(park).expect("a thread");
        println!("ready");
        pending::<()>().await;
    };
    std::thread::spawn(|| {
        let _end = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().max_blocking_threads(1).build().expect("a runtime").block_on(work);
}

/// Queues of other crates: kind, the line's mark, and the pool.
const OTHERS: [(&str, &str, Option<&str>); 4] = [
    ("pool", "// deadpool", Some("deadpool")),
    ("pool", "// bb8", Some("bb8")),
    ("channel", "// async-channel", None),
    ("channel", "// flume", None),
];

#[test]
fn queues_show_waits_and_holders() {
    let service =
        TaskService::start_test("queues::service", &[("DORMOUSE_LOCKS", "1"), ("DORMOUSE_WAITS", "1")]);
    let mut document = Value::Null;
    let at = |document: &Value, kind: &str, mark: &str| {
        let queues = document["queues"].as_array().cloned().expect("places are noted");
        let is_its = |queue: &Value| queue["kind"] == kind && queue["place"]["line"] == line_of(mark);
        queues.into_iter().find(is_its)
    };
    // The functions of a place are learned when it is seen first.
    eventually(|| {
        document = run(["--json", "locks", &service.target(), "--for", "500ms"]).json();
        let semaphore = at(&document, "semaphore", "// semaphore");
        let is_whole = semaphore.is_some_and(|queue| queue["waiting"] == 3);
        let has_futex = document["futexes"].as_array().is_some_and(|all| !all.is_empty());
        let is_there = |&(kind, mark, ..): &(&str, &str, _)| at(&document, kind, mark).is_some();
        is_whole
            && has_futex
            && at(&document, "channel", "// channel").is_some()
            && OTHERS.iter().all(is_there)
    });
    for (kind, mark, pool) in OTHERS {
        let queue = at(&document, kind, mark).expect("it was there");
        let group = mark.trim_start_matches("// ");
        assert_eq!((&queue["by"][0]["group"], &queue["waiting"]), (&group.into(), &1.into()), "{queue}");
        assert_eq!(queue["pool"].as_str(), pool, "{queue}");
    }
    let semaphore = at(&document, "semaphore", "// semaphore").expect("a queue");
    assert_eq!(semaphore["by"], serde_json::json!([{ "group": "GET /tea", "tasks": 3 }]), "{semaphore}");
    assert_eq!(semaphore["tasks"].as_array().map(Vec::len), Some(3), "{semaphore}");
    let channel = at(&document, "channel", "// channel").expect("a queue");
    assert_eq!(channel["by"][0]["group"], "POST /orders", "{channel}");
    let [futex] = &document["futexes"].as_array().expect("futexes")[..] else { panic!("{document}") };
    assert_eq!((&futex["by"], &futex["waiting"]), (&serde_json::json!(["GET /shelf"]), &1.into()), "{futex}");
    assert_eq!((&futex["place"]["line"], &futex["owner_tid"]), (&line_of("// futex").into(), &Value::Null));
    let user = |of: &str, group: &str| -> Value {
        let mut users = document[of].as_array().expect("users").iter();
        users.find(|user| user["group"] == group).cloned().unwrap_or_else(|| panic!("{group}: {document}"))
    };
    for (name, holder, waiter, mark) in [
        ("connections", "GET /blend", "GET /menu", "// connection"),
        ("blocking pool", "POST /report", "GET /file", "// thread"),
    ] {
        let (holder, waiter) = (user("holders", holder), user("waiters", waiter));
        assert_eq!(holder["address"], waiter["address"], "{holder} {waiter}");
        assert_eq!((&holder["place"]["name"], &holder["place"]["kind"]), (&name.into(), &"permit".into()));
        assert_eq!(waiter["place"]["line"], line_of(mark), "{waiter}");
    }
    let is_listed = document["queues"].to_string().contains("GET /menu");
    assert!(!is_listed, "it is known with its holder: {document}");

    let text = run(["locks", &service.target(), "--for", "500ms"]).stdout;
    let line =
        |of: &str| text.lines().find(|line| line.contains(of)).unwrap_or_else(|| panic!("{of}: {text}"));
    assert!(line("connections (permit)").contains("GET /menu"), "{text}");
    assert!(line("GET /blend (task").contains("at queues.rs:"), "{text}");

    // The same poll stalls in its futex all the time, and so does blocking work of a request.
    let doctor = run(["doctor", &service.target()]).stdout;
    let told = |check: &str, group: &str| {
        let is_its = |line: &&str| line.contains(check) && line.contains(&format!("  {group}: its "));
        doctor.lines().find(is_its).is_some_and(|line| line.contains(" % in futex"))
    };
    assert!(told("groups.stalls", "GET /shelf") && told("groups.stalls", "POST /report"), "{doctor}");
    assert!(doctor.contains("for GET /shelf: look at `dormouse locks`"), "{doctor}");
    assert!(told("groups.idle", "rows") && !told("groups.stalls", "rows"), "{doctor}");
}
