//! The store with its own accept loop.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;

use dormouse_testkit::HANG;

use crate::support::{Service, assert_charged, row};

struct Client(BufReader<TcpStream>);

impl Client {
    fn open(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("a service that accepts");
        stream.set_nodelay(true).expect("an option");
        stream.set_read_timeout(Some(HANG)).expect("a timeout");
        Client(BufReader::new(stream))
    }

    fn send(&mut self, command: &str) {
        self.0.get_mut().write_all(format!("{command}\n").as_bytes()).expect("a service that reads");
    }

    /// Empty once the service has hung up.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.line()
    }
}

#[test]
fn commands_have_their_time() {
    let mut service = Service::start("tcp");
    let address = service.address;
    let clients: Vec<_> = (0..4)
        .map(|n| {
            thread::spawn(move || {
                let mut client = Client::open(address);
                for _ in 0..25 {
                    assert_eq!(client.ask(&format!("set key{n} value")), "ok");
                    assert_eq!(client.ask(&format!("get key{n}")), "value");
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().expect("a client"));
    service.await_alive("connections", 0);
    service.assert_awaiting(0);
    let (known, shown) = (service.known(), service.shown());
    assert_charged(&shown, &known);
    assert_eq!((row(&shown, "get").requests, row(&shown, "set").requests), (100, 100));
}
