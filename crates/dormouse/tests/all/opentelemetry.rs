//! The service's own OpenTelemetry: its spans give traces to requests, its meter sees groups.

#![expect(clippy::float_cmp, reason = "they are whole numbers, written and read")]

use std::collections::BTreeMap;
use std::future::{Future, ready};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dormouse::metrics::{Metrics, MetricsSpec};
use dormouse::sync::{Holds, LockTimes};
use dormouse::waits::{Exemplar, Waiting, living};
use dormouse::{Group, TraceContext};
use dormouse_protocol::{FileReader, HelloRequest, Op, PROTOCOL, Request, SleepRequest, WakeRequest};
use dormouse_testkit::{eventually, in_child};
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::{
    FutureExt, SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, MetricData, ResourceMetrics, ScopeMetrics, SumDataPoint,
};
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider, Temporality};
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn tracer() -> SdkTracer {
    SdkTracerProvider::builder().build().tracer("test")
}

/// The ids of the span that is current.
fn current() -> (TraceId, SpanId) {
    let context = Context::current();
    let span = context.span();
    (span.span_context().trace_id(), span.span_context().span_id())
}

fn ids(of: TraceContext) -> (TraceId, SpanId) {
    (TraceId::from_bytes(of.trace_id()), SpanId::from_bytes(of.span_id().unwrap()))
}

fn trace_of(task: u64) -> Option<TraceContext> {
    living().find(|of| of.task == task).and_then(|of| of.trace)
}

fn only(group: Group) -> Exemplar {
    match group.read_exemplars()[..] {
        [only] => only,
        ref all => panic!("{all:?}"),
    }
}

#[test]
fn a_spans_trace_arrives_in_the_exemplar() {
    in_child(|| {
        dormouse::opentelemetry::observe_contexts();
        let _waiting = Waiting::start().unwrap();
        let (tracer, group) = (tracer(), Group::new("GET /tea"));
        let seen = group.scope(|| {
            tracer.in_span("request", |_| {
                let own = current();
                tracer.in_span("query", |_| assert_ne!(current().1, own.1));
                own
            })
        });
        let it = only(group);
        assert_eq!(it.trace.map(ids), Some(seen), "of the request's span, not of one inside");
    });
}

#[test]
fn a_span_around_the_request_counts() {
    in_child(|| {
        dormouse::opentelemetry::observe_contexts();
        let _waiting = Waiting::start().unwrap();
        let (tracer, group) = (tracer(), Group::new("GET /tea"));
        let span = Context::current_with_span(tracer.start("server"));
        let around = (span.span().span_context().trace_id(), span.span().span_context().span_id());
        // As a layer outside of dormouse's does: at each poll the span is entered first.
        let request = async {
            let mut task = None;
            group
                .instrument(async {
                    task = trace_of(dormouse::events::current_task()).map(ids);
                    tokio::task::yield_now().await;
                })
                .await;
            task
        };
        assert_eq!(block_on(request.with_context(span)), Some(around));
        assert_eq!(only(group).trace.map(ids), Some(around));
        // The next request of the same thread has no span.
        Group::new("GET /menu").scope(|| ());
        assert_eq!(only(Group::new("GET /menu")).trace, None);
    });
}

#[test]
fn a_callers_span_makes_way_for_ours() {
    in_child(|| {
        dormouse::opentelemetry::observe_contexts();
        let _waiting = Waiting::start().unwrap();
        let (trace, span) = (TraceId::from_bytes([7; 16]), SpanId::from_bytes([9; 8]));
        let remote = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::NONE);
        let remote = Context::new().with_remote_span_context(remote);
        let (tracer, group) = (tracer(), Group::new("GET /tea"));
        let task = dormouse::events::current_task;
        let own = group.scope(|| {
            let _around = remote.clone().attach();
            assert_eq!(trace_of(task()).map(ids), Some((trace, span)));
            tracer.in_span("server", |_| current())
        });
        assert_eq!((own.0, only(group).trace.map(ids)), (trace, Some(own)));
    });
}

#[test]
fn a_trace_that_nobody_keeps_is_no_exemplar() {
    in_child(|| {
        dormouse::opentelemetry::observe_contexts();
        let _waiting = Waiting::start().unwrap();
        let provider = SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOff).build();
        let group = Group::new("GET /tea");
        group.scope(|| {
            provider.tracer("test").in_span("request", |_| {
                let known = trace_of(dormouse::events::current_task()).unwrap();
                assert_eq!((ids(known), known.is_sampled()), (current(), false));
            });
        });
        assert_eq!(only(group).trace, None);
    });
}

