//! The whole party: the house, its guests, and the order in which they leave.

use std::{fmt, io, num::NonZero, thread, time::Duration};

use anyhow::Context as _;
use serde::Serialize;
use tokio::{runtime, sync::oneshot};

use crate::{
    Loopback, Served, Server, Stop,
    instrument::{self, Group},
    load::{self, Limits},
    server::CPU_BUDGET,
};

/// The most threads that may wait for the database or blend at once.
const BLOCKING_THREADS: usize = 16;

/// How to run the house.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen.
    pub addr: Loopback,
    /// Worker threads.
    pub workers: NonZero<usize>,
    /// CPU time that a request may use; one that uses more leaves a record.
    pub cpu_budget: Duration,
    /// Guests of our own; the house closes when they leave.
    pub load: Option<Limits>,
    /// Close when standard input ends, so that a child does not outlive its parent.
    pub exit_with_parent: bool,
    /// Write what awake `tracing` callsites say to standard error.
    pub log: bool,
}

impl Default for Config {
    /// Any free port, a worker per CPU, no load.
    fn default() -> Self {
        Self {
            addr: Loopback::ANY_PORT,
            workers: thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN),
            cpu_budget: CPU_BUDGET,
            load: None,
            exit_with_parent: false,
            log: false,
        }
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// By the house.
    pub served: Served,
    /// To our own guests, if there were any.
    pub load: Option<load::Report>,
}

/// Runs the house until its guests leave, or a signal or the end of standard input closes it. `ready` is told
/// the URL once it listens.
pub fn run(config: &Config, ready: impl FnOnce(&str)) -> anyhow::Result<Summary> {
    instrument::start(config.log);
    let stop = Stop::new();
    if config.exit_with_parent {
        stop.on_end_of_stdin().context("cannot start a thread")?;
    }
    runtime::Builder::new_multi_thread()
        .worker_threads(config.workers.get())
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("tea")
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(serve(config, &stop, ready))
}

async fn serve(config: &Config, stop: &Stop, ready: impl FnOnce(&str)) -> anyhow::Result<Summary> {
    stop.on_signals().context("cannot watch for signals")?;
    let server = Server::bind(config.addr, config.workers.get()).await?.with_cpu_budget(config.cpu_budget);
    let addr = server.addr();
    ready(&format!("http://{addr}"));
    let Some(limits) = config.load else {
        return Ok(Summary { served: server.serve(stop.pulled()).await?, load: None });
    };
    // The cord sends the guests home; the house closes after the last of them, so that none is cut off.
    let guests = invite(addr, limits, stop).context("cannot start a thread")?;
    let mut report = None;
    let served = server.serve(async { report = Some(guests.await) }).await?;
    let report = report.context("the house closed before its guests left")?;
    Ok(Summary { served, load: Some(report.context("the load generator panicked")??) })
}

/// Loads the house from a thread of its own.
fn invite(
    addr: Loopback,
    limits: Limits,
    stop: &Stop,
) -> io::Result<oneshot::Receiver<anyhow::Result<load::Report>>> {
    let (leave, left) = oneshot::channel();
    let stop = stop.clone();
    Group::new("load").spawn_thread(move || leave.send(load::run(addr, &limits, &stop)))?;
    Ok(left)
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(load) = &self.load {
            write!(f, "{load}")?;
        }
        let Served { connections, cut } = self.served;
        write!(f, "{connections} connections served, {cut} cut")
    }
}
