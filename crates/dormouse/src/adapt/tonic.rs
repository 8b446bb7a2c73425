//! Streams for tonic's own server.

use ::tonic::transport::server::Connected;

use super::connection::ServedStream;

/// So `tonic::transport::Server::serve_with_incoming` accepts streams of
/// [`tokio::connection`](crate::tokio::connection), and handlers get the address as before.
impl<I: Connected> Connected for ServedStream<I> {
    type ConnectInfo = I::ConnectInfo;

    fn connect_info(&self) -> I::ConnectInfo {
        self.get_ref().expect("there until the drop").connect_info()
    }
}
