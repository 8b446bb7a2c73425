//! From what a user types to a connection with the right process.
//!
//! A target is a process id or a name; or a recorder's file, which needs no look-up. The process is
//! looked up in `/proc`, its agent in the kernel's table of listening sockets ([`sockets`]), and
//! after connecting the kernel reports which process listens there: a socket whose name contains
//! the id of another process, by accident or by intent, is never taken for that process.

mod door;
pub(crate) mod process;
mod sockets;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use crate::duration::short_of;
use crate::exit::{Exit, Failure, Outcome};
use crate::text::{Clean, clean};
use crate::user;

use door::Peer;
pub(crate) use process::{Proc, Process};
use sockets::AgentSocket;

/// The call that a service without an agent lacks.
const INIT_HINT: &str = "call dormouse::init(), in C dormouse_init(), at its start";

/// How dormouse comes back where it is turned off.
pub(crate) const OFF_HINT: &str = "start it without DORMOUSE=off";

/// How soon a socket whose queue is full is tried again, at first.
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How many processes of a name a message lists.
const MOST_NAMED: usize = 8;

/// Which process is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A process id.
    Pid(u32),
    /// A process id and the ticks of its start, as `12@3456`: no later process is taken for it.
    Exact(u32, u64),
    /// The process's name in the kernel or its executable's file name.
    Name(String),
    /// The path of a recorder's file: it contains a slash, or ends like such files.
    File(PathBuf),
}

/// The ending of a recorder's files.
const ENDING: &str = ".dormouse";

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        match text.parse() {
            _ if text.is_empty() => Err("it is empty; name a process or give its id".into()),
            Ok(0) => Err("0 is no process; name one or give its id".into()),
            Ok(pid) => Ok(Target::Pid(pid)),
            Err(_) if text.contains('/') || text.ends_with(ENDING) => Ok(Target::File(text.into())),
            Err(_) => Ok(exact(text).unwrap_or_else(|| Target::Name(text.to_owned()))),
        }
    }
}

fn exact(text: &str) -> Option<Target> {
    let (pid, start) = text.split_once('@')?;
    Some(Target::Exact(pid.parse().ok()?, start.parse().ok()?))
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Pid(pid) | Target::Exact(pid, _) => pid.fmt(f),
            Target::Name(name) => Clean(name).fmt(f),
            Target::File(path) => Clean(&path.to_string_lossy()).fmt(f),
        }
    }
}

/// A process, and the sockets that may be its agent's.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) process: Process,
    sockets: Vec<PathBuf>,
}

impl Found {
    /// Whether an agent seems to listen in it.
    pub(crate) fn has_agent(&self) -> bool {
        !self.sockets.is_empty()
    }

    /// Whether these are the sockets of `other`, too.
    #[cfg(feature = "serve")]
    pub(crate) fn has_sockets_of(&self, other: &Found) -> bool {
        self.sockets == other.sockets
    }
}

/// The look-up of targets on one machine.
#[derive(Debug)]
pub(crate) struct Finder {
    proc: Proc,
}

impl Finder {
    /// On this machine.
    pub(crate) fn new() -> Finder {
        Finder { proc: Proc::system() }
    }

    /// The process that `target` means, which must have an agent.
    pub(crate) fn find(&self, target: &Target) -> Outcome<Found> {
        let found = match target {
            Target::Pid(pid) => vec![self.by_pid(*pid)?],
            Target::Exact(pid, start) => vec![self.exact(*pid, *start)?],
            Target::Name(name) => self.by_name(name, false)?,
            Target::File(_) => return Err(no_process(target)),
        };
        match found.first() {
            Some(first) if !first.has_agent() => Err(without_agent(&first.process)),
            _ => one_of(target, found),
        }
    }

    /// The process that `target` means, with an agent or without. Of several of a name, one with an
    /// agent is meant.
    pub(crate) fn look(&self, target: &Target) -> Outcome<Found> {
        match target {
            Target::Pid(pid) => self.by_pid(*pid),
            Target::Exact(pid, start) => self.exact(*pid, *start),
            Target::Name(name) => one_of(target, self.by_name(name, true)?),
            Target::File(_) => Err(no_process(target)),
        }
    }

