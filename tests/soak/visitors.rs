//! Visitors: processes of the command that do one thing each, and end as chance has it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use tempfile::TempDir;

use super::chance::Chance;
use super::house::House;
use crate::support::{HANG, command, signal_to};

/// The most that are there at a time.
const CROWD: usize = 5;

/// The commands that nobody visits with. `ps` to `generate` look into nothing or into all; `serve`
/// is the [`Scraper`]'s; `sleep` ends what others do, until `wake`; beside an `experiment` others
/// may switch nothing.
const NO_VISITS: [&str; 9] =
    ["ps", "demo", "bench", "compare", "generate", "serve", "sleep", "wake", "experiment"];

/// Their commands; `{}` is the house.
const VISITS: [&str; 40] = [
    "on {} * --for 200ms",
    "on {} menu.*,soak.* --for 1s",
    "on {} steep.*,soak.*",
    "on {} order.* --keep",
    "on {} soak.sugar --dwell 100ms",
    "on {} dormouse.publish --for 300ms",
    "off {} *",
    "off {} soak.* --force",
    "reset {} *",
    "keys {}",
    "clients {}",
    "list {}",
    "trace {} * --for 400ms",
    "trace {} soak.*,menu.* -n 20 --for 2s",
    "trace {} dormouse.poll,dormouse.task,steep.* --for 300ms -o {}.pftrace",
    "top {} --once",
    "top {} -n 2 -i 100ms -e task-clock,alloc-count,page-faults",
    "stat {} --for 300ms",
    "stat {} --for 300ms --waits -e task-clock,alloc-bytes",
    "watch {} TALLY:8 --for 300ms",
    "watch {} TALLY:8 -a rw --for 300ms --flexible --stacks",
    "slots {}",
    "maps {}",
    "profile {} --for 300ms",
    "profile {} --for 300ms --kind alloc --live",
    "profile {} --for 300ms --kind wall",
    "profile {} --for 300ms --unwind -o {}.pb.gz",
    "profile {} --for 300ms --kind faults",
    "tasks {} --for 200ms --wake",
    "tasks {} --long-poll 5ms --for 300ms",
    "tasks {} --for 200ms --cpu",
    "tasks {} --tree",
    "tasks {} --for 200ms --leaks",
    "locks {} --for 300ms",
    "record {} menu.*,soak.* --memory 256KiB",
    "record {} --save",
    "triggers {} --add request>20ms",
    "triggers {} --add long-poll>5ms",
    "triggers {} --add lock>20ms",
    "doctor {}",
];

/// Each command of `dormouse` is a visit, or is none for a reason.
pub(crate) fn assert_complete(help: &str) {
    let list = help.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a list");
    let commands = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    for command in commands.filter(|name| !name.is_empty() && !NO_VISITS.contains(name)) {
        let is_it = |visit: &&str| visit.split(' ').next() == Some(command);
        assert!(VISITS.iter().any(is_it), "no visit by {command}");
    }
}

fn waits_for_ctrl_c(visit: &str) -> bool {
    visit == "on {} steep.*,soak.*" || visit.contains("--dwell")
}

/// How a visit ends.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// By itself.
    Natural,
    /// By SIGKILL, after this many steps.
    Killed(usize),
    /// By SIGKILL, after it has been stopped from a step to another.
    Stopped(usize, usize),
    /// By itself, after it has been stopped for this many steps.
    Continued(usize, usize),
    /// By a signal that it handles.
    Interrupted(usize),
}

impl Fate {
    fn by(chance: &mut Chance) -> Fate {
        let (from, length) = (chance.below(20), 1 + chance.below(30));
        match chance.below(6) {
            0 | 1 => Fate::Natural,
            2 => Fate::Killed(from),
            3 => Fate::Stopped(from, from + length),
            4 => Fate::Continued(from, from + length),
            _ => Fate::Interrupted(from),
        }
    }

