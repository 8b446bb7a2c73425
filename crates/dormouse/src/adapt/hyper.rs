//! hyper's own spawns, in groups.

use super::tokio::spawn;

/// An executor for hyper: what it spawns stays in the group that is current there.
///
/// A server of hyper's spawns a task for each request of HTTP/2, and a program that accepts by
/// itself spawns the connection. So one line each puts both into a group:
///
/// ```
/// use dormouse::{Group, hyper::Executor};
/// use hyper_util::{rt::TokioIo, server::conn::auto::Builder, service::TowerToHyperService};
///
/// # async fn serve(listener: tokio::net::TcpListener, app: axum::Router) -> std::io::Result<()> {
/// let connections = Group::new("connections");
/// loop {
///     let (stream, _) = listener.accept().await?;
///     let service = TowerToHyperService::new(app.clone());
///     tokio::spawn(connections.connection().instrument(async move {
///         let builder = Builder::new(Executor);
///         builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await
///     }));
/// }
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Executor;

impl<F> ::hyper::rt::Executor<F> for Executor
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    fn execute(&self, future: F) {
        drop(spawn(future));
    }
}
