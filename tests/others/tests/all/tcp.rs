//! The store with its own accept loop.

use std::thread;

use crate::lines::Lines;
use crate::support::{Service, row};

#[test]
fn commands_have_their_time() {
    let mut service = Service::start("tcp", &[]);
    let address = service.address;
    let clients: Vec<_> = (0..4)
        .map(|n| {
            thread::spawn(move || {
                let mut client = Lines::open(address);
                for _ in 0..8 {
                    assert_eq!(client.ask(&format!("set key{n} value")), "ok");
                    assert_eq!(client.ask(&format!("get key{n}")), "value");
                    assert_eq!(client.ask("wait 1"), "waited");
                }
            })
        })
        .collect();
    for client in clients {
        client.join().expect("a client");
    }
    service.await_alive("connections", 0);
    let (shown, known) = service.charged();
    for command in ["get", "set", "wait"] {
        assert_eq!(row(&shown, command).requests, 32, "{command}");
    }
    let waits = |group| row(&shown, group).waits.as_ref().expect("times");
    // A thread that waits for the lock is in a poll, and not on a CPU.
    let set = waits("set");
    let stalled = set.poll_ns - set.on_cpu_ns.expect("CPU time");
    assert!(stalled as f64 >= known.of("stalled", "set") as f64 * 0.98, "{stalled} ns: {set:?}");
    let (wait, waited) = (waits("wait"), known.of("waited", "wait"));
    let shown = wait.await_ns + wait.runnable_ns + wait.poll_ns;
    assert!((shown as f64 / waited as f64 - 1.0).abs() < 0.05, "{shown} of {waited} ns: {wait:?}");
}

#[test]
fn hang_ups_and_panics_are_requests() {
    let mut service = Service::start("tcp", &[]);
    for number in 0..4 {
        let mut subscriber = Lines::open(service.address);
        assert_eq!(subscriber.ask("subscribe"), "subscribed");
        let mut client = Lines::open(service.address);
        assert_eq!(client.ask(&format!("publish {number}")), "1");
        assert_eq!(subscriber.line(), number.to_string());
        drop(subscriber);
        service.await_alive("subscribe", 0);
        assert_eq!(client.ask("fail"), "", "a connection that has panicked");
        service.await_alive("connections", 0);
    }
    let (shown, _) = service.charged();
    for command in ["subscribe", "publish", "fail"] {
        let row = row(&shown, command);
        assert_eq!((row.requests, row.started, row.alive), (4, 4, 0), "{command}");
    }
}

#[test]
fn idle_connections_await_their_clients() {
    let mut service = Service::start("tcp", &[]);
    let mut clients = [Lines::open(service.address), Lines::open(service.address)];
    assert_eq!(clients[0].ask("get nothing"), "");
    assert_eq!(clients[1].ask("subscribe"), "subscribed");
    service.assert_awaiting(&["connections", "connections", "subscribe"]);
}

#[test]
fn a_blocked_worker_is_latency_of_others() {
    let mut service = Service::start("tcp", &["1"]);
    let mut fast = Lines::open(service.address);
    service.await_stamps("wait", || assert_eq!(fast.ask("wait 0"), "waited"));
    let mut blocks = Lines::open(service.address);
    blocks.send("hold");
    service.await_noted("held", "hold", 1);
    let send = || {
        fast.send("wait 0");
        fast
    };
    service.assert_queued("wait", send, |mut fast| assert_eq!(fast.line(), "waited"));
}
