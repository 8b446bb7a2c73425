//! A job on plain threads: its group pays for all of them, and is told when it has used its budget.
//! A thread with a listener tells the metrics, without any framework.
//!
//! ```sh
//! cargo run -p dormouse --example threads
//! cargo run -p dormouse --example threads -- 127.0.0.1:8080
//! curl http://127.0.0.1:8080/metrics
//! ```

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use dormouse::metrics::{Metrics, MetricsSpec};
use dormouse::{Group, thread};

/// Counts primes, the slow way.
fn primes(numbers: std::ops::Range<u32>) -> usize {
    numbers.filter(|n| (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0)).count()
}

/// The job, in a group that pays for this thread and for those that `dormouse::thread` starts in
/// it.
fn job(group: Group) -> usize {
    group.scope(|| {
        let parts: Vec<_> = (0..4).map(|part| part * 50_000 + 2..(part + 1) * 50_000 + 2).collect();
        thread::scope(|scope| {
            let threads: Vec<_> = parts.into_iter().map(|part| scope.spawn(move || primes(part))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        })
    })
}

/// Answers one scraper, in the format that its request accepts.
fn answer(mut guest: TcpStream, metrics: &Metrics) -> io::Result<()> {
    guest.set_read_timeout(Some(Duration::from_secs(1)))?;
    let head = BufReader::new(guest.try_clone()?.take(8192)).lines();
    let head: Vec<String> =
        head.take_while(|line| !line.as_ref().is_ok_and(String::is_empty)).collect::<Result<_, _>>()?;
    let accept = head.iter().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("accept").then(|| value.trim())
    });
    let answer = metrics.answer(accept);
    write!(
        guest,
        "HTTP/1.1 {} \r\nconnection: close\r\ncontent-length: {}\r\n",
        answer.status,
        answer.body.len()
    )?;
    for (name, value) in &answer.headers {
        write!(guest, "{name}: {value}\r\n")?;
    }
    guest.write_all(b"\r\n")?;
    guest.write_all(&answer.body)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Groups are counted as long as this lives.
    let metrics = Metrics::start(&MetricsSpec::new())?;
    let wanted = std::env::args().nth(1);
    let listener = TcpListener::bind(wanted.as_deref().unwrap_or("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    let server = std::thread::spawn(move || {
        for guest in listener.incoming() {
            // A scraper that hangs up comes again.
            let _ = guest.and_then(|guest| answer(guest, &metrics));
        }
    });

    let [counted, check] = ["count primes", "check"].map(Group::new);
    let budget = counted.budget(Duration::from_millis(5))?;
    let (send, told) = std::sync::mpsc::channel();
    let _watch = budget.on_exceeded(move |used| {
        let _ = send.send(used);
    });
    let found = job(counted);
    // A thread that is a group from its beginning to its end.
    let small = check.spawn_thread(|| primes(2..1000))?.join().expect("no panic");
    println!("{found} primes below 200002, {small} below 1000");
    let used = told.recv_timeout(Duration::from_secs(10))?;
    println!("over its budget of 5 ms: {}", used >= Duration::from_millis(5));
    if wanted.is_some() {
        server.join().expect("no panic");
    }

    let mut scraper = TcpStream::connect(address)?;
    write!(scraper, "GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n")?;
    let mut told = String::new();
    scraper.read_to_string(&mut told)?;
    for line in told.lines().filter(|line| line.contains("{group=")) {
        println!("{line}");
    }
    Ok(())
}
