//! Profiles that a client of the agent asks for: they are the connection's, come in parts, and end
//! with it. Each test is a child: samples are signals.
#![cfg(not(dormouse_fallback))]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use dormouse::Group;
use dormouse::profile::Profile;
use dormouse_protocol::{
    Code, Doctor, DoctorRequest, HelloRequest, Op, PROTOCOL, ProfileBegun, ProfilePart, ProfileReportRequest,
    ProfileRequest, Request, Response, WireError,
};
use dormouse_testkit::{HANG, eventually, in_child, spin_for};
use serde::de::DeserializeOwned;

struct Client(BufReader<UnixStream>);

impl Client {
    fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        let mut client = Self(BufReader::new(stream));
        let hello = client.ask::<serde_json::Value>(HelloRequest { client: "a test".into(), notices: false });
        let ops = hello.unwrap()["ops"].clone();
        assert!(ops.as_array().unwrap().iter().any(|op| op == "profile"), "{ops}");
        client
    }

    fn ask<T: DeserializeOwned>(&mut self, request: impl Into<Op>) -> Result<T, WireError> {
        let request = serde_json::to_string(&Request { v: PROTOCOL, id: 1, op: request.into() }).unwrap();
        writeln!(self.0.get_mut(), "{request}").unwrap();
        let mut answer = String::new();
        self.0.read_line(&mut answer).unwrap();
        let answer: Response<T> = serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{e}: {answer}"));
        answer.ok.ok_or_else(|| answer.error.unwrap())
    }

    fn begin(&mut self, request: ProfileRequest) -> Result<u32, WireError> {
        self.ask::<ProfileBegun>(request).map(|begun| begun.number)
    }

    fn read(&mut self, number: u32) -> Profile {
        let first: ProfilePart = self.ask(ProfileReportRequest { number, from: 0 }).unwrap();
        let (mut whole, mut next) = (first.part, first.next);
        while let Some(from) = next {
            let part: ProfilePart = self.ask(ProfileReportRequest { number, from }).unwrap();
            next = part.next;
            part.join(&mut whole);
        }
        whole
    }
}

/// An agent in a directory of its own, which is there as long as the test.
fn init() -> PathBuf {
    let place = tempfile::tempdir().unwrap().keep();
    // SAFETY: no other thread of this child reads the environment.
    unsafe { std::env::set_var("DORMOUSE_RUNTIME_DIR", &place) };
    dormouse::init().unwrap().path().to_owned()
}

/// The threads and timers that profiles have in this process.
fn left() -> (usize, usize) {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    let threads = names.filter(|name| name.starts_with("dormouse-p")).count();
    let timers = std::fs::read_to_string("/proc/self/timers").unwrap_or_default();
    (threads, timers.matches("ID:").count())
}

fn sum(profile: &Profile, name: &str) -> u64 {
    let at = profile.groups.iter().position(|group| group.name == name).unwrap();
    profile.samples.iter().filter(|row| row.group as usize == at).map(|row| row.values[1]).sum()
}

#[test]
fn a_client_reads_its_profile_often() {
    in_child(|| {
        let group = Group::new("brewing");
        let mut client = Client::connect(&init());
        let number = client.begin(ProfileRequest::default()).unwrap();
        let other = client.begin(ProfileRequest { hz: Some(19), ..ProfileRequest::default() }).unwrap();
        assert_ne!(number, other);
        let work = || group.scope(|| spin_for(Duration::from_millis(200)));
        work();
        let first = client.read(number);
        assert!(sum(&first, "brewing") >= 200_000_000 && !first.stacks.is_empty());
        assert_eq!(first.pid, std::process::id());
        work();
        let second = client.read(number);
        assert!(sum(&second, "brewing") >= 400_000_000);
        assert!(second.duration_ns > first.duration_ns);
        assert_eq!(1_000_000_000 / client.read(other).period, 19);
    });
}

#[test]
fn a_refusal_has_its_code_and_near_names() {
    in_child(|| {
        Group::new("GET /menu");
        let mut client = Client::connect(&init());
        let mut refused = |request: ProfileRequest| client.begin(request).unwrap_err();
        let group = |glob: &str| ProfileRequest { group: Some(glob.into()), ..ProfileRequest::default() };
        let none = refused(group("GET /menue"));
        assert_eq!((none.code, none.near), (Code::NoGroup, vec!["GET /menu".to_owned()]));
        assert_eq!(refused(group("a,,b")).code, Code::BadGlob);
        let hz = |hz| ProfileRequest { hz: Some(hz), ..ProfileRequest::default() };
        assert_eq!(refused(hz(0)).code, Code::BadRequest);
        assert_eq!(refused(hz(1001)).message, "`hz` is 1001, and must be from 1 to 1000");
        for _ in 0..4 {
            client.begin(ProfileRequest::default()).unwrap();
        }
        assert_eq!(client.begin(ProfileRequest::default()).unwrap_err().code, Code::Busy);
        let unknown = client.ask::<ProfilePart>(ProfileReportRequest { number: 77, from: 0 }).unwrap_err();
        assert_eq!(unknown.code, Code::NoProfile);
        let before = client.ask::<ProfilePart>(ProfileReportRequest { number: 1, from: 5 }).unwrap_err();
        assert_eq!(before.code, Code::NoProfile);
    });
}

#[test]
fn another_connection_has_no_profile_of_this_one() {
    in_child(|| {
        let socket = init();
        let (mut one, mut two) = (Client::connect(&socket), Client::connect(&socket));
        let number = one.begin(ProfileRequest::default()).unwrap();
        assert!(two.ask::<ProfilePart>(ProfileReportRequest { number, from: 0 }).is_err());
    });
}

#[test]
fn doctor_says_whether_it_can_be() {
    in_child(|| {
        let doctor: Doctor = Client::connect(&init()).ask(DoctorRequest {}).unwrap();
        assert!(doctor.checks.iter().any(|check| check.name == "profile.cpu"), "{doctor:?}");
    });
}

/// The client of the next test: it asks for a profile, and is killed.
#[test]
#[ignore = "the client of another test"]
fn client() {
    let socket = std::env::var_os("TEST_SOCKET").expect("a socket");
    let mut client = Client::connect(Path::new(&socket));
    client.begin(ProfileRequest { hz: Some(250), timeline: true, ..ProfileRequest::default() }).unwrap();
    println!("begun");
    thread::sleep(HANG);
}

#[test]
fn a_killed_client_leaves_nothing() {
    in_child(|| {
        let socket = init();
        let mut client = Command::new(std::env::current_exe().unwrap())
            .args(["profile_agent::client", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env("TEST_SOCKET", &socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(client.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.ends_with("begun")));
        let has_timers = Path::new("/proc/self/timers").exists();
        // A thread that it has begun has its name for a moment.
        eventually(|| {
            let (threads, timers) = left();
            threads == 1 && (timers > 0 || !has_timers)
        });
        client.kill().unwrap();
        client.wait().unwrap();
        eventually(|| left() == (0, 0));
        // The agent is there for the next one.
        Client::connect(&socket).begin(ProfileRequest::default()).unwrap();
    });
}
