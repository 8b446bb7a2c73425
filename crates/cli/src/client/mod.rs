//! A conversation with one agent: a request line, an answer line, and after `trace` a stream of
//! [`frames`].
//!
//! The other side may be stopped, half dead, another version or no agent at all. So every wait has
//! an end, what is read is bounded, and each way in which an answer can be wrong has its own
//! message. After such an error a client is not used again.

pub(crate) mod file;
pub(crate) mod frames;
pub(crate) mod profile;
pub(crate) mod room;
pub(crate) mod session;
pub(crate) mod waits;

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use dormouse_protocol::{
    Code, Hello, HelloRequest, MAX_LINE, Note, Notice, PROTOCOL, Request, Response, Verb, WireError,
};
use rustix::event::{PollFd, PollFlags};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use file::Recorded;
use room::{AnswerBudget, AnswerRoom};

use crate::duration::short_of;
use crate::exit::{Exit, Failure, Outcome};
use crate::signals::poll_until;
use crate::target::{Finder, Found, Process, Target, describe};
use crate::text::clean;

/// The most values in an answer: the shortest take three bytes, and much more once they are read.
const MAX_PARTS: usize = 4 << 20;

/// The most notices that a call passes over before its answer.
const MAX_NOTICES: usize = 1024;

/// The subcommand that this process runs: agents name it to others, with its process.
static COMMAND: OnceLock<String> = OnceLock::new();

/// Sets the subcommand, before the first conversation.
pub(crate) fn set_command(name: Option<&str>) {
    if let Some(name) = name {
        COMMAND.get_or_init(|| name.to_owned());
    }
}

/// The operations of the agents that announce none.
const OLDEST: [&str; 6] = ["keys", "on", "off", "trace", "stat", "doctor"];

/// A conversation, opened by `hello`.
#[derive(Debug)]
pub(crate) struct Client {
    source: Source,
    /// The process in our own namespace; it may call itself otherwise.
    pub(crate) pid: u32,
    /// `teaparty (process 12)`, for messages.
    pub(crate) who: String,
    /// The operations that the agent announces, and its version.
    ops: Vec<String>,
    version: String,
    patience: Duration,
    next_id: u64,
    /// Bytes that came and were not used yet.
    inbox: Vec<u8>,
    /// The memory that answers may take, if that is bounded; and the part of it that the last one
    /// takes.
    room: Option<AnswerRoom>,
    kept: Option<AnswerRoom>,
    /// The longest answer, in bytes, if answers are bounded.
    longest: usize,
}

/// The other side of a conversation.
#[derive(Debug)]
enum Source {
    /// A connection to an agent.
    Socket(UnixStream),
    /// A recorder's file.
    File(Box<Recorded>),
}

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    Some,
    Nothing,
    /// The agent has closed the connection.
    End,
}

/// The fields that every answer has in every version.
#[derive(Deserialize)]
struct Head {
    v: u32,
    #[serde(rename = "id")]
    _id: u64,
}

impl Client {
    fn new(source: Source, pid: u32, who: String, patience: Duration) -> Client {
        let (ops, version, inbox) = (Vec::new(), String::new(), Vec::new());
        let (room, kept, longest) = (None, None, usize::MAX);
        Client { source, pid, who, ops, version, patience, next_id: 1, inbox, room, kept, longest }
    }

    /// Notes what the agent has said of itself.
    fn know(&mut self, hello: &Hello) {
        self.ops.clone_from(&hello.ops);
        self.version.clone_from(&hello.version);
    }

    /// Finds the process that `target` means and opens a conversation with its agent; or with a
    /// recorder's file.
    pub(crate) fn open(target: &Target, patience: Duration) -> Outcome<(Client, Hello)> {
        if let Target::File(path) = target {
            return Client::of_file(path, patience);
        }
        let finder = Finder::new();
        Client::reach(&finder, &finder.find(target)?, patience)
    }

    /// Opens a conversation with the agent of a process that was found.
    pub(crate) fn reach(finder: &Finder, found: &Found, patience: Duration) -> Outcome<(Client, Hello)> {
        let (stream, is_verified) = finder.connect(found, patience)?;
        let process = &found.process;
        let mut client = Client::new(Source::Socket(stream), process.pid, describe(process), patience);
        client.room = AnswerRoom::of(process.uid);
        let hello = client.greet()?;
        if !is_verified {
            client.check_identity(&hello, process)?;
        }
        Ok((client, hello))
    }