    /// Every process that an agent seems to listen in, in order of process id.
    pub(crate) fn all(&self) -> Outcome<Vec<Found>> {
        self.proc.check()?;
        let pids = self.proc.pids().map_err(|error| no_table(&error))?;
        // One read for each network namespace; those of other users' processes cannot be
        // distinguished, and count as ours.
        let mut tables: HashMap<Option<u64>, Vec<AgentSocket>> = HashMap::new();
        tables.insert(None, self.own_table()?);
        let mut all = Vec::new();
        let own = |path: PathBuf| fs::metadata(path).ok().map(|namespace| namespace.ino());
        let own_pids = own(self.proc.own_path("ns/pid"));
        for pid in pids {
            let namespace = fs::metadata(self.proc.path(pid, "ns/net")).ok().map(|ns| ns.ino());
            let table = match tables.entry(namespace) {
                Entry::Occupied(known) => known.into_mut(),
                // It has ended meanwhile: another process may show the same table.
                Entry::Vacant(free) => match self.table_of(pid) {
                    Ok(table) => free.insert(table),
                    Err(_) => continue,
                },
            };
            if table.is_empty() {
                continue;
            }
            // A process of this namespace calls itself as we do, which saves most of the reading.
            let is_own = own_pids.is_some() && own(self.proc.path(pid, "ns/pid")) == own_pids;
            if is_own && !table.iter().any(|socket| socket.number == pid) {
                continue;
            }
            let Some(process) = self.proc.process(pid) else { continue };
            let sockets = of_number(table, process.inner_pid);
            if !sockets.is_empty() && !process.is_zombie {
                all.push(Found { process, sockets });
            }
        }
        Ok(all)
    }

    /// Does what [`Finder::look`] does, for callers that need no agent.
    pub(crate) fn process(&self, target: &Target) -> Outcome<Process> {
        self.look(target).map(|found| found.process)
    }

    fn exact(&self, pid: u32, start: u64) -> Outcome<Found> {
        let found = self.by_pid(pid)?;
        if found.process.start_ticks == start {
            return Ok(found);
        }
        Err(Failure::new(Exit::NoTarget, format!("process {pid} has ended")))
    }

    fn by_pid(&self, pid: u32) -> Outcome<Found> {
        let process = self.proc.process(pid).filter(|process| !process.is_zombie);
        let Some(process) = process else {
            self.proc.check()?;
            self.proc.check_shown(pid)?;
            return Err(Failure::new(Exit::NoTarget, format!("there is no process {pid}"))
                .hint("dormouse ps lists the processes with dormouse in them"));
        };
        if process.leader != pid {
            let message = format!("{pid} is a thread of process {}", process.leader);
            return Err(
                Failure::new(Exit::NoTarget, message).hint(format!("give the process: {}", process.leader))
            );
        }
        let table = match self.table_of(pid) {
            Ok(table) => table,
            Err(_) => self.own_table()?,
        };
        let sockets = of_number(&table, process.inner_pid);
        Ok(Found { process, sockets })
    }

    /// Those with an agent, or if there are none, those without; at least one. With `any`,
    /// strangers' processes with an agent do not stand before closer ones without.
    fn by_name(&self, name: &str, any: bool) -> Outcome<Vec<Found>> {
        let me = self.proc.own_id();
        let with: Vec<Found> = self.all()?.into_iter().filter(|found| found.process.is_named(name)).collect();
        if !with.is_empty() && !any {
            return Ok(closest(with, |found| &found.process));
        }
        let processes: Vec<Process> = self
            .proc
            .pids()
            .map_err(|error| no_table(&error))?
            .into_iter()
            .filter(|&pid| Some(pid) != me)
            .filter_map(|pid| self.proc.process(pid))
            .collect();
        let (named, others): (Vec<Process>, Vec<Process>) =
            processes.into_iter().partition(|process| process.is_named(name) && !process.is_zombie);
        if !named.is_empty() {
            let is_without = |process: &Process| with.iter().all(|found| found.process.pid != process.pid);
            let without = named.into_iter().filter(is_without);
            let without = without.map(|process| Found { process, sockets: Vec::new() }).collect::<Vec<_>>();
            let mut found = closest(with.into_iter().chain(without).collect(), |found| &found.process);
            if found.iter().any(Found::has_agent) {
                found.retain(Found::has_agent);
            }
            return Ok(found);
        }
        let names =
            others.iter().flat_map(|process| [Some(process.name()), process.exe.as_deref()]).flatten();
        Err(Failure::new(Exit::NoTarget, format!("no process is named {name:?}"))
            .near(near(name, names))
            .hint("dormouse ps lists the processes with dormouse in them"))
    }

