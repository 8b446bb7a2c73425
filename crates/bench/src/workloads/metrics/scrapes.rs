//! `scrape/…`: scrapes through `dormouse serve`; and `scraped/…`: their cost in the service.

use std::io::Read as _;
use std::process::{Child as Process, Stdio};
use std::time::{Duration, Instant};

use dormouse::clock::process_cpu_ns_of;

use super::served::{ROUTE, Server, Services, own_threads_ns};
use crate::bench::Bench;
use crate::row::{Better, Spec};
use crate::runner::Failure;
use crate::workloads::command;

/// Prometheus's headers, and those of one that takes native histograms.
const PROMETHEUS: &str = "accept: application/openmetrics-text;version=1.0.0\r\naccept-encoding: gzip\r\n";
const NATIVE: &str = "accept: application/vnd.google.protobuf;\
                      proto=io.prometheus.client.MetricFamily;encoding=delimited\r\n\
                      accept-encoding: gzip\r\n";

/// Rows of one process with very many groups: as Prometheus requests them, without compression,
/// when each group has had requests since, and with native histograms. The first row follows the
/// last one: exemplars stay new for a second.
const GROUPS: [(&str, Scrape); 4] = [
    ("scrape/groups", Scrape::of(PROMETHEUS)),
    ("scrape/groups-plain", Scrape::of("")),
    ("scrape/groups-busy", Scrape { headers: PROMETHEUS, has_requests: true }),
    ("scrape/groups-native", Scrape::of(NATIVE)),
];
/// Rows of very many processes, and of a service under load.
const PROCESSES: &str = "scrape/processes";
const SCRAPED: &str = "scraped/agent";
const UNSCRAPED: &str = "scraped/agent-alone";
const WHOLE: &str = "scraped/service";
const WHOLE_ALONE: &str = "scraped/service-alone";
const ADDED: [&str; 2] = ["scraped-added/agent", "scraped-added/service"];

/// Groups of the one process.
const MANY_GROUPS: usize = 1000;
/// The many processes, with as many groups each as a small service has.
const MANY_PROCESSES: usize = 100;
const FEW_GROUPS: usize = 10;
/// Longer than a snapshot is shared: each sample is of a new one.
const APART: Duration = Duration::from_millis(1100);
/// Scrapes until all services have answered.
const TRIES: usize = 20;

/// A way to scrape.
#[derive(Debug, Clone, Copy)]
struct Scrape {
    headers: &'static str,
    /// Whether each group has requests right before.
    has_requests: bool,
}

impl Scrape {
    const fn of(headers: &'static str) -> Self {
        Self { headers, has_requests: false }
    }
}

/// Adds the rows.
pub(super) fn rows(bench: &mut Bench) {
    let of = |name: &str, processes: usize, groups: usize| {
        let with = |spec: Spec| spec.with("processes", processes as u64).with("groups", groups as u64);
        [with(Spec::new(name, "ms").wall()), with(Spec::new(format!("{name}/length"), "KiB"))]
    };
    let specs = GROUPS.map(|(name, _)| of(name, 1, MANY_GROUPS)).concat();
    bench.sample(specs, scrapes(1, MANY_GROUPS, &GROUPS.map(|(_, scrape)| scrape)));
    let processes = bench.pick(MANY_PROCESSES, 20);
    let specs = of(PROCESSES, processes, FEW_GROUPS);
    bench.sample(specs, scrapes(processes, FEW_GROUPS, &[Scrape::of(PROMETHEUS)]));
    let seconds = bench.pick(10, 2);
    let spec = |name: &str| {
        Spec::new(name, "%").better(Better::Lower).with("of", "a processor").with("seconds", seconds)
    };
    let specs = [UNSCRAPED, WHOLE_ALONE, SCRAPED, WHOLE].map(spec);
    bench.sample(specs, move || scraped(seconds));
}

pub(super) fn compare(bench: &mut Bench) {
    for (name, (with, without)) in ADDED.into_iter().zip([(SCRAPED, UNSCRAPED), (WHOLE, WHOLE_ALONE)]) {
        let spec = Spec::new(name, "%").with("of", "a processor");
        bench.paired(spec, with, without, |with, without| with - without);
    }
    bench.at_most("a scrape of 1,000 groups takes at most 10 ms", GROUPS[0].0, 10.0);
    for (name, _) in GROUPS {
        bench.at_most("1,000 groups take at most 1 MiB", &format!("{name}/length"), 1024.0);
    }
    bench.at_most("a scrape of a hundred processes takes at most 200 ms", PROCESSES, 200.0);
    bench.at_most("a service that is scraped each second pays at most 0.1 %", SCRAPED, 0.1);
}

