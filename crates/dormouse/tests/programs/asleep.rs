//! A service that is put to sleep counts nothing and records nothing, whatever its own code holds,
//! and goes on when it is woken: the sleep is charged to nobody. No test harness: the sleep is the
//! whole process's.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use dormouse::{Event, Group, Waiting};

dormouse::static_key! { static OWN: "own.branch" = false; }

/// A conversation with the agent.
struct Wire(UnixStream, BufReader<UnixStream>);

impl Wire {
    fn open(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        let mut wire = Self(stream.try_clone().unwrap(), BufReader::new(stream));
        wire.ask(r#""op":"hello","client":"a test""#);
        wire
    }

    fn ask(&mut self, request: &str) -> String {
        writeln!(self.0, r#"{{"v":1,"id":1,{request}}}"#).unwrap();
        let mut answer = String::new();
        self.1.read_line(&mut answer).unwrap();
        answer
    }
}

fn step(cups: u32) {
    dormouse::probe!("asleep.step", cups);
}

/// Uses that much CPU time.
fn burn(length: Duration) {
    let begun = dormouse::clock::thread_cpu_ns();
    while u128::from(dormouse::clock::thread_cpu_ns() - begun) < length.as_nanos() {
        std::hint::black_box(Instant::now());
    }
}

pub(crate) fn main() {
    let group = Group::new("GET /menu");
    let agent = dormouse::init().unwrap();
    let _counting = dormouse::start_counting(&[Event::TASK_CLOCK]).unwrap();
    let _waiting = Waiting::start().unwrap();
    let _own = OWN.acquire().unwrap();
    let mut trace = dormouse::trace("asleep.*").unwrap();
    let mut wire = Wire::open(agent.path());
    let mut records = || {
        step(2);
        let mut n = 0;
        trace.poll(|_, _, _| n += 1);
        n
    };
    // The task lasts over the sleep.
    group.scope(|| {
        burn(Duration::from_millis(2));
        assert_eq!(records(), 1);
        let slept = wire.ask(r#""op":"sleep""#);
        assert!(slept.contains(r#""ok":{"asleep":{"for_ms":"#), "{slept}");
        let cpu = group.read().cpu;
        burn(Duration::from_millis(50));
        assert_eq!((group.read().cpu, records()), (cpu, 0));
        assert!(!dormouse::waits::is_on() && dormouse::unlikely!(OWN));
        // A counting that begins now sleeps, too.
        let _counting = dormouse::start_counting(&[Event::TASK_CLOCK]).unwrap();
        let refused = wire.ask(r#""op":"stat""#);
        assert!(
            refused.contains(r#""code":"asleep""#) && refused.contains("dormouse is asleep for"),
            "{refused}"
        );
        assert!(wire.ask(r#""op":"doctor""#).contains("agent.asleep"));
        assert!(
            Wire::open(agent.path()).ask(r#""op":"hello","client":"""#).contains(r#""asleep":{"for_ms":"#)
        );
        let woken = wire.ask(r#""op":"wake""#);
        assert!(woken.contains(r#""was":{"for_ms":"#), "{woken}");
        burn(Duration::from_millis(2));
        let more = group.read().cpu.saturating_sub(cpu);
        assert!((Duration::from_millis(1)..Duration::from_millis(40)).contains(&more), "{more:?}");
        assert_eq!(records(), 1);
        assert!(dormouse::waits::is_on());
    });
    assert!(wire.ask(r#""op":"wake""#).contains(r#""ok":{"keys":0}"#));
    assert!(wire.ask(r#""op":"stat""#).contains(r#""ok":"#));
    println!("1 passed, 0 failed");
}
