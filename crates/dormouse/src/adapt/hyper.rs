//! hyper's own spawns, and connections that it has upgraded, in groups.

use super::arrived::Arrived;
use super::inherit::{carry, current};
use super::outside::outside;
use super::tokio::{spawn, spawn_as};
use crate::core::arrival::arrival_here;
use crate::core::group::Group;
use crate::core::served::is_in_connection;

/// An executor for hyper: it decides which group pays for the tasks that hyper spawns.
///
/// A server takes [`Executor::server`], a client with a pool of connections [`Executor::group`].
///
/// ```
/// use dormouse::{Group, hyper::Executor};
/// use hyper_util::{rt::TokioIo, server::conn::auto::Builder, service::TowerToHyperService};
///
/// # async fn serve(listener: tokio::net::TcpListener, app: axum::Router) -> std::io::Result<()> {
/// let connections = Group::new("connections");
/// loop {
///     let (stream, _) = listener.accept().await?;
///     let stream = dormouse::tokio::received(stream);
///     let service = TowerToHyperService::new(app.clone());
///     tokio::spawn(connections.connection().instrument(async move {
///         let builder = Builder::new(Executor::server());
///         builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await
///     }));
/// }
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Executor(Payer);

#[derive(Debug, Clone, Copy)]
enum Payer {
    /// The group that is current at the spawn.
    Current,
    Group(Group),
    Nobody,
}

impl Executor {
    /// The tasks stay in the group that is current at their spawn: a server's tasks for the streams
    /// of HTTP/2 are in the group of their connection. Do not give it to a client: its connections
    /// would stay, for all their life, in the group of the request that has opened them.
    pub const fn server() -> Self {
        Self(Payer::Current)
    }

    /// The tasks are in `group`, as [connections](Group::connection): for a client, whose
    /// connections serve the requests of other groups, too. hyper's client also spawns tasks that
    /// are no connections, such as one for a response whose body is still to be read; they count as
    /// well.
    ///
    /// ```
    /// use dormouse::{Group, hyper::Executor};
    /// use hyper_util::client::legacy::Client;
    ///
    /// let upstream = Executor::group(Group::new("upstream"));
    /// let client = Client::builder(upstream).build_http::<axum::body::Body>();
    /// # let _ = client;
    /// ```
    pub const fn group(group: Group) -> Self {
        Self(Payer::Group(group))
    }

    /// The tasks are in no group: for a client whose connections need no figures of their own.
    pub const fn outside() -> Self {
        Self(Payer::Nobody)
    }
}

impl<F> ::hyper::rt::Executor<F> for Executor
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    #[track_caller]
    fn execute(&self, future: F) {
        let future = Arrived::new(future, arrival_here());
        drop(match self.0 {
            Payer::Current => match current().filter(|_| is_in_connection()) {
                Some(group) => spawn_as(group.stream(), future),
                None => spawn(future),
            },
            Payer::Group(group) => spawn_as(group.connection(), future),
            Payer::Nobody => ::tokio::task::spawn(outside(future)),
        });
    }
}

/// Serves a connection that hyper has upgraded, in the group that is current here: as a
/// [connection](Group::connection) of the group, and no part of the request that asked for it. Call
/// it in the handler, and spawn the future by whatever spawns.
///
/// ```
/// use hyper::{Request, Response, StatusCode, body::Incoming};
///
/// async fn echo(stream: hyper::upgrade::Upgraded) { drop(stream) }
///
/// async fn handler(request: Request<Incoming>) -> Response<String> {
///     let upgrade = hyper::upgrade::on(request);
///     tokio::spawn(dormouse::hyper::upgraded(upgrade, echo));
///     let mut response = Response::new(String::new());
///     *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
///     response
/// }
/// ```
///
/// # Errors
///
/// The future returns the error of the upgrade.
#[track_caller]
pub fn upgraded<U, I, E, S, T>(upgrade: U, serve: S) -> impl Future<Output = Result<T::Output, E>>
where
    U: Future<Output = Result<I, E>>,
    S: FnOnce(I) -> T,
    T: Future,
{
    let serve = carry().callback(serve);
    async move { Ok(serve(upgrade.await?).await) }
}
