//! The part that the acceptance tests share: services to look into, the command as a process, a raw
//! connection.
//!
//! Services are this project's own `dormouse teaparty`, each with a runtime directory of its own,
//! so tests run side by side and beside whatever else runs here. Every wait has a deadline that
//! only a hang reaches.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// The command under test.
pub(crate) const DORMOUSE: &str = env!("CARGO_BIN_EXE_dormouse");

pub(crate) use dormouse_testkit::{HANG, skip};

/// The variables that say where a service puts its socket.
pub(crate) const RUNTIME_VARIABLES: [&str; 4] =
    ["DORMOUSE_RUNTIME_DIR", "XDG_RUNTIME_DIR", "DORMOUSE_RECORD_DIR", "DORMOUSE_TRIGGERS"];

/// A user that is neither root nor the owner of anything.
pub(crate) const NOBODY: u32 = 65534;

/// A service with an agent.
pub(crate) struct Service {
    child: Child,
    runtime: TempDir,
    pub(crate) url: String,
    /// Its lines on standard error before it listened.
    pub(crate) warning: String,
}

impl Service {
    /// One that nobody asks anything.
    pub(crate) fn idle() -> Service {
        Service::start(|_| {})
    }

    /// One with a load for as long as any test takes.
    pub(crate) fn busy() -> Service {
        Service::start(|command| {
            command.args(["--load", "300", "--for", "10m"]);
        })
    }

    /// One with a few guests: each route shows in all figures, and the test has the processor.
    pub(crate) fn visited() -> Service {
        Service::start(|command| {
            command.args(["--load", "40", "--for", "10m"]);
        })
    }

    /// One that `change` has changed the start of.
    pub(crate) fn start(change: impl FnOnce(&mut Command)) -> Service {
        Service::start_as(DORMOUSE.as_ref(), tempfile::tempdir().expect("a temporary directory"), change)
            .expect("the service starts")
    }

    /// One of the given program, whose socket is in `runtime` unless `change` has other ideas.
    pub(crate) fn start_as(
        program: &OsStr,
        runtime: TempDir,
        change: impl FnOnce(&mut Command),
    ) -> std::io::Result<Service> {
        let mut command = Command::new(program);
        // A tea house that is a program of its own has no subcommands.
        if !Path::new(program).ends_with("dormouse-teaparty") {
            command.arg("teaparty");
        }
        Service::start_by(command, runtime, change)
    }

    /// One that this command starts, up to the flags of the tea house.
    pub(crate) fn start_by(
        mut command: Command,
        runtime: TempDir,
        change: impl FnOnce(&mut Command),
    ) -> std::io::Result<Service> {
        command.args(["--exit-with-parent", "--workers", "2"]);
        for variable in RUNTIME_VARIABLES {
            command.env_remove(variable);
        }
        command.env("DORMOUSE_RUNTIME_DIR", runtime.path()).env_remove("RUST_LOG");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn()?;
        let mut lines = BufReader::new(child.stderr.take().expect("its standard error"));
        let mut warning = String::new();
        lines.read_line(&mut warning).expect("what it says of its agent");
        let mut url = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("its standard output"));
        stdout.read_line(&mut url).expect("where it listens");
        let url = url.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{url:?}")).to_owned();
        // Nobody shall fill a pipe: what follows is read and forgotten.
        std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
        std::thread::spawn(move || stdout.read_to_end(&mut Vec::new()));
        Ok(Service { child, runtime, url, warning })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its id as an argument.
    pub(crate) fn target(&self) -> String {
        self.pid().to_string()
    }

    /// The directory below which its socket is.
    pub(crate) fn runtime(&self) -> &Path {
        self.runtime.path()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.runtime().join(format!("dormouse/{}.sock", self.pid()))
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        signal_to(self.pid(), signal);
    }