    /// The signal of a step.
    fn signal(self, step: usize) -> Option<Signal> {
        match self {
            Fate::Killed(at) if at == step => Some(Signal::KILL),
            Fate::Stopped(from, _) | Fate::Continued(from, _) if from == step => Some(Signal::STOP),
            Fate::Stopped(_, to) if to == step => Some(Signal::KILL),
            Fate::Continued(_, to) if to == step => Some(Signal::CONT),
            Fate::Interrupted(at) if at == step => Some(Signal::INT),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Visitor {
    child: Child,
    visit: &'static str,
    fate: Fate,
    step: usize,
    began: Instant,
    /// The signals that it was sent.
    sent: Vec<i32>,
}

impl Visitor {
    /// Whether it has left.
    fn step(&mut self) -> bool {
        if let Some(signal) = self.fate.signal(self.step) {
            // It is not waited for yet: the id is its own.
            signal_to(self.child.id(), signal);
            self.sent.push(signal.as_raw());
        }
        self.step += 1;
        assert!(self.began.elapsed() < HANG, "{} hangs", self.visit);
        let Some(status) = self.child.try_wait().expect("a child") else { return false };
        let mut said = String::new();
        self.child.stderr.take().expect("its messages").read_to_string(&mut said).expect("text");
        // Refusals have their codes; a panic has 101, and a crash a signal that nobody sent.
        let is_known = match (status.code(), status.signal()) {
            (Some(code), _) => [0, 1, 5, 130].contains(&code),
            (None, signal) => signal.is_some_and(|signal| self.sent.contains(&signal)),
        };
        assert!(is_known && !said.contains("panicked"), "{}: {status}: {said}", self.visit);
        true
    }
}

/// All that are there.
#[derive(Debug)]
pub(crate) struct Visitors {
    target: String,
    here: Vec<Visitor>,
    count: usize,
    files: TempDir,
}

impl Visitors {
    pub(crate) fn new(house: &House) -> Visitors {
        let files = tempfile::tempdir().expect("a temporary directory");
        Visitors { target: house.target(), here: Vec::new(), count: 0, files }
    }

    fn start(&mut self, visit: &'static str, fate: Fate) -> Visitor {
        self.count += 1;
        let words = visit.split(' ').map(|word| word.replace("{}", &self.target));
        let mut command = command(["--timeout", "60s"].map(str::to_owned).into_iter().chain(words));
        command.current_dir(self.files.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(Stdio::piped()).spawn().expect("a visitor");
        Visitor { child, visit, fate, step: 0, began: Instant::now(), sent: Vec::new() }
    }

    /// Each kind of visit, some at a time.
    pub(crate) fn each_once(&mut self) {
        for visit in VISITS {
            let fate = if waits_for_ctrl_c(visit) { Fate::Interrupted(50) } else { Fate::Natural };
            let visitor = self.start(visit, fate);
            self.here.push(visitor);
            while self.here.len() >= CROWD {
                self.look();
            }
        }
        while !self.here.is_empty() {
            self.look();
        }
    }

    fn look(&mut self) {
        std::thread::sleep(super::STEP);
        self.here.retain_mut(|visitor| !visitor.step());
    }

    pub(crate) fn step(&mut self, chance: &mut Chance) {
        self.here.retain_mut(|visitor| !visitor.step());
        if self.here.len() < CROWD {
            let visit = chance.of(&VISITS);
            let fate = match Fate::by(chance) {
                // It would stay for ever.
                Fate::Natural | Fate::Continued(..) if waits_for_ctrl_c(visit) => Fate::Interrupted(20),
                fate => fate,
            };
            let visitor = self.start(visit, fate);
            self.here.push(visitor);
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// All are killed, as they are.
    pub(crate) fn leave(&mut self) {
        for visitor in &mut self.here {
            visitor.child.kill().expect("a child");
            visitor.child.wait().expect("its end");
        }
        self.here.clear();
    }
}

impl Drop for Visitors {
    fn drop(&mut self) {
        for visitor in &mut self.here {
            let _ = visitor.child.kill();
            let _ = visitor.child.wait();
        }
    }
}

/// `dormouse serve` for the house, and somebody who reads it.
#[derive(Debug)]
pub(crate) struct Scraper {
    target: String,
    folder: TempDir,
    server: Option<(Child, String)>,
    count: usize,
}

impl Scraper {
    pub(crate) fn open(house: &House) -> Scraper {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut scraper = Scraper { target: house.target(), folder, server: None, count: 0 };
        scraper.start();
        scraper
    }

    pub(crate) fn start(&mut self) {
        let mut serve = command(["serve", "--listen", "127.0.0.1:0", "--public-metrics", "--token-file"]);
        serve.arg(self.folder.path().join("token")).arg(&self.target);
        let mut child = serve
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a server");
        let mut said = BufReader::new(child.stderr.take().expect("its messages"));
        let address = loop {
            let mut line = String::new();
            assert!(said.read_line(&mut line).expect("a line") > 0, "serve has ended");
            if let Some((_, rest)) = line.split_once("http://") {
                break rest.split('/').next().expect("an address").trim().to_owned();
            }
        };
        std::thread::spawn(move || said.read_to_end(&mut Vec::new()));
        self.server = Some((child, address));
    }

    /// Reads the metrics of the house.
    pub(crate) fn scrape(&mut self) {
        let (_, address) = self.server.as_ref().expect("a server");
        let mut stream = TcpStream::connect(address).expect("a server that accepts");
        stream.set_read_timeout(Some(HANG)).expect("a timeout");
        write!(stream, "GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")
            .expect("a request");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", answer.escape_ascii());
        self.count += 1;
    }

    /// Mostly reads; goes without a farewell, and comes again.
    pub(crate) fn step(&mut self, chance: &mut Chance) {
        match chance.below(40) {
            0 => {
                self.leave();
                self.start();
            }
            1..8 => self.scrape(),
            _ => {}
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Killed in the middle.
    pub(crate) fn leave(&mut self) {
        if let Some((mut child, _)) = self.server.take() {
            child.kill().expect("a child");
            child.wait().expect("its end");
        }
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        self.leave();
    }
}
