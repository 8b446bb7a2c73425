//! The parties of a scrape: services in forked children, `dormouse serve`, and a scraper over
//! HTTP.

use std::fs;
use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child as Process, Stdio};
use std::time::{Duration, Instant};

use dormouse::Group;
use tempfile::TempDir;

use crate::apart::Child;
use crate::runner::Failure;
use crate::workloads::command;

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The names of groups, before their numbers.
pub(super) const ROUTE: &str = "GET /routes/";
/// Requests of each group, each twice as long as the one before.
const REQUESTS: u32 = 10;
const SHORTEST: Duration = Duration::from_micros(1);
const TRACE: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// The server's, for as long as a run takes: on loopback, of this user.
const TOKEN: &str = "the-token-of-the-bench";
/// Seconds after which a service ends by itself: longer than any run.
const LIFE: u32 = 3600;

/// Services that have begun; they end when this is dropped.
pub(super) struct Services(Vec<Service>);

struct Service {
    child: Child,
    /// A byte has it have requests; then it sends one back.
    ask: PipeWriter,
    ready: PipeReader,
}

impl Services {
    /// Starts `processes` services, each with an agent and `groups` groups that have had a request.
    pub(super) fn start(processes: usize, groups: usize) -> Result<Self, Failure> {
        let mut services = Self(Vec::with_capacity(processes));
        for _ in 0..processes {
            let ((ready, tell), (asked, ask)) = (pipe()?, pipe()?);
            let child = Child::lasting(LIFE, move || serve_nobody(groups, asked, tell))?;
            let mut service = Service { child, ask, ready };
            service.wait()?;
            services.0.push(service);
        }
        Ok(services)
    }

    /// Makes requests in each group of each service, as many as at the start.
    pub(super) fn have_requests(&mut self) -> Result<(), Failure> {
        for service in &mut self.0 {
            service.ask.write_all(&[1])?;
        }
        self.0.iter_mut().try_for_each(Service::wait)
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().map(|service| service.child.pid())
    }
}

impl Service {
    /// Waits until it has had its requests.
    fn wait(&mut self) -> Result<(), Failure> {
        // The end of the pipe: the child has ended before it was ready.
        Ok(self.ready.read_exact(&mut [0])?)
    }
}

/// A service's whole life. The end of its parent ends it.
fn serve_nobody(groups: usize, mut asked: PipeReader, mut tell: PipeWriter) -> Result<Vec<f64>, Failure> {
    dormouse::init()?;
    let _waiting = dormouse::Waiting::start()?;
    loop {
        have_requests(groups)?;
        tell.write_all(&[1])?;
        asked.read_exact(&mut [0])?;
    }
}

/// Makes requests in `groups` groups.
pub(super) fn have_requests(groups: usize) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    for n in 0..groups {
        let group = Group::new(&format!("{ROUTE}{n}"));
        // In as many buckets as a route's requests are, each with a trace.
        for part in 0..REQUESTS {
            let trace = dormouse::TraceContext::parse(TRACE).ok_or("no trace")?;
            runtime.block_on(group.instrument(async move {
                dormouse::set_trace_context(trace);
                let begun = Instant::now();
                while begun.elapsed() < SHORTEST * (1 << part) {
                    std::hint::spin_loop();
                }
            }));
        }
    }
    Ok(())
}

/// `dormouse serve`, which ends when this is dropped.
pub(super) struct Server {
    process: Process,
    address: SocketAddr,
    /// With the file that has the token.
    _folder: TempDir,
}

impl Server {
    /// One that looks into these processes alone.
    pub(super) fn start(pids: impl Iterator<Item = u32>) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("token"), TOKEN)?;
        let mut process = command()?
            .args(["serve", "--listen", "127.0.0.1:0", "--token-file"])
            .arg(folder.path().join("token"))
            .args(pids.map(|pid| pid.to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let said = process.stderr.take();
        let mut server = Self { process, address: ([127, 0, 0, 1], 0).into(), _folder: folder };
        let mut lines = BufReader::new(said.ok_or("no standard error")?).lines();
        server.address = loop {
            let line = lines.next().ok_or("`dormouse serve` has ended without an address")??;
            if let Some(address) = address(&line) {
                break address;
            }
        };
        // Its later lines must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(server)
    }

    /// The time for a scrape with its connection, and the bytes of the answer's body. The request
    /// has these headers beside its own.
    pub(super) fn scrape(&self, headers: &str) -> Result<(Duration, Vec<u8>), Failure> {
        let begun = Instant::now();
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "GET /metrics HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {TOKEN}\r\n{headers}connection: close\r\n\r\n",
            self.address
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let took = begun.elapsed();
        let end = answer.windows(4).position(|part| part == b"\r\n\r\n").ok_or("an answer without a head")?;
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        if !head.starts_with("HTTP/1.1 200") {
            return Err(Failure::from(head));
        }
        Ok((took, answer.split_off(end + 4)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The address in the first line of the server.
fn address(line: &str) -> Option<SocketAddr> {
    let rest = &line[line.find("http://")? + "http://".len()..];
    rest.split('/').next()?.parse().ok()
}

/// CPU time of the threads of a process that are dormouse's, in nanoseconds.
pub(super) fn own_threads_ns(pid: u32) -> Result<u64, Failure> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let read = |file: &str| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        if read("comm").starts_with("dormouse") {
            let account = read("schedstat");
            let ran: Option<u64> = account.split(' ').next().and_then(|ran| ran.parse().ok());
            sum += ran.ok_or("the kernel counts no CPU time of threads")?;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_in_the_first_line() {
        let line = "listening on http://127.0.0.1:4711/, token in /tmp/token";
        assert_eq!(address(line), Some(([127, 0, 0, 1], 4711).into()));
        assert_eq!(address("dormouse: nobody listens"), None);
    }

    #[test]
    fn services_in_children_have_agents() {
        let services = Services::start(2, 3).unwrap();
        for pid in services.pids() {
            assert!(own_threads_ns(pid).unwrap() > 0);
        }
    }
}
