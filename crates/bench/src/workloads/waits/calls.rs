//! `call/NAME`: an outgoing call from its begin to its end, with the look-up of its peer.

use std::hint::black_box;
use std::time::Duration;

use dormouse::{Call, CallKind, Group};
use dormouse_waits::Waiting;

use crate::bench::Bench;
use crate::clocks::thread_cpu_ns;
use crate::row::Spec;

/// A statement as an ORM writes it.
const STATEMENT: &str =
    "SELECT \"tea\".\"id\", \"tea\".\"name\" FROM \"tea\" WHERE \"tea\".\"id\" IN ($1, $2, $3) LIMIT 20";

/// Adds the rows.
pub(crate) fn rows(bench: &mut Bench) {
    row(bench, "asleep", false, CallKind::Http, "stock.example.net:8080");
    row(bench, "awake", true, CallKind::Http, "stock.example.net:8080");
    row(bench, "statement", true, CallKind::Sql, STATEMENT);
}

fn row(bench: &mut Bench, name: &str, is_awake: bool, kind: CallKind, peer: &'static str) {
    let spec = Spec::new(format!("call/{name}"), "ns").per("call").cpu();
    bench.per_iteration(spec, move |calls| {
        let _held = is_awake.then(Waiting::start).transpose()?;
        let began = thread_cpu_ns();
        Group::new("bench calls").scope(|| {
            (0..calls).for_each(|_| Call::begin(kind, black_box(peer)).end(false));
        });
        Ok(Duration::from_nanos(thread_cpu_ns() - began))
    });
}
