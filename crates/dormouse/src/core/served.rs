//! Connections, and the requests that they serve.

use dormouse_waits::Arrival;

use crate::core::arrival::arrival_of_request;
use crate::core::group::Group;
use crate::core::task::Task;
use crate::core::tasks::Origin;

impl Group {
    /// A task of the group that serves a connection. It is no request: it does not count among
    /// [`requests`](crate::GroupStat), and how long it lives is no latency.
    ///
    /// ```
    /// # async fn serve(stream: std::net::TcpStream) { drop(stream) }
    /// # fn accepted(stream: std::net::TcpStream) -> impl Future {
    /// let connections = dormouse::Group::new("connections");
    /// connections.connection().instrument(serve(stream)) // and spawn it
    /// # }
    /// ```
    pub fn connection(self) -> Task {
        Task::begun(self, self.begin_from(Origin::Connection))
    }

    /// A task in which a connection of the group goes on with one request, as with a stream of
    /// HTTP/2. It is neither that request nor another connection.
    #[cfg(feature = "hyper")]
    pub(crate) fn stream(self) -> Task {
        Task::begun_as(self, self.begin_from(Origin::Connection), None, |_| None)
    }

    /// A task of the group that answers a request which the present connection has received, as
    /// [`GroupLayer`](crate::tower::GroupLayer) begins one. Its latency begins when the request
    /// came: when the kernel received it, if the connection is read by `dormouse::tokio`'s
    /// `ServedStream`; otherwise, in a task of [`Group::connection`], when that was woken. In all
    /// other places it is [`Group::task`].
    ///
    /// ```
    /// # async fn put(line: String) { drop(line) }
    /// # fn command(line: String) -> impl Future {
    /// dormouse::Group::new("put").request().instrument(put(line))
    /// # }
    /// ```
    pub fn request(self) -> Task {
        self.request_of(None)
    }

    /// Does what [`Group::request`] does. `cloned_for` is when the request came if that is not
    /// noted here.
    pub(crate) fn request_of(self, cloned_for: Option<Arrival>) -> Task {
        let is_part = dormouse_events::current_context() == self.id() && !is_in_connection();
        let number = self.begin_from(if is_part { Origin::Part } else { self.served() });
        Task::begun_after(self, number, |around| arrival_of_request(around, cloned_for))
    }
}

/// Whether the current task is a connection, or a stream of one. That is no request, so what it
/// serves is a part of none, also in its own group.
pub(crate) fn is_in_connection() -> bool {
    Origin::of(dormouse_events::current_task()) == Origin::Connection
}
