//! The whole party: the house, its guests, and the order in which they end.

use std::{fmt, io, num::NonZero, thread};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tokio::{runtime, sync::oneshot};

use crate::{
    Args, Loopback, Served, Server, Stop,
    instrument::{self, Group},
    load::{self, Limits},
};

/// The most threads that may wait for the database or blend at once.
const BLOCKING_THREADS: usize = 16;

/// The outcome of a party.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The connections that the house served.
    pub served: Served,
    /// The load by our own guests, if there were any.
    pub load: Option<load::Report>,
}

/// Runs the house until its guests leave, or a signal or the end of standard input closes it.
/// `ready` is called with the URL once it listens.
pub fn run(args: &Args, ready: impl FnOnce(&str)) -> anyhow::Result<Summary> {
    // By this name it is looked into, whichever program it runs in.
    let _ = std::fs::write("/proc/self/comm", "teaparty");
    instrument::start(args.log);
    let stop = Stop::new();
    if args.exit_with_parent {
        stop.on_end_of_stdin().context("cannot start a thread")?;
    }
    let processors = || thread::available_parallelism().map_or(1, NonZero::get);
    let workers = args.workers.map_or_else(processors, usize::from);
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("tea")
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    instrument::show(runtime.handle());
    runtime.block_on(serve(args, workers, &stop, ready))
}

async fn serve(
    args: &Args,
    workers: usize,
    stop: &Stop,
    ready: impl FnOnce(&str),
) -> anyhow::Result<Summary> {
    stop.on_signals().context("cannot watch for signals")?;
    let server = Server::bind(args.addr, workers).await?.with_cpu_budget(args.cpu_budget).with_tax(args.tax);
    let addr = server.addr();
    ready(&format!("http://{addr}"));
    let Some(limits) = args.limits() else {
        return Ok(Summary { served: server.serve(stop.pulled()).await?, load: None });
    };
    // The cord sends the guests home; the house closes after the last of them, so that none is cut
    // off.
    let guests = invite(addr, limits, stop).context("cannot start a thread")?;
    let mut report = None;
    let served = server.serve(async { report = Some(guests.await) }).await?;
    let report = report.context("the house closed before its guests left")?;
    Ok(Summary { served, load: Some(report.context("the load generator panicked")??) })
}

/// Loads the house from a new thread.
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
