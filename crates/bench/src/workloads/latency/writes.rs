//! `write/…`: what it costs that a route pays for the writing of its response.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::extract::Request;
use axum::handler::Handler as _;
use dormouse::{Event, Group, axum::handler, start_counting, tokio::connection};
use tokio::io::AsyncWrite;
use tokio::runtime::Builder;

use crate::bench::Bench;
use crate::clocks::cpu;
use crate::row::Spec;
use crate::runner::Failure;

/// Adds the rows.
pub(super) fn rows(bench: &mut Bench) {
    for (state, is_counted) in [("asleep", false), ("counted", true)] {
        for (payer, is_told) in [("connection", false), ("route", true)] {
            let spec = Spec::new(format!("write/{state}/{payer}"), "ns").per("response").cpu();
            bench.per_iteration(spec, move |count| responses(count, is_counted, is_told));
        }
    }
}

/// Adds what it costs that the route pays.
pub(super) fn compare(bench: &mut Bench) {
    for state in ["asleep", "counted"] {
        let name = |payer| format!("write/{state}/{payer}");
        bench.minus(format!("write-added/{state}"), &name("route"), &name("connection"));
    }
}

/// The time of `count` responses, each of which is made, written and flushed. `is_told`: in a task
/// of the runtime; outside of them no response is noted, and the connection pays.
fn responses(count: u64, is_counted: bool, is_told: bool) -> Result<Duration, Failure> {
    let _counting = is_counted.then(|| start_counting(&[Event::TASK_CLOCK])).transpose()?;
    let respond = async move {
        let route = handler(Group::new("bench responses"), async || ());
        let mut stream = connection(Socket, Group::new("bench connections"));
        let cx = &mut Context::from_waker(Waker::noop());
        let respond = |_| {
            let response = pin!(route.clone().call(Request::default(), ())).poll(cx);
            let written = Pin::new(&mut stream).poll_write(cx, b"HTTP/1.1 200 OK\r\n\r\n");
            let flushed = Pin::new(&mut stream).poll_flush(cx);
            response.is_ready() && written.is_ready() && flushed.is_ready()
        };
        let (time, all) = cpu(|| (0..count).all(respond));
        if all { Ok(time) } else { Err(Failure::wrong("a response was not written at once")) }
    };
    let runtime = Builder::new_current_thread().build()?;
    if is_told { runtime.block_on(runtime.spawn(respond))? } else { runtime.block_on(respond) }
}

/// A socket that takes everything, and costs nothing.
struct Socket;

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