/// A sample of scrapes of each of these kinds: time and length. The parties begin with the first
/// sample.
fn scrapes(
    processes: usize,
    groups: usize,
    kinds: &[Scrape],
) -> impl FnMut() -> Result<Vec<f64>, Failure> + use<> {
    let kinds = kinds.to_vec();
    let mut parties: Option<(Services, Server)> = None;
    move || {
        let (services, server) = match &mut parties {
            Some(begun) => begun,
            begun @ None => begun.insert(begin(processes, groups)?),
        };
        let mut values = Vec::new();
        for Scrape { headers, has_requests } in &kinds {
            std::thread::sleep(APART);
            if *has_requests {
                services.have_requests()?;
            }
            let (took, body) = server.scrape(headers)?;
            values.extend([took.as_secs_f64() * 1e3, body.len() as f64 / 1024.0]);
        }
        Ok(values)
    }
}

/// Services, and a server that has seen all of them.
fn begin(processes: usize, groups: usize) -> Result<(Services, Server), Failure> {
    // Before the children: without the command there is nothing to begin for.
    command()?;
    let services = Services::start(processes, groups)?;
    let server = Server::start(services.pids())?;
    let all = processes * groups;
    let mut told = 0;
    // A busy machine may take longer than a scrape waits for a service.
    for _ in 0..TRIES {
        let (_, body) = server.scrape("")?;
        told = routes(&String::from_utf8_lossy(&body));
        if told == all {
            return Ok((services, server));
        }
        if told > all {
            return Err(Failure::wrong(format!("{told} of {all} groups are told")));
        }
        std::thread::sleep(APART);
    }
    Err(Failure::from(format!("{told} of {all} groups have been told: the machine is too busy")))
}

/// How many groups are in a text. A service may have groups of other names, since it is a fork of
/// this process.
fn routes(text: &str) -> usize {
    let route = format!("group=\"{ROUTE}");
    let alive = text.lines().filter(|line| line.starts_with("dormouse_tasks_alive{"));
    alive.filter(|line| line.contains(&route)).count()
}

/// The shares of a processor that dormouse's threads and the whole service take, with the tea house
/// under load: while a server counts it without scrapes, then while it is scraped each second.
fn scraped(seconds: u64) -> Result<[f64; 4], Failure> {
    let tea = Tea::start()?;
    let pid = tea.0.id();
    let server = Server::start(std::iter::once(pid))?;
    // The first scrape has counting begun.
    server.scrape(PROMETHEUS)?;
    let used = || {
        let whole = process_cpu_ns_of(pid).ok_or("the tea house has ended")?;
        Ok::<_, Failure>([own_threads_ns(pid)?, whole])
    };
    let shares = |act: &dyn Fn() -> Result<(), Failure>| {
        let (before, begun) = (used()?, Instant::now());
        for _ in 0..seconds {
            std::thread::sleep(Duration::from_secs(1));
            act()?;
        }
        let (after, passed) = (used()?, begun.elapsed().as_nanos() as f64);
        let share = |n: usize| 100.0 * (after[n] - before[n]) as f64 / passed;
        Ok::<_, Failure>([share(0), share(1)])
    };
    let [alone, whole_alone] = shares(&|| Ok(()))?;
    let [scraped, whole] = shares(&|| server.scrape(PROMETHEUS).map(drop))?;
    Ok([alone, whole_alone, scraped, whole])
}

/// The tea house under a load of its own.
struct Tea(Process);

impl Tea {
    fn start() -> Result<Self, Failure> {
        let mut command = command()?;
        command.args(["teaparty", "--exit-with-parent", "--load", "300", "--for", "10m"]);
        // The end of its standard input ends it, should we die before we can.
        let mut tea = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut said = tea.stdout.take().ok_or("no standard output")?;
        let tea = Self(tea);
        // It has an agent when it prints its address.
        said.read_exact(&mut [0])?;
        Ok(tea)
    }
}

impl Drop for Tea {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