    /// Kills it and waits for its end; its socket file stays.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a service to kill");
        self.child.wait().expect("the end of the service");
    }

    /// Gives its directory to the next service, which outlives it.
    pub(crate) fn take_runtime(&mut self) -> TempDir {
        std::mem::replace(&mut self.runtime, tempfile::tempdir().expect("a temporary directory"))
    }

    /// A connection of our own to its agent, greeted.
    pub(crate) fn wire(&self) -> Wire {
        let mut wire = Wire::open(&self.socket());
        let hello = wire.ask(r#"{"v":1,"id":1,"op":"hello","client":"test"}"#);
        assert_eq!(hello["ok"]["pid"], self.pid(), "{hello}");
        wire
    }

    /// Whether it serves requests and answers commands: what no bad input may end.
    pub(crate) fn assert_alive(&self) {
        let answer = self.get("/menu");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let run = run(["keys", &self.target()]);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
    }

    /// Asks it for a path, and gives the whole answer.
    pub(crate) fn get(&self, path: &str) -> String {
        let mut stream = self.connect();
        let request = format!("GET {path} HTTP/1.1\r\nHost: tea\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// A connection on which nothing was asked for yet.
    pub(crate) fn connect(&self) -> TcpStream {
        let address = self.url.strip_prefix("http://").expect("a URL");
        let stream = TcpStream::connect(address).expect("a service that accepts");
        stream.set_read_timeout(Some(HANG)).expect("a timeout");
        stream
    }

    /// How many keys that match are on.
    pub(crate) fn keys_on(&self, glob: &str) -> usize {
        let run = run(["--json", "keys", &self.target(), glob]);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        let keys = run.json()["keys"].as_array().expect("a list of keys").clone();
        assert!(!keys.is_empty());
        keys.iter().filter(|key| key["on"] == true).count()
    }

    /// Waits until so many keys that match are on.
    pub(crate) fn await_keys_on(&self, glob: &str, wanted: impl Fn(usize) -> bool) {
        let start = Instant::now();
        let mut on = self.keys_on(glob);
        while !wanted(on) {
            assert!(start.elapsed() < HANG, "{on} keys of {glob} are on");
            on = self.keys_on(glob);
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Stopped ones too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does `work` while a guest asks for `path` again and again, with pauses in which the machine is
/// others'.
pub(crate) fn with_guest<T>(service: &Service, path: &str, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                service.get(path);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_over.store(true, Relaxed);
        done.unwrap_or_else(|why| std::panic::resume_unwind(why))
    })
}

pub(crate) fn signal_to(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, signal).expect("a process of ours");
}

/// The result of a run of the command.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// Standard output as one document.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {:?}", self.stdout))
    }

    /// Standard output as one document a line.
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}"));
        self.stdout.lines().map(parse).collect()
    }

    /// Ended with `code`, said each of `parts` as a message, and nothing as data.
    #[track_caller]
    pub(crate) fn assert_fails(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} in {:?}", self.stderr);
        }
        assert_eq!(self.stdout, "", "messages are no data");
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Run {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// The command, without anything in its environment that says where services put their sockets.
pub(crate) fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(DORMOUSE);
    command.args(args);
    for variable in RUNTIME_VARIABLES {
        command.env_remove(variable);
    }
    // A shell that runs the tests in the background has them ignore Ctrl-C, and `nohup` the end of
    // the terminal. A program inherits that.
    // SAFETY: two system calls, which a child may make between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            Ok(())
        })
    };
    command
}

/// Runs the command to its end.
#[track_caller]
pub(crate) fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    finish(command(args))
}

/// Runs a command to its end, which must come.
#[track_caller]
pub(crate) fn finish(command: Command) -> Run {
    finish_within(command, HANG)
}

/// Runs a command to its end, which must come in this time.
#[track_caller]
pub(crate) fn finish_within(command: Command, at_most: Duration) -> Run {
    let output = assert_cmd::Command::from_std(command).timeout(at_most).output().expect("the command runs");
    assert!(output.status.code().is_some() || output.stderr.is_empty(), "killed: {output:?}");
    output.into()
}

/// The command while it runs.
pub(crate) struct Running {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Running {
    /// Starts it.
    pub(crate) fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Running {
        let mut command = command(args);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it");
        let stdout = BufReader::new(child.stdout.take().expect("its standard output"));
        Running { child, stdout }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line of data.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line
    }

    /// Sends a signal and waits for the end, which must come.
    pub(crate) fn end_by(self, signal: Signal) -> Run {
        signal_to(self.pid(), signal);
        self.end()
    }

    /// Closes the pipe that it writes data to, and waits for the end.
    pub(crate) fn end_by_closing_stdout(self) -> Run {
        let Running { child, stdout } = self;
        drop(stdout);
        Running::wait(child, String::new())
    }

    /// Waits for the end, which must come.
    pub(crate) fn end(mut self) -> Run {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).expect("the rest of the data");
        Running::wait(self.child, rest)
    }

    fn wait(mut child: Child, stdout: String) -> Run {
        let mut stderr = String::new();
        child.stderr.take().expect("its standard error").read_to_string(&mut stderr).expect("its messages");
        let code = child.wait().expect("its end").code();
        Run { code, stdout, stderr }
    }
}

/// A connection to an agent that sends what the test likes.
pub(crate) struct Wire {
    stream: BufReader<UnixStream>,
}

impl Wire {
    pub(crate) fn open(socket: &Path) -> Wire {
        let stream = UnixStream::connect(socket).expect("a listening agent");
        stream.set_read_timeout(Some(HANG)).expect("a timeout");
        stream.set_write_timeout(Some(HANG)).expect("a timeout");
        Wire { stream: BufReader::new(stream) }
    }

    /// Sends bytes; that the agent may have hung up is not looked at here.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.get_mut().write_all(bytes);
    }

    /// The next line as JSON; `None` when the agent has hung up.
    pub(crate) fn receive(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line:?}"))),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// Sends a line and gives the answer to it.
    pub(crate) fn ask(&mut self, line: &str) -> Value {
        self.send(format!("{line}\n").as_bytes());
        self.receive().expect("an answer")
    }
}