    /// Does what [`Client::reach`] does, for a process that was found some time ago. If it cannot
    /// be reached where it was found, it is looked up again: another program that it has executed
    /// has another socket, if that has an abstract name.
    #[cfg(feature = "serve")]
    pub(crate) fn reach_again(
        finder: &Finder,
        found: &Found,
        patience: Duration,
    ) -> Outcome<(Client, Hello)> {
        let Process { pid, start_ticks, .. } = found.process;
        Client::reach(finder, found, patience).or_else(|failure| {
            match finder.find(&Target::Exact(pid, start_ticks)) {
                Ok(now) if !now.has_sockets_of(found) => Client::reach(finder, &now, patience),
                _ => Err(failure),
            }
        })
    }

    /// Says hello.
    fn greet(&mut self) -> Outcome<Hello> {
        let command = COMMAND.get().map_or(String::new(), |command| format!("{command} "));
        let name = format!("dormouse {command}{}", env!("CARGO_PKG_VERSION"));
        let hello = self.call(HelloRequest { client: name, notices: true })?;
        self.know(&hello);
        Ok(hello)
    }

    /// Waits this long for each further answer.
    #[cfg(feature = "serve")]
    pub(crate) fn be_patient(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Refuses longer answers, if answers are bounded.
    #[cfg(feature = "serve")]
    pub(crate) fn refuse_longer(&mut self, bytes: usize) {
        self.longest = bytes;
    }

    /// The longest answer, in bytes, if answers are bounded.
    pub(crate) fn longest(&self) -> Option<usize> {
        self.room.as_ref().map(|_| self.longest)
    }

    /// The memory of the last answer, for as long as that is kept: the next answer of this
    /// connection replaces it.
    pub(crate) fn keep_room(&mut self) -> Option<AnswerRoom> {
        self.kept.take()
    }

    /// Holds the memory of answers that were put together until the next answer.
    pub(crate) fn hold_room(&mut self, room: Option<AnswerRoom>) {
        self.kept = room;
    }

    /// Asks, and waits for the answer for as long as patience lasts.
    pub(crate) fn call<V: Verb>(&mut self, request: V) -> Outcome<V::Answer> {
        if let Source::File(recorded) = &mut self.source {
            return recorded.call(&request.into());
        }
        self.demand::<V>()?;
        let id = self.next_id;
        self.next_id += 1;
        let mut line = serde_json::to_vec(&Request { v: PROTOCOL, id, op: request.into() })
            .map_err(|error| Failure::failed(format!("cannot write a request: {error}")))?;
        line.push(b'\n');
        if line.len() > MAX_LINE {
            let message = format!("the request is {} bytes long, the most is {MAX_LINE}", line.len());
            return Err(Failure::new(Exit::Usage, message).hint("use a shorter glob list"));
        }
        let deadline = Instant::now() + self.patience;
        self.send(&line, deadline)?;
        let longest = self.longest().unwrap_or(usize::MAX);
        for _ in 0..=MAX_NOTICES {
            let line = self.line(deadline, V::LONGEST_ANSWER.min(longest))?;
            if let Some(answer) = self.understand(&line, id)? {
                self.kept = self.room.as_mut().map(AnswerRoom::keep);
                return Ok(answer);
            }
        }
        Err(self.nonsense(&format!("it sent more than {MAX_NOTICES} notices, and no answer")))
    }

    /// Returns a failure if the agent does not support an operation: requesting it would end the
    /// connection.
    pub(crate) fn demand<V: Verb>(&self) -> Outcome<()> {
        if self.knows::<V>() {
            return Ok(());
        }
        let message = format!("its dormouse ({}) {}", clean(&self.version), V::LACKS);
        Err(Failure::new(Exit::Unsupported, message).hint("build the service with a newer dormouse"))
    }

    /// Whether the agent supports an operation.
    pub(crate) fn knows<V: Verb>(&self) -> bool {
        let name = V::ANNOUNCED_AS;
        name == HelloRequest::NAME || OLDEST.contains(&name) || self.ops.iter().any(|op| op == name)
    }

    /// The notices that have come, once there is something to read; the end of the conversation is
    /// a failure.
    pub(crate) fn notices(&mut self) -> Outcome<Vec<Note>> {
        let filled = self.fill()?;
        let whole = self.inbox.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<u8> = self.inbox.drain(..whole).collect();
        if filled == Filled::End {
            return Err(self.hung_up());
        }
        if self.inbox.len() > MAX_LINE {
            return Err(self.nonsense("a line without an end"));
        }
        let notices = lines.split(|&byte| byte == b'\n').map(serde_json::from_slice::<Notice>);
        Ok(notices.filter_map(|notice| Some(notice.ok()?.note)).collect())
    }

    /// Ends the conversation, and with it all that the agent does for it.
    pub(crate) fn close(&self) {
        if let Source::Socket(stream) = &self.source {
            // Fails where the other side has ended it.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Readable when the agent has sent something, or has closed the connection.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.source {
            Source::Socket(stream) => stream.as_fd(),
            Source::File(recorded) => recorded.as_fd(),
        }
    }

    /// A peer that the kernel could not name must at least call itself the wanted process.
    fn check_identity(&self, hello: &Hello, process: &Process) -> Outcome<()> {
        if (hello.pid, hello.start_ticks) == (process.inner_pid, process.start_ticks) {
            return Ok(());
        }
        let named = clean(&hello.name);
        Err(Failure::new(
            Exit::NoTarget,
            format!("the agent reached for {} calls itself {named} (process {})", self.who, hello.pid),
        ))
    }

    /// Writes all of `line`. An agent that hangs up may have said why before, so that is no failure
    /// yet.
    fn send(&mut self, line: &[u8], deadline: Instant) -> Outcome<()> {
        let mut rest = line;
        while !rest.is_empty() {
            let Source::Socket(stream) = &mut self.source else { return Ok(()) };
            match stream.write(rest) {
                Ok(n) => rest = &rest[n..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::OUT, deadline, "read no request")?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_hang_up(&error) => return Ok(()),
                Err(error) => return Err(self.broken(&error)),
            }
        }
        Ok(())
    }

    /// The next line, without its end. Later bytes stay in the inbox.
    fn line(&mut self, deadline: Instant, most: usize) -> Outcome<Vec<u8>> {
        let mut searched = 0;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.inbox[searched..]) {
                let rest = self.inbox.split_off(searched + end + 1);
                let mut line = std::mem::replace(&mut self.inbox, rest);
                line.pop();
                let values = memchr::memchr_iter(b',', &line).count() + 1;
                if values > MAX_PARTS {
                    return Err(self.nonsense(&format!("its answer has more than {MAX_PARTS} values")));
                }
                if self.room.as_mut().is_some_and(|room| !room.fit_parts(line.len(), values)) {
                    return Err(self.without_room());
                }
                return Ok(line);
            }
            searched = self.inbox.len();
            if searched > most && self.room.is_some() {
                return Err(self.too_long(most));
            }
            if searched > most {
                return Err(self.nonsense(&format!("its answer is longer than {most} bytes")));
            }
            match self.fill()? {
                Filled::Some => {}
                Filled::Nothing => self.wait(PollFlags::IN, deadline, "given no answer")?,
                Filled::End => return Err(self.hung_up()),
            }
        }
    }

    /// Reads what has come into the inbox, once.
    fn fill(&mut self) -> Outcome<Filled> {
        let mut piece = [0; 16 * 1024];
        loop {
            let stream = match &mut self.source {
                Source::Socket(stream) => stream,
                Source::File(recorded) => {
                    let has_more = recorded.fill(&mut self.inbox)?;
                    return Ok(if has_more { Filled::Some } else { Filled::End });
                }
            };
            match stream.read(&mut piece) {
                Ok(0) => return Ok(Filled::End),
                Ok(n) => {
                    self.inbox.extend_from_slice(&piece[..n]);
                    if self.room.as_mut().is_some_and(|room| !room.fit(self.inbox.len())) {
                        return Err(self.without_room());
                    }
                    return Ok(Filled::Some);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Filled::Nothing),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_hang_up(&error) => return Ok(Filled::End),
                Err(error) => return Err(self.broken(&error)),
            }
        }
    }

    fn wait(&self, what: PollFlags, deadline: Instant, omission: &str) -> Outcome<()> {
        let mut fds = [PollFd::from_borrowed_fd(self.as_fd(), what)];
        let ready = poll_until(&mut fds, Some(deadline)).map_err(|error| self.broken(&error))?;
        if ready > 0 {
            return Ok(());
        }
        Err(self.silent(omission))
    }

    /// The answer of a line; `None` if that is a notice, which is for a client that waits for
    /// nothing else.
    fn understand<T: DeserializeOwned>(&self, line: &[u8], id: u64) -> Outcome<Option<T>> {
        // Read as an answer before anything else: it may have megabytes, and is read once.
        let answer: Response<T> = match serde_json::from_slice(line) {
            Ok(answer) => answer,
            Err(_) if serde_json::from_slice::<Notice>(line).is_ok() => return Ok(None),
            Err(error) => return Err(self.misunderstood(line, &error)),
        };
        if answer.v != PROTOCOL {
            return Err(self.other_version(&format!("protocol {}", answer.v)));
        }
        match (answer.ok, answer.error) {
            (None, Some(error)) if answer.id == id || answer.id == 0 => Err(self.refusal(error)),
            (Some(it), None) if answer.id == id => Ok(Some(it)),
            (Some(_), None) | (None, Some(_)) => {
                Err(self.nonsense(&format!("it answered request {} when {id} was asked", answer.id)))
            }
            _ => Err(self.nonsense(&format!("neither an answer nor an error alone: {}", excerpt(line)))),
        }
    }

    /// The failure that a line means which is no answer of this version.
    fn misunderstood(&self, line: &[u8], error: &serde_json::Error) -> Failure {
        match serde_json::from_slice(line) {
            Ok(Head { v, .. }) if v != PROTOCOL => self.other_version(&format!("protocol {v}")),
            Ok(_) => self.nonsense(&format!("{error} in {}", excerpt(line))),
            Err(_) => self.nonsense(&format!("it said {}", excerpt(line))),
        }
    }

    /// The failure that a refusal of the agent means here.
    fn refusal(&self, error: WireError) -> Failure {
        let message = clean(&error.message);
        let exit = match error.code {
            Code::BadGlob | Code::TooLong | Code::BadWatch | Code::BadRule => Exit::Usage,
            Code::Denied => Exit::Denied,
            Code::NoWatching | Code::NoProfile => Exit::Unsupported,
            Code::Version => return self.other_version(&message),
            _ => Exit::Failed,
        };
        let failure = Failure::new(exit, message).near(error.near).by_agent(error.code);
        match error.code {
            Code::BadGlob => failure.hint("globs are as in \"db.*,!db.noisy\"; quote them from the shell"),
            Code::NoMatch => failure.hint("dormouse keys TARGET lists the keys"),
            Code::Denied => failure.hint("run this as the service's user or as root"),
            Code::NoGroup => failure.hint("dormouse top TARGET shows the groups"),
            Code::NoSlot => failure.hint("dormouse slots TARGET lists the holders; --flexible takes turns, with other --flexible watches"),
            Code::Asleep => failure.hint("dormouse wake TARGET wakes it"),
            Code::Busy => failure.hint("end another client of this service, or try again"),
            _ => failure,
        }
    }

    fn other_version(&self, what: &str) -> Failure {
        Failure::new(
            Exit::Unsupported,
            format!("{} does not speak this command's protocol {PROTOCOL}: {what}", self.who),
        )
        .hint("use the dormouse command of the version that the service was built with")
    }

    pub(crate) fn without_room(&self) -> Failure {
        Failure::failed(format!(
            "there is no room for an answer of {}: all answers of its user's services may take at most half of {} MiB",
            self.who,
            AnswerBudget::BYTES >> 20
        ))
        .hint("run dormouse serve as that user")
    }

    /// The answer of a service of another user is longer than that.
    fn too_long(&self, most: usize) -> Failure {
        Failure::failed(format!(
            "the answer of {} is longer than {most} bytes, the most that is taken of another user's service",
            self.who
        ))
        .hint("run dormouse serve as that user")
    }

    pub(crate) fn silent(&self, omission: &str) -> Failure {
        silent(&self.who, omission, self.patience)
    }

    pub(crate) fn nonsense(&self, what: &str) -> Failure {
        Failure::failed(format!(
            "the process that answers for {} does not speak dormouse's protocol: {what}",
            self.who
        ))
    }

    fn broken(&self, error: &io::Error) -> Failure {
        Failure::failed(format!("the connection to {} broke: {error}", self.who))
    }

    /// The end of the conversation where none was due.
    pub(crate) fn hung_up(&self) -> Failure {
        let whence = match self.inbox.len() {
            0 => "ended, or closed the connection",
            _ => "ended, or closed the connection, in the middle of an answer",
        };
        let mut failure = Failure::failed(format!("{} {whence}", self.who))
            .hint("if it still runs, it may have had no memory for this client, waited 10 s for it, or lost its dormouse");
        if let Failure::Said(report) = &mut failure {
            report.has_hung_up = true;
        }
        failure
    }
}

fn silent(who: &str, omission: &str, patience: Duration) -> Failure {
    Failure::failed(format!("{who} has {omission} for {}", short_of(patience)))
        .hint("it may be stopped or overloaded; --timeout waits longer")
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// The beginning of `bytes`, made safe for a message.
fn excerpt(bytes: &[u8]) -> String {
    const MOST: usize = 60;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MOST)]);
    let dots = if bytes.len() > MOST { " …" } else { "" };
    format!("\"{}{dots}\"", clean(&text))
}

#[cfg(test)]
mod tests;