    /// Whether the socket has its name in another network namespace than this command's.
    fn is_elsewhere(&self, process: &Process, path: &Path) -> bool {
        let namespace = |path: PathBuf| fs::metadata(path).ok().map(|namespace| namespace.ino());
        let (theirs, own) = (self.proc.path(process.pid, "ns/net"), self.proc.own_path("ns/net"));
        sockets::kernels_name(path).is_some() && namespace(theirs) != namespace(own)
    }

    fn table_of(&self, pid: u32) -> io::Result<Vec<AgentSocket>> {
        fs::read(self.proc.path(pid, "net/unix")).map(|table| sockets::listening(&table))
    }

    fn own_table(&self) -> Outcome<Vec<AgentSocket>> {
        // By `self`: the number that this process has for itself need not be its number in this
        // `/proc`.
        let table = fs::read(self.proc.own_path("net/unix"))
            .map_err(|error| self.proc.check().err().unwrap_or_else(|| no_table(&error)))?;
        Ok(sockets::listening(&table))
    }

    /// Connects to the agent of `found`, and to no other process. Returns true if the kernel
    /// confirms that the wanted process listens there.
    ///
    /// Anybody can listen at a socket with that number and accept nothing. So a full queue is tried
    /// again only after all other sockets, and `patience` is for all of them together.
    pub(crate) fn connect(&self, found: &Found, patience: Duration) -> Outcome<(UnixStream, bool)> {
        let process = &found.process;
        let root = self.proc.path(process.pid, "root");
        let begun = Instant::now();
        let mut failure = without_agent(process);
        let mut sockets: Vec<&PathBuf> = found.sockets.iter().collect();
        loop {
            let mut full = Vec::new();
            for path in sockets {
                let reached = door::connect_to(&root, path)
                    .and_then(|stream| door::peer(&stream).map(|peer| (stream, peer)));
                match reached {
                    // Another process listens there, which has that number in its own PID
                    // namespace.
                    Ok((_, Peer { pid: Some(pid), .. })) if pid != process.pid => {}
                    // A stranger did so before the process executed a set-uid program.
                    Ok((_, Peer { uid, .. }))
                        if uid != 0 && user::distance(uid) > user::distance(process.uid) => {}
                    // Anybody can have such a name.
                    Ok((_, Peer { pid: None, .. })) if sockets::kernels_name(path).is_some() => {}
                    Ok((stream, peer)) => return Ok((stream, peer.pid.is_some())),
                    // In a container, the process id alone proves little: that socket belongs to
                    // another process.
                    Err(error)
                        if error.kind() == io::ErrorKind::NotFound && process.inner_pid != process.pid => {}
                    Err(error)
                        if error.kind() == io::ErrorKind::ConnectionRefused
                            && self.is_elsewhere(process, path) =>
                    {
                        failure = in_another_network(process, path);
                    }
                    Err(error) => {
                        if error.kind() == io::ErrorKind::WouldBlock {
                            full.push(path);
                        }
                        failure = closed(process, path, &error, patience);
                    }
                }
            }
            let waited = begun.elapsed();
            if full.is_empty() || waited >= patience {
                return Err(failure);
            }
            // Pauses grow, because somebody may have made very many such sockets.
            let pause = (waited / 8).clamp(PAUSE, LONGEST_PAUSE);
            thread::sleep(pause.min(patience.saturating_sub(waited)));
            sockets = full;
        }
    }
}

/// Keeps the processes of this user, or if there are none those of root, or else all: any user can
/// give a service any name.
pub(crate) fn closest<T>(mut named: Vec<T>, process: impl Fn(&T) -> &Process) -> Vec<T> {
    let distance = |of: &T| user::distance(process(of).uid);
    if let Some(least) = named.iter().map(distance).min() {
        named.retain(|of| distance(of) == least);
    }
    named
}

