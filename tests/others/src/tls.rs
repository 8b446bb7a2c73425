//! A web service over TLS: rustls below hyper, in an accept loop of its own.
//!
//! Its arguments are the number of workers, and the folder of its certificate and key.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use axum::{Router, routing::get};
use dormouse::Group;
use dormouse::hyper::Executor;
use dormouse::tower::GroupLayer;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::known;

pub(crate) fn run() -> io::Result<()> {
    let folder = std::env::args().nth(3).ok_or(io::ErrorKind::InvalidInput)?;
    let acceptor = TlsAcceptor::from(Arc::new(config(Path::new(&folder))?));
    let routes = GroupLayer::new(|request: &Request| {
        request.extensions().get().map_or("unmatched", MatchedPath::as_str).into()
    });
    let app = Router::new()
        .route("/compute", get(compute))
        .route("/fast", get(async || "fast\n"))
        .route("/block", get(async || known::hold("/block")))
        .layer(routes);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(known::workers()).enable_all().build()?.block_on(accept(acceptor, app))
}

fn config(folder: &Path) -> io::Result<ServerConfig> {
    let certificates = CertificateDer::pem_file_iter(folder.join("certificate.pem"));
    let certificates = certificates.and_then(Iterator::collect).map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).map_err(io::Error::other)?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(certificates, key);
    config.map_err(io::Error::other)
}

async fn accept(acceptor: TlsAcceptor, app: Router) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    known::serve(listener.local_addr()?);
    let connections = Group::new("connections");
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let stream = dormouse::tokio::received(stream);
        let (acceptor, service) = (acceptor.clone(), TowerToHyperService::new(app.clone()));
        tokio::spawn(connections.connection().instrument(async move {
            let stream = acceptor.accept(stream).await?;
            let builder = Builder::new(Executor::server());
            let served = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
            served.await.map_err(io::Error::other)
        }));
    }
}

async fn compute() -> &'static str {
    known::burn("/compute", Duration::from_millis(20));
    "computed\n"
}
