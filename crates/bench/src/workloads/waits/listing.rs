//! `list/NAME`: very many tasks that wait, as a client of the agent reads them, part by part.
//!
//! The client is in the same process, and so are the tasks; the agent has a thread of its own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use dormouse_protocol::{
    Hello, HelloRequest, Op, PROTOCOL, Request, Response, TasksPart, TasksRequest, WaitsBegun, WaitsRequest,
};
use serde::de::DeserializeOwned;

use super::reading::waiters;
use crate::bench::Bench;
use crate::row::Spec;
use crate::runner::Failure;

/// The rows: the whole list, and the longest part, for which other clients wait.
pub(super) const ALL: &str = "list/all";
const PART: &str = "list/longest-part";

/// Adds the rows.
pub(super) fn rows(bench: &mut Bench) {
    let tasks = bench.pick(100_000, 10_000);
    let specs = [ALL, PART].map(|name| Spec::new(name, "ms").wall().with("tasks", tasks));
    let Some(agent) = bench.need(specs.clone(), dormouse::init().map_err(|why| why.to_string())) else {
        return;
    };
    bench.sample(specs, move || {
        let mut client = Client::connect(agent.path())?;
        let _begun: WaitsBegun = client.ask(WaitsRequest::default())?;
        let _waiters = waiters(tasks);
        client.list(tasks)
    });
}

/// A connection to an agent.
struct Client(BufReader<UnixStream>);

impl Client {
    fn connect(socket: &Path) -> Result<Self, Failure> {
        let mut client = Self(BufReader::new(UnixStream::connect(socket)?));
        let _hello: Hello = client.ask(HelloRequest { client: "bench".to_owned(), notices: false })?;
        Ok(client)
    }

    fn ask<T: DeserializeOwned>(&mut self, request: impl Into<Op>) -> Result<T, Failure> {
        let request = serde_json::to_string(&Request { v: PROTOCOL, id: 1, op: request.into() })?;
        writeln!(self.0.get_mut(), "{request}")?;
        let mut answer = String::new();
        self.0.read_line(&mut answer)?;
        let answer: Response<T> = serde_json::from_str(&answer)?;
        answer.ok.ok_or_else(|| Failure::wrong(format!("{:?}", answer.error)))
    }

    /// The time to list `tasks` tasks, and that of its longest part, in milliseconds.
    fn list(&mut self, tasks: u64) -> Result<[f64; 2], Failure> {
        let (mut all, mut longest) = (Duration::ZERO, Duration::ZERO);
        let (mut seen, mut from) = (0, Some(0));
        while let Some(next) = from {
            let begun = Instant::now();
            let part: TasksPart = self.ask(TasksRequest { from: next })?;
            let took = begun.elapsed();
            (all, longest) = (all + took, longest.max(took));
            from = part.next;
            seen +=
                part.tasks.rows().ok_or_else(|| Failure::wrong("columns of unequal length"))?.count() as u64;
        }
        if seen < tasks {
            return Err(Failure::wrong(format!("{seen} of {tasks} tasks are listed")));
        }
        Ok([all, longest].map(|took| took.as_secs_f64() * 1e3))
    }
}
