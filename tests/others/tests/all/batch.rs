//! The server for batch jobs.

use std::thread;

use crate::lines::Lines;
use crate::support::{Service, row};

/// Their pieces meet on the pool's threads, and each thread waits in one job while it does pieces
/// of another.
#[test]
fn jobs_have_the_time_of_their_pieces() {
    let mut service = Service::start("batch", &[]);
    let address = service.address;
    let clients: Vec<_> = ["map", "halves", "nested"]
        .into_iter()
        .map(|job| {
            thread::spawn(move || {
                let mut client = Lines::open(address);
                for _ in 0..2 {
                    assert_eq!(client.ask(job), "16", "{job}");
                }
            })
        })
        .collect();
    for client in clients {
        client.join().expect("a client");
    }
    let (shown, _) = service.charged();
    for job in ["map", "halves", "nested"] {
        let row = row(&shown, job);
        assert_eq!((row.requests, row.alive), (2, 0), "{job}");
    }
}

#[test]
fn panics_of_pieces_are_requests() {
    let mut service = Service::start("batch", &[]);
    let mut client = Lines::open(service.address);
    for _ in 0..3 {
        assert_eq!(client.ask("fail"), "failed");
    }
    assert_eq!(client.ask("map"), "16", "the pool goes on");
    let (shown, _) = service.charged();
    let row = row(&shown, "fail");
    assert_eq!((row.requests, row.alive), (3, 0));
}