#[test]
fn nothing_is_kept_while_times_sleep() {
    in_child(|| {
        dormouse::opentelemetry::observe_contexts();
        let (tracer, group) = (tracer(), Group::new("GET /tea"));
        let span = Context::current_with_span(tracer.start("before"));
        let guard = span.attach();
        let _waiting = Waiting::start().unwrap();
        // Entered before somebody took times: nobody has seen it.
        group.scope(|| assert_eq!(trace_of(dormouse::events::current_task()), None));
        drop(guard);
        group.scope(|| {
            tracer.in_span("request", |_| {
                let found = trace_of(dormouse::events::current_task()).map(ids);
                assert_eq!(found, Some(current()), "and of those entered since");
            });
        });
    });
}

#[test]
fn a_slow_requests_file_has_its_trace() {
    in_child(|| {
        let folder = tempfile::tempdir().unwrap();
        // SAFETY: nothing else runs in the child.
        unsafe { std::env::set_var("DORMOUSE_RECORD_DIR", folder.path()) };
        dormouse::opentelemetry::observe_contexts();
        dormouse::init().unwrap();
        dormouse::triggers::add("request>20ms").unwrap();
        let own = Group::new("GET /tea").scope(|| {
            tracer().in_span("request", |_| {
                dormouse_testkit::spin_for(Duration::from_millis(40));
                current()
            })
        });
        let file = || dormouse::triggers::list().unwrap().triggers[0].file.clone();
        eventually(|| file().is_some());
        let reader = FileReader::new(std::fs::File::open(file().unwrap()).unwrap()).unwrap();
        let head = reader.head();
        let (trace, span) = (own.0.to_string(), own.1.to_string());
        assert_eq!((head.trace_id.as_ref(), head.span_id.as_ref()), (Some(&trace), Some(&span)));
        assert!(head.seen.ends_with(&format!("trace {trace}")), "{}", head.seen);
    });
}

/// The value of each point, by the instrument's name and the attributes.
type Points = BTreeMap<(String, String), f64>;

#[derive(Clone)]
struct Exported {
    points: Arc<Mutex<Points>>,
    temporality: Temporality,
}

impl Exported {
    /// A provider that exports to it when it is flushed.
    fn provider(temporality: Temporality) -> (Exported, SdkMeterProvider) {
        let exported = Exported { points: Arc::default(), temporality };
        let reader =
            PeriodicReader::builder(exported.clone()).with_interval(Duration::from_secs(3600)).build();
        (exported, SdkMeterProvider::builder().with_reader(reader).build())
    }

    /// The points of one collection.
    fn collect(&self, provider: &SdkMeterProvider) -> Points {
        self.points.lock().unwrap().clear();
        provider.force_flush().unwrap();
        self.points.lock().unwrap().clone()
    }
}

fn attributes<'a>(all: impl Iterator<Item = &'a KeyValue>) -> String {
    let mut all: Vec<_> = all.map(|it| format!("{}={}", it.key, it.value)).collect();
    all.sort();
    all.join(",")
}

impl PushMetricExporter for Exported {
    fn export(&self, metrics: &ResourceMetrics) -> impl Future<Output = OTelSdkResult> + Send {
        let mut points = Points::new();
        for metric in metrics.scope_metrics().flat_map(ScopeMetrics::metrics) {
            let mut add = |of: String, value| points.insert((metric.name().to_owned(), of), value);
            match metric.data() {
                AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                    sum.data_points().for_each(|it: &SumDataPoint<u64>| {
                        _ = add(attributes(it.attributes()), it.value() as f64);
                    });
                }
                AggregatedMetrics::U64(MetricData::Gauge(gauge)) => {
                    gauge
                        .data_points()
                        .for_each(|it| _ = add(attributes(it.attributes()), it.value() as f64));
                }
                AggregatedMetrics::F64(MetricData::Sum(sum)) => {
                    sum.data_points().for_each(|it| _ = add(attributes(it.attributes()), it.value()));
                }
                AggregatedMetrics::F64(MetricData::Gauge(gauge)) => {
                    gauge.data_points().for_each(|it| _ = add(attributes(it.attributes()), it.value()));
                }
                other => panic!("{other:?}"),
            }
        }
        *self.points.lock().unwrap() = points;
        ready(Ok(()))
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn temporality(&self) -> Temporality {
        self.temporality
    }
}

