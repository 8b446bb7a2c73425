//! The web service over TLS.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::lines::Lines;
use crate::support::{Service, row};

/// The service's certificate and key, for `localhost`: of no use elsewhere.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tls");

const HOST: &str = "localhost";

fn start(workers: &str) -> Service {
    Service::start("tls", &[workers, FOLDER])
}

/// A client that trusts the service's certificate alone.
fn open(address: SocketAddr) -> Lines<StreamOwned<ClientConnection, TcpStream>> {
    let certificate = CertificateDer::from_pem_file(format!("{FOLDER}/certificate.pem"));
    let mut roots = RootCertStore::empty();
    roots.add(certificate.expect("a certificate")).expect("one that can be trusted");
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let host = HOST.try_into().expect("a name");
    let client = ClientConnection::new(Arc::new(config), host).expect("a client");
    Lines::over(address, |stream| StreamOwned::new(client, stream))
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r")
}

#[test]
fn routes_have_their_time() {
    let mut service = start("2");
    let mut clients: Vec<_> = (0..3).map(|_| open(service.address)).collect();
    for _ in 0..4 {
        for client in &mut clients {
            client.send(&request("/compute"));
            client.skip_to("computed");
            client.send(&request("/missing"));
            client.skip_to("content-length: 0");
            while !client.line().is_empty() {}
        }
    }
    drop(clients);
    service.await_alive("connections", 0);
    let (shown, _) = service.charged();
    for route in ["/compute", "unmatched"] {
        assert_eq!((row(&shown, route).requests, row(&shown, route).alive), (12, 0), "{route}");
    }
}

#[test]
fn idle_connections_await_their_clients() {
    let mut service = start("2");
    let mut clients = [open(service.address), open(service.address)];
    for client in &mut clients {
        client.send(&request("/fast"));
        client.skip_to("fast");
    }
    service.assert_awaiting(&["connections", "connections"]);
}

#[test]
fn a_blocked_worker_is_latency_of_others() {
    let mut service = start("1");
    let mut fast = open(service.address);
    let mut blocks = open(service.address);
    service.await_stamps("/fast", || {
        fast.send(&request("/fast"));
        fast.skip_to("fast");
    });
    blocks.send(&request("/block"));
    service.await_noted("held", "/block", 1);
    let send = || {
        fast.send(&request("/fast"));
        fast
    };
    service.assert_queued("/fast", send, |mut fast| fast.skip_to("fast"));
}
