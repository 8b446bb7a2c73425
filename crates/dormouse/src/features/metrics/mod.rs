//! Metrics: the cost of groups, for Prometheus, OpenTelemetry and others.
//!
//! A [`Metrics`] counts as long as it exists, and answers scrapes. The library opens no port: the
//! host mounts a route (`dormouse::axum::metrics`, `dormouse::tower::MetricsService`, or any
//! handler that calls [`Metrics::answer`]), or `dormouse serve` serves the metrics of all processes
//! of the machine.
//!
//! ```
//! use dormouse::Group;
//! use dormouse::metrics::{Metrics, MetricsSpec};
//!
//! let metrics = Metrics::start(&MetricsSpec::new().waits())?;
//! Group::new("GET /menu").scope(|| { /* … */ });
//! // In a handler, with the request's header `Accept`:
//! let answer = metrics.answer(Some("application/openmetrics-text; version=1.0.0"));
//! let text = String::from_utf8(answer.body)?;
//! assert!(text.contains("dormouse_cpu_time_seconds_total{group=\"GET /menu\"}"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Names
//!
//! For each group, with the label `group`:
//!
//! | Prometheus | OpenTelemetry | is |
//! |---|---|---|
//! | `dormouse_cpu_time_seconds_total` | `dormouse.cpu.time` | CPU time while it was counted |
//! | `dormouse_requests_total` | `dormouse.requests` | tasks that ended and were no part of another |
//! | `dormouse_polls_total` | `dormouse.polls` | polls while anything was counted |
//! | `dormouse_tasks_started_total` | `dormouse.tasks.started` | tasks that began |
//! | `dormouse_tasks_finished_total` | `dormouse.tasks.finished` | tasks that ended |
//! | `dormouse_tasks_alive` | `dormouse.tasks.alive` | tasks that are |
//! | `dormouse_task_time_seconds_total` | `dormouse.task.time` | time of tasks by `state`: poll, runnable, await |
//! | `dormouse_request_duration_seconds` | `dormouse.request.duration` | latency of requests: a histogram |
//! | `dormouse_poll_duration_seconds` | `dormouse.poll.duration` | length of polls: a native histogram |
//! | `dormouse_poll_delay_seconds` | `dormouse.poll.delay` | time from a wake to its poll: likewise |
//! | `dormouse_await_duration_seconds` | `dormouse.await.duration` | time from a poll's end to a wake: likewise |
//!
//! The last five exist while times are taken. Events that are counted have names of their own
//! (`dormouse_allocated_bytes_total`, `dormouse_page_faults_total`), and those of the program have
//! the label `event` (`dormouse_events_total`).
//!
//! For the process:
//!
//! | Prometheus | OpenTelemetry | is |
//! |---|---|---|
//! | `dormouse_process_cpu_time_seconds_total` | `dormouse.process.cpu.time` | CPU time |
//! | `dormouse_process_cpu_attributed_seconds_total` | `dormouse.process.cpu.attributed` | the part that groups were charged for |
//! | `dormouse_cpu_coverage_ratio` | `dormouse.cpu.coverage` | that share, since this reader has it counted |
//! | `dormouse_process_polls_total` | `dormouse.process.polls` | polls of tasks that runtimes tell of |
//! | `dormouse_process_polls_attributed_total` | `dormouse.process.polls.attributed` | those that were in groups |
//! | `dormouse_poll_coverage_ratio` | `dormouse.poll.coverage` | their share |
//! | `dormouse_process_runnable_time_seconds_total` | `dormouse.process.runnable.time` | time for which threads waited for a CPU |
//! | `dormouse_process_threads` | `dormouse.process.threads` | threads |
//! | `dormouse_process_start_time_seconds` | `dormouse.process.start.time` | its start, since 1970 |
//! | `dormouse_cpu_refused` | `dormouse.cpu.refused` | 1 if a clock is false, so that CPU time of groups is absent; else 0 |
//! | `dormouse_keys_on` | `dormouse.keys.on` | keys that are on |
//! | `dormouse_records_dropped_total` | `dormouse.records.dropped` | records that found no room |
//! | `dormouse_agent_info` | `dormouse.agent.info` | 1; `version` is dormouse's |
//!
//! The three of polls exist if a runtime has hooks around each poll (`poll_hooks` and
//! `group_spawns` of `dormouse::tokio`, in programs built with `--cfg tokio_unstable`), or if an
//! executor of the program's own calls [`poll_begins`](crate::events::poll_begins) and
//! [`poll_ends`](crate::events::poll_ends).
//!
//! CPU per request is a query: `sum by (group) (rate(dormouse_cpu_time_seconds_total[5m])) / sum by
//! (group) (rate(dormouse_requests_total[5m]))`.
//!
//! # Counters never go back
//!
//! They are totals since the start of the process, independent of readers and of how often counting
//! has begun and ended. A forked child begins at zero, with a start of its own. Labels are bounded:
//! a process has at most [`MAX_GROUPS`](crate::MAX_GROUPS) groups.

mod add;
pub(crate) mod families;
mod origin;
mod service;

pub use crate::web::{Responding, WebAnswer};
pub use add::add;
pub use dormouse_metrics::{Exposition, MetricsFormat};
pub use origin::Origin;
pub use service::{Metrics, MetricsError, MetricsSpec, exposition, text};