/// `teaparty (process 12)`, for messages.
pub(crate) fn describe(process: &Process) -> String {
    format!("{} (process {})", clean(process.name()), process.pid)
}

/// The only one that `target` means.
fn one_of(target: &Target, mut named: Vec<Found>) -> Outcome<Found> {
    let list: Vec<String> = named.iter().take(MOST_NAMED).map(|found| describe(&found.process)).collect();
    match (named.len(), named.pop()) {
        (1, Some(found)) => Ok(found),
        (n, _) => {
            let dots = if n > list.len() { " …" } else { "" };
            let message = format!("{n} processes are named \"{target}\": {}{dots}", list.join(", "));
            Err(Failure::new(Exit::Usage, message).hint("give the id of the one that is meant"))
        }
    }
}

fn of_number(table: &[AgentSocket], number: u32) -> Vec<PathBuf> {
    table.iter().filter(|socket| socket.number == number).map(|socket| socket.path.clone()).collect()
}

fn without_agent(process: &Process) -> Failure {
    let (what, hint) = if process.is_off() {
        ("has dormouse turned off: DORMOUSE=off is in its environment", OFF_HINT)
    } else {
        ("has no dormouse in it", INIT_HINT)
    };
    Failure::new(Exit::NoTarget, format!("{} {what}", describe(process))).hint(hint)
}

/// The failure for a file where a process is needed.
fn no_process(target: &Target) -> Failure {
    Failure::new(Exit::Usage, format!("{target} is a file: this needs a process"))
        .hint("files of the recorder are read by dormouse tasks, profile and trace")
}

fn no_table(error: &io::Error) -> Failure {
    Failure::new(Exit::Unsupported, format!("cannot read the table of sockets under /proc: {error}"))
        .hint("mount /proc as a whole, without subset=pid")
}

/// The failure for an abstract socket that cannot be reached from here.
fn in_another_network(process: &Process, path: &Path) -> Failure {
    let (who, pid, path) = (describe(process), process.pid, clean(&path.to_string_lossy()));
    let message = format!("{who} listens at {path}, in another network namespace");
    Failure::failed(message)
        .hint(format!("go there: nsenter --net --target {pid} dormouse …; or give it a runtime directory"))
}

/// Why no agent could be reached at `path`.
fn closed(process: &Process, path: &Path, error: &io::Error, patience: Duration) -> Failure {
    let who = describe(process);
    let path = clean(&path.to_string_lossy());
    match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::new(
            Exit::Denied,
            format!("{who} belongs to user {}: its socket {path} is closed to you", process.uid),
        )
        .hint("run this as that user or as root"),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Failure::failed(format!("{who} listens at {path}, but nobody can be reached there: {error}"),
        )
        .hint("the file was removed or replaced: unless its system calls are filtered, the service makes it anew within a minute"),
        io::ErrorKind::WouldBlock => {
            Failure::failed(format!("{who} has accepted no connection for {}", short_of(patience)))
                .hint("it may be stopped, or overloaded by clients; --timeout waits longer")
        }
        _ => Failure::failed(format!("cannot connect to {who} at {path}: {error}")),
    }
}

/// Names near `name`, the nearest first.
pub(crate) fn near<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let most = (name.chars().count() / 3).max(2);
    let wanted = name.to_lowercase();
    let mut ranked: Vec<(usize, &str)> = names
        .filter_map(|candidate| {
            let other = candidate.to_lowercase();
            let distance = strsim::damerau_levenshtein(&wanted, &other);
            let contains = wanted.len() >= 3 && (other.contains(&wanted) || wanted.contains(&other));
            // Two changes turn any short name into any other.
            (distance <= most && distance < other.chars().count() || contains && other.len() >= 3)
                .then_some((distance, candidate))
        })
        .collect();
    ranked.sort_unstable();
    ranked.dedup();
    ranked.into_iter().take(5).map(|(_, candidate)| candidate.to_owned()).collect()
}

#[cfg(test)]
mod tests;
