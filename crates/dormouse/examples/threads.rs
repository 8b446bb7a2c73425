//! A job on plain threads: its group pays for all of them, and is told when it has used its budget.
//!
//! ```sh
//! cargo run -p dormouse --example threads
//! ```

use std::time::Duration;

use dormouse::events::Mode;
use dormouse::{Event, Group, thread};

/// Counts primes, the slow way.
fn primes(numbers: std::ops::Range<u32>) -> usize {
    numbers.filter(|n| (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0)).count()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [job, check] = ["count primes", "check"].map(Group::new);
    let _counting = job.start_counting(&[Event::TASK_CLOCK, Event::PAGE_FAULTS], Mode::GroupExact)?;
    let budget = job.budget(Duration::from_millis(5))?;
    let (send, told) = std::sync::mpsc::channel();
    let _watch = budget.on_exceeded(move |used| {
        let _ = send.send(used);
    });

    // This thread is charged to the job, and so are the threads that `dormouse::thread` starts in
    // it.
    let found: usize = job.scope(|| {
        let parts: Vec<_> = (0..4).map(|part| part * 50_000 + 2..(part + 1) * 50_000 + 2).collect();
        thread::scope(|scope| {
            let threads: Vec<_> = parts.into_iter().map(|part| scope.spawn(move || primes(part))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        })
    });
    // A thread that is a group from its beginning to its end.
    let small = check.spawn_thread(|| primes(2..1000))?.join().expect("no panic");
    println!("{found} primes below 200002, {small} below 1000");

    let used = told.recv_timeout(Duration::from_secs(10))?;
    println!("over its budget of 5 ms: {}", used >= Duration::from_millis(5));
    for stat in [job.read(), check.read()] {
        println!("{}: {:?} of CPU time, {} tasks", stat.name, stat.cpu, stat.finished);
    }
    for count in job.read_counts() {
        println!("{}: {}", count.event.name(), count.value);
    }
    Ok(())
}
