//! Times of tasks by group: each wait in its own column, over the wire, and with the connection
//! that asked. Each test is a child: times are taken in the whole process.
#![cfg(not(dormouse_fallback))]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dormouse::clock::EPOCH_NS;
use dormouse::waits::buckets::EXPORTED_SCALE;
use dormouse::waits::{GroupWaits, Waiting, is_on};
use dormouse::{Event, Group, TraceContext};
use dormouse_protocol::{
    Code, CountRequest, GroupRow, HelloRequest, LeftOut, Op, PROTOCOL, Request, Response, Stat, StatPart,
    StatRequest, WaitsBegun, WaitsRequest, WaitsRow, WireError, WireId,
};
use dormouse_testkit::{Answer, Filter, HANG, eventually, in_child, spin_for, thread_cpu};
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, Notify};
use tokio::time::sleep;

/// Long enough to stand out of what a clock may be wrong by.
const LONG: Duration = Duration::from_millis(40);

/// The times that a request has measured of itself.
#[derive(Debug, Default, Clone, Copy)]
struct Measured {
    /// Around each wait, from its poll to the poll that it ended with.
    waited: Duration,
    /// Inside of polls: on a CPU, and beside it.
    on_cpu: Duration,
    blocked: Duration,
}

impl Measured {
    async fn wait(&mut self, what: impl Future) {
        let begun = Instant::now();
        what.await;
        self.waited += begun.elapsed();
    }