#[test]
fn a_meter_sees_the_numbers_of_groups() {
    in_child(|| {
        let (exported, provider) = Exported::provider(Temporality::Cumulative);
        let metrics = Arc::new(Metrics::start(&MetricsSpec::new().waits()).unwrap());
        dormouse::opentelemetry::instruments(&provider.meter("dormouse"), &metrics);
        let (tea, menu) = (Group::new("GET /tea"), Group::new("GET /menu"));
        let collect = || exported.collect(&provider);
        let _times = LockTimes::start(Holds::Sampled).unwrap();
        let lock = dormouse::sync::Mutex::new(());
        // Some of the first are looked at.
        (0..100).for_each(|_| drop(lock.lock()));
        for requests in [3, 5] {
            for _ in 0..requests {
                block_on(tea.instrument(tokio::task::yield_now()));
                tea.scope(|| dormouse_testkit::spin_for(Duration::from_millis(1)));
            }
            let _lasting = menu.task();
            let points = collect();
            let value = |name: &str, of: &str| points[&(name.to_owned(), of.to_owned())];
            for group in [tea, menu] {
                let (read, of) = (group.read(), format!("group={}", group.name()));
                let completed = value("dormouse.requests", &format!("{of},outcome=completed"));
                assert_eq!(completed, read.requests as f64);
                assert_eq!(value("dormouse.polls", &of), read.polls as f64);
                assert_eq!(value("dormouse.tasks.started", &of), read.started as f64);
                assert_eq!(value("dormouse.tasks.finished", &of), read.finished as f64);
                assert_eq!(value("dormouse.tasks.alive", &of), read.alive as f64);
                // The counter's rate may be measured anew in between, here and below.
                let own = value("dormouse.cpu.time", &of);
                assert!((own - read.cpu.as_secs_f64()).abs() < 1e-9 + own / 1000.0, "{own} {read:?}");
            }
            let waits = tea.read_waits();
            for (state, ns) in [("poll", waits.poll_ns), ("runnable", waits.runnable_ns)] {
                let own = value("dormouse.task.time", &format!("group=GET /tea,state={state}"));
                assert!((own - ns as f64 / 1e9).abs() < 1e-9 + own / 1000.0, "{state}: {own} {ns}");
            }
            for of_locks in ["acquisitions", "waits", "wait"].map(|name| format!("dormouse.lock.{name}")) {
                assert!(points.keys().any(|(name, _)| *name == of_locks), "{of_locks} in {points:?}");
            }
            let process = value("dormouse.process.cpu.time", "");
            assert!(process >= value("dormouse.process.cpu.attributed", "") && process > 0.0);
        }
        drop(metrics);
        assert_eq!(collect(), Points::new());
    });
}

/// Starts the agent, and sends it a request.
fn ask() -> impl FnMut(Op) {
    let directory = tempfile::tempdir().unwrap().keep();
    // SAFETY: the caller has no other thread that reads the environment.
    unsafe { std::env::set_var("DORMOUSE_RUNTIME_DIR", &directory) };
    let mut stream = BufReader::new(UnixStream::connect(dormouse::init().unwrap().path()).unwrap());
    let mut ask = move |op: Op| {
        let request = serde_json::to_string(&Request { v: PROTOCOL, id: 1, op }).unwrap();
        writeln!(stream.get_mut(), "{request}").unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).unwrap();
        assert!(answer.contains("\"ok\""), "{answer}");
    };
    ask(HelloRequest { client: "a test".into(), notices: false }.into());
    ask
}

#[test]
fn differences_of_a_meter_add_up() {
    in_child(|| {
        let mut ask = ask();
        let (exported, provider) = Exported::provider(Temporality::Delta);
        let metrics = Arc::new(Metrics::start(&MetricsSpec::new()).unwrap());
        dormouse::opentelemetry::instruments(&provider.meter("dormouse"), &metrics);
        let (parks, cpu) = (
            ("dormouse.runtime.parks".to_owned(), "runtime=main".to_owned()),
            ("dormouse.cpu.time".to_owned(), "group=GET /tea".to_owned()),
        );
        let tea = Group::new("GET /tea");
        let spin = || tea.scope(|| dormouse_testkit::spin_for(Duration::from_millis(20)));
        // A runtime ends, and another one has its name.
        let mut of_runtimes = 0.0;
        for least in [20, 1] {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
            dormouse::tokio::runtime("main", runtime.handle()).unwrap();
            eventually(|| {
                runtime.block_on(async { tokio::spawn(async {}).await.unwrap() });
                runtime.metrics().worker_park_count(0) >= least
            });
            let delta = exported.collect(&provider)[&parks];
            assert!((least as f64..1e6).contains(&delta), "{delta}");
            of_runtimes += delta;
        }
        assert!(of_runtimes >= 21.0, "{of_runtimes}");
        // A collection while counts are asleep.
        spin();
        let mut of_tea = exported.collect(&provider)[&cpu];
        ask(SleepRequest {}.into());
        of_tea += exported.collect(&provider)[&cpu];
        ask(WakeRequest {}.into());
        spin();
        of_tea += exported.collect(&provider)[&cpu];
        let total = tea.read().cpu.as_secs_f64();
        assert!((of_tea - total).abs() < 1e-9 + total / 1000.0, "{of_tea} of {total}");
    });
}