    fn poll(&mut self, what: impl FnOnce()) {
        let (begun, cpu) = (Instant::now(), thread_cpu());
        what();
        let on_cpu = thread_cpu().saturating_sub(cpu);
        self.on_cpu += on_cpu;
        self.blocked += begun.elapsed().saturating_sub(on_cpu);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

/// The waits of `group` during `work`, with its CPU time.
fn during<T>(group: Group, work: impl FnOnce() -> T) -> (GroupWaits, Duration, T) {
    let _waiting = Waiting::start().unwrap();
    let _counting = dormouse::start_counting(&[Event::TASK_CLOCK]).unwrap();
    let (before, cpu) = (group.read_waits(), group.read().cpu);
    let done = work();
    (group.read_waits().since(&before), group.read().cpu.saturating_sub(cpu), done)
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// For roundings of each time.
const SLACK_NS: u64 = 1_000;

#[test]
fn each_time_stands_in_its_own_column() {
    in_child(|| {
        let route = Group::new("GET /route");
        let lock = Arc::new(Mutex::new(()));
        let request = async |lock: &Mutex<()>| {
            let (entered, mut own) = (Instant::now(), Measured::default());
            own.wait(sleep(LONG)).await;
            own.poll(|| spin_for(LONG));
            own.wait(lock.lock()).await;
            own.poll(|| thread::sleep(LONG));
            (entered, own)
        };
        let (waits, cpu, (whole, first, own)) = during(route, || {
            runtime().block_on(async {
                let guard = Arc::clone(&lock).lock_owned().await;
                tokio::spawn(async move {
                    sleep(3 * LONG).await;
                    drop(guard);
                });
                let begun = Instant::now();
                let (entered, own) = route.instrument(request(&lock)).await;
                (begun.elapsed(), entered - begun, own)
            })
        });
        let told = format!("{waits:?} {cpu:?} {whole:?} {own:?}");
        let waited = waits.runnable_ns + waits.await_ns;
        let sum = waits.poll_ns + waited;
        // Between what the request saw of itself and what was seen around it.
        let inner = own.waited + own.on_cpu + own.blocked;
        assert!((ns(inner)..=ns(whole) + SLACK_NS).contains(&(sum + SLACK_NS)), "{told}");
        // The request is runnable until its first poll, which may be the first to use the clock.
        assert!(waited <= ns(first + own.waited) + SLACK_NS, "a part of a poll has been awaited: {told}");
        assert!(waits.poll_ns + SLACK_NS >= ns(own.on_cpu + own.blocked), "{told}");
        // The sleep is awaited, from the end of the poll that began it.
        let beside = waits.poll_ns.saturating_sub(ns(own.on_cpu + own.blocked));
        assert!(waits.await_ns + beside + SLACK_NS >= ns(LONG), "{told}");
        // The clock of groups is wrong by an epoch at most.
        assert!(ns(cpu) + EPOCH_NS >= ns(own.on_cpu), "{told}");
        let stalled = waits.poll_ns.saturating_sub(ns(cpu));
        assert!(stalled + EPOCH_NS >= ns(own.blocked), "{told}");
        assert!(ns(cpu) <= waits.poll_ns + EPOCH_NS, "{told}");
        // One request, with its latency.
        let latency = &waits.requests;
        assert_eq!(latency.count(), 1, "{told}");
        assert!((sum.saturating_sub(SLACK_NS)..=ns(whole) + SLACK_NS).contains(&latency.max_ns), "{told}");
        assert!(latency.max_task != 0 && latency.quantile_ns(0.99) <= Some(latency.max_ns), "{told}");
    });
}

#[test]
fn scopes_have_their_whole_time_beside_the_account() {
    in_child(|| {
        let group = Group::new("scope");
        let (waits, cpu, spun) = during(group, || {
            // The clock asks the kernel at the end; and again, within a poll of the group.
            let begun = Instant::now();
            group.scope(|| spin_for(LONG));
            runtime().block_on(group.instrument(async { group.scope(|| spin_for(LONG)) }));
            begun.elapsed()
        });
        let told = format!("{waits:?} {cpu:?} {spun:?}");
        assert!(waits.poll_ns + EPOCH_NS >= 2 * ns(LONG) && waits.poll_ns <= ns(spun), "{told}");
        assert!(waits.await_ns + waits.runnable_ns <= ns(spun) - 2 * ns(LONG) + EPOCH_NS, "{told}");
    });
}

#[test]
fn a_woken_task_is_runnable_behind_a_poll() {
    in_child(|| {
        let (late, hog) = (Group::new("late"), Group::new("hog"));
        let bell = Arc::new(Notify::new());
        let (waits, _, spun) = during(late, || {
            runtime().block_on(async {
                let awaited = Arc::clone(&bell);
                let waiter = tokio::spawn(late.instrument(async move { awaited.notified().await }));
                // It waits when this one is polled again.
                tokio::task::yield_now().await;
                let spun = hog.scope(|| {
                    bell.notify_one();
                    let begun = Instant::now();
                    spin_for(LONG);
                    begun.elapsed()
                });
                waiter.await.unwrap();
                spun
            })
        });
        assert!(waits.runnable_ns >= ns(spun), "{waits:?} {spun:?}");
        assert!(waits.delays.max_ns + SLACK_NS >= ns(spun), "{waits:?} {spun:?}");
    });
}

#[test]
fn a_scope_is_always_in_a_poll() {
    in_child(|| {
        let (outer, inner) = (Group::new("outer"), Group::new("inner"));
        let (of_outer, cpu, (whole, blocked)) = during(outer, || {
            let begun = Instant::now();
            let blocked = outer.scope(|| {
                let mut own = Measured::default();
                own.poll(|| thread::sleep(LONG));
                // The time of another group is not this one's.
                inner.scope(|| thread::sleep(LONG));
                own.blocked
            });
            (begun.elapsed(), blocked)
        });
        let of_inner = inner.read_waits();
        let told = format!("{of_outer:?} {of_inner:?} {cpu:?} {whole:?} {blocked:?}");
        assert!(
            of_outer.poll_ns + SLACK_NS >= ns(blocked) && of_inner.poll_ns + SLACK_NS >= ns(LONG),
            "{told}"
        );
        assert!(of_outer.poll_ns + of_inner.poll_ns <= ns(whole) + SLACK_NS, "{told}");
        // From its making to its run it is runnable, for a moment.
        let waited = of_outer.runnable_ns + of_outer.await_ns;
        assert!(waited + of_outer.poll_ns + of_inner.poll_ns <= ns(whole) + SLACK_NS, "{told}");
        assert_eq!(of_outer.polls.count(), 0, "a scope is no poll");
    });
}

#[test]
fn a_switched_task_has_no_times() {
    in_child(|| {
        let group = Group::new("fibers");
        let (waits, ..) = during(group, || {
            let mut task = group.task();
            task.switch_to();
            thread::sleep(LONG);
            dormouse::idle();
        });
        assert_eq!(waits.poll_ns + waits.await_ns + waits.runnable_ns, 0, "{waits:?}");
    });
}

/// A client of the agent.
pub(crate) struct Client(BufReader<UnixStream>);

impl Client {
    pub(crate) fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        let mut client = Self(BufReader::new(stream));
        let hello = client.ask::<serde_json::Value>(HelloRequest { client: "a test".into(), notices: false });
        let ops = hello.unwrap()["ops"].clone();
        assert!(ops.as_array().unwrap().iter().any(|op| op == "waits"), "{ops}");
        client
    }

    pub(crate) fn ask<T: DeserializeOwned>(&mut self, request: impl Into<Op>) -> Result<T, WireError> {
        let request = serde_json::to_string(&Request { v: PROTOCOL, id: 1, op: request.into() }).unwrap();
        writeln!(self.0.get_mut(), "{request}").unwrap();
        let mut answer = String::new();
        self.0.read_line(&mut answer).unwrap();
        let answer: Response<T> = serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{e}: {answer}"));
        answer.ok.ok_or_else(|| answer.error.unwrap())
    }

    fn begin(&mut self) -> Result<WaitsBegun, WireError> {
        self.ask(WaitsRequest::default())
    }

    pub(crate) fn row(&mut self, group: Group) -> Option<Box<WaitsRow>> {
        let stat: Stat = self.ask(StatRequest::default()).unwrap();
        let find = |row: GroupRow| (row.id == group.id()).then_some(row.waits);
        stat.groups.into_iter().find_map(find).unwrap()
    }
}

/// An agent in a directory of its own, which is there as long as the test.
pub(crate) fn init() -> PathBuf {
    let place = tempfile::tempdir().unwrap().keep();
    // SAFETY: no other thread of this child reads the environment.
    unsafe { std::env::set_var("DORMOUSE_RUNTIME_DIR", &place) };
    dormouse::init().unwrap().path().to_owned()
}

#[test]
fn only_who_asks_is_told_times() {
    in_child(|| {
        let (group, socket) = (Group::new("tea"), init());
        let (mut asks, mut looks) = (Client::connect(&socket), Client::connect(&socket));
        assert_eq!((asks.row(group), is_on()), (None, false));
        asks.begin().unwrap();
        assert!(is_on());
        runtime().block_on(group.instrument(async { sleep(LONG).await }));
        let row = asks.row(group).unwrap();
        // The sleep begins in a poll, which a busy machine may interrupt behind its beginning.
        let since_its_begin = row.poll_ns + row.await_ns + row.runnable_ns;
        assert!(since_its_begin >= ns(LONG) && row.on_cpu_ns.is_some(), "{row:?}");
        assert_eq!(row.requests.buckets.iter().map(|(_, n)| n).sum::<u64>(), 1, "{row:?}");
        assert_eq!(looks.row(group), None);
        // A client that counts nothing does not know what was on a CPU.
        let _: serde_json::Value = asks.ask(CountRequest { events: Vec::new() }).unwrap();
        assert_eq!(asks.row(group).unwrap().on_cpu_ns, None);
    });
}

#[test]
fn who_asks_is_told_exemplars() {
    in_child(|| {
        let (group, socket) = (Group::new("tea"), init());
        let (mut asks, mut looks) = (Client::connect(&socket), Client::connect(&socket));
        let request = WaitsRequest { exemplars: true, ..WaitsRequest::default() };
        let _: WaitsBegun = asks.ask(request).unwrap();
        looks.begin().unwrap();
        let trace = TraceContext::new([0xab; 16], [0xcd; 8]).unwrap();
        let mut task = 0;
        group.scope(|| {
            task = dormouse::events::current_task();
            assert!(dormouse::set_trace_context(trace));
            spin_for(Duration::from_millis(1));
        });
        let requests = asks.row(group).unwrap().requests;
        let [it] = &requests.exemplars[..] else { panic!("{requests:?}") };
        assert_eq!(requests.buckets, [(it.index, 1)], "of the same bucket");
        assert_eq!((it.task, it.duration_ns), (task, requests.max_ns));
        assert_eq!(it.trace_id, Some(WireId([0xab; 16])));
        assert_eq!(it.span_id, Some(WireId([0xcd; 8])));
        assert_eq!(asks.row(group).unwrap().requests.exemplars, requests.exemplars, "also its time");
        assert_eq!(looks.row(group).unwrap().requests.exemplars, []);
        let WaitsRow { requests, polls, .. } = *asks.row(group).unwrap();
        let [requests, polls] = [requests, polls].map(|row| row.at_scale(EXPORTED_SCALE));
        for (part, has_exemplars, has_polls) in [
            (StatPart::Requests, false, false),
            (StatPart::Exemplars, true, false),
            (StatPart::Histograms, true, true),
        ] {
            let mut short: Stat =
                asks.ask(StatRequest { part: Some(part), ..StatRequest::default() }).unwrap();
            assert!(short.threads.is_empty() && short.groups.is_empty() && short.thread_count() > Some(0));
            short.expand(usize::MAX);
            let row = short.groups.into_iter().find(|row| row.id == group.id()).unwrap().waits.unwrap();
            assert_eq!(row.requests.buckets, requests.buckets, "{part:?}");
            let exemplars = if has_exemplars { &requests.exemplars[..] } else { &[] };
            assert_eq!(row.requests.exemplars, exemplars, "{part:?}");
            let polls = if has_polls { &polls.buckets[..] } else { &[] };
            assert_eq!(row.polls.buckets, polls, "{part:?}");
        }
    });
}

#[test]
fn exemplars_that_a_client_has_are_left_out() {
    in_child(|| {
        let (group, mut asks) = (Group::new("tea"), Client::connect(&init()));
        let _: WaitsBegun = asks.ask(WaitsRequest { exemplars: true, ..WaitsRequest::default() }).unwrap();
        group.scope(|| spin_for(Duration::from_millis(1)));
        let mut read = |exemplars_since_ns| {
            let part = Some(StatPart::Exemplars);
            let wish = StatRequest { part, exemplars_since_ns, ..StatRequest::default() };
            let mut stat: Stat = asks.ask(wish).unwrap();
            stat.expand(usize::MAX);
            stat
        };
        let exemplars = |stat: &Stat| {
            let row = stat.groups.iter().find(|row| row.id == group.id()).unwrap();
            row.waits.as_ref().unwrap().requests.exemplars.clone()
        };
        let before = read(None);
        assert_eq!(exemplars(&before).len(), 1);
        // It was written less than a second before, so it may have come since.
        assert_eq!(exemplars(&read(Some(before.mono_ns))), exemplars(&before));
        let mut later = read(Some(u64::MAX));
        assert_eq!(exemplars(&later), []);
        later.keep_exemplars(&before);
        assert_eq!(exemplars(&later), exemplars(&before));
    });
}

#[test]
fn answers_fit_what_their_client_reads() {
    in_child(|| {
        let (group, mut asks) = (Group::new("tea"), Client::connect(&init()));
        let _: WaitsBegun = asks.ask(WaitsRequest { exemplars: true, ..WaitsRequest::default() }).unwrap();
        let work = group.instrument(async { spin_for(Duration::from_millis(1)) });
        runtime().block_on(work);
        let mut read = |most_bytes| {
            let part = Some(StatPart::Groups);
            let mut stat: Stat =
                asks.ask(StatRequest { part, most_bytes, ..StatRequest::default() }).unwrap();
            stat.expand(usize::MAX);
            let waits = stat.groups.into_iter().find(|row| row.id == group.id()).unwrap().waits.unwrap();
            (stat.left_out, waits.requests.buckets.len(), waits.polls.buckets.len())
        };
        assert_eq!(read(Some(1 << 20)), read(None));
        let (left_out, requests, polls) = read(Some(0));
        let LeftOut { narrow_buckets, exemplars, histograms, .. } = left_out.unwrap();
        assert!(narrow_buckets && histograms, "{left_out:?}");
        assert_eq!((exemplars, requests, polls), (1, 1, 0));
        assert_eq!(read(None), (None, 1, 1), "only who asks for less gets less");
    });
}

#[test]
fn times_end_with_the_last_that_asked() {
    in_child(|| {
        let socket = init();
        let [mut first, mut second] = [(); 2].map(|()| Client::connect(&socket));
        first.begin().unwrap();
        second.begin().unwrap();
        first.begin().unwrap();
        drop(first);
        // It is gone once the agent answers another client after it.
        let _: Stat = second.ask(StatRequest::default()).unwrap();
        assert!(is_on());
        drop(second);
        eventually(|| !is_on());
    });
}

#[test]
fn no_number_goes_back() {
    in_child(|| {
        let (group, socket) = (Group::new("tea"), init());
        let mut client = Client::connect(&socket);
        client.begin().unwrap();
        thread::scope(|scope| {
            let work = scope.spawn(|| {
                runtime().block_on(async {
                    for _ in 0..200 {
                        group.instrument(async { spin_for(Duration::from_micros(200)) }).await;
                        group.instrument(sleep(Duration::from_millis(1))).await;
                    }
                });
            });
            let numbers = |row: &WaitsRow| {
                let count =
                    |n: u64, positive: &[(i32, u64)]| n + positive.iter().map(|(_, n)| n).sum::<u64>();
                let of = [&row.polls, &row.delays, &row.awaits, &row.requests];
                let [a, b, c, d] = of.map(|of| count(of.zero_count, &of.buckets));
                [row.poll_ns, row.runnable_ns, row.await_ns, row.on_cpu_ns.unwrap(), a, b, c, d]
            };
            let mut before = numbers(&client.row(group).unwrap());
            while !work.is_finished() {
                let now = numbers(&client.row(group).unwrap());
                assert!(now.iter().zip(&before).all(|(now, before)| now >= before), "{before:?} {now:?}");
                before = now;
            }
            assert!(before.iter().all(|&n| n > 0), "{before:?}");
        });
    });
}

#[test]
fn without_membarrier_groups_have_counts_and_times() {
    in_child(|| {
        Filter::answer(Answer::Errno(libc::ENOSYS), &[libc::SYS_membarrier]).install();
        let socket = init();
        let group = Group::new("GET /route");
        let mut client = Client::connect(&socket);
        client.begin().unwrap();
        let (waits, cpu, (waited, spun)) = during(group, || {
            runtime().block_on(group.instrument(async {
                let mut own = Measured::default();
                own.wait(sleep(LONG)).await;
                own.poll(|| spin_for(LONG));
                (own.waited, own.on_cpu)
            }))
        });
        let told = format!("{waits:?} {cpu:?} {waited:?} {spun:?}");
        assert_eq!(
            (waits.requests.count(), client.row(group).unwrap().requests.max_ns),
            (1, waits.requests.max_ns)
        );
        assert!(ns(cpu) + EPOCH_NS >= ns(spun) && ns(cpu) <= waits.poll_ns + EPOCH_NS, "{told}");
        assert!(waits.await_ns > 0, "{told}");
    });
}

/// The protection of code, in the third argument of `mprotect`.
const EXECUTABLE: u64 = libc::PROT_EXEC as u64;

#[test]
fn a_refused_key_is_told() {
    in_child(|| {
        let socket = init();
        let no_memory_file = Filter::refuse(&[libc::SYS_pwrite64]);
        no_memory_file.and_where(libc::SYS_mprotect, 2, EXECUTABLE, &[EXECUTABLE]).install_on_all_threads();
        let mut client = Client::connect(&socket);
        let refused = client.begin().expect_err("keys cannot be switched");
        assert_eq!(refused.code, Code::Keys, "{refused:?}");
        assert_eq!((client.row(Group::new("tea")), is_on()), (None, false));
    });
}
