//! Verbs that run for a client over HTTP.
//!
//! A verb runs on a thread of its own, where it may wait, with a [`Context`] whose output is the
//! answer. It is cancelled when the client leaves, at the end of the longest time that it may take,
//! and when the server ends.
//!
//! | it writes | the answer is |
//! |---|---|
//! | a document | that, once it is whole or longer than [`HELD`]; a failure before has its status |
//! | lines | server-sent events, from the first on |

use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::response::Response;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::answers::{EVENTS, JSON, bad, busy, bytes, failed, over_http};
use super::flow::{self, BodyWriter, Gone, HEARTBEAT};
use crate::client::session::Subject;
use crate::duration::short_of;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Context, as_document, error_document};
use crate::signals::{Disconnect, Signals};
use crate::verb::Call;

/// Verbs that run at once: fewer than an agent has clients, so that it has room for others.
const MOST: usize = 24;

/// How long a service may take to answer one.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest that a verb may take whose answer is lines.
const LINES: Duration = Duration::from_secs(3600);

/// The longest document that is held until it is known how its verb ends.
const HELD: usize = 1 << 20;

/// The longest that a verb may take whose answer is one document.
const DOCUMENT: Duration = Duration::from_secs(300);

/// Bytes that a verb writes at once.
const PIECE: usize = 64 * 1024;

/// Pieces that wait for the client.
const PIECES: usize = 4;

/// The stack of a thread: what reads debug information goes deep.
const STACK: usize = 8 << 20;

/// How long a verb may take to end once it shall.
const ENDING: Duration = Duration::from_secs(10);

/// The form of what a verb writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Document,
    Lines,
    /// A document that is no JSON.
    Bytes,
}

/// The part of a run that came next.
#[derive(Debug)]
enum Part {
    Data(Vec<u8>),
    Said(String),
    End(Outcome),
}

/// The places for runs that happen at the same time.
#[derive(Debug, Clone)]
pub(super) struct RunSlots {
    places: Arc<Semaphore>,
    /// True once the server ends.
    end: watch::Receiver<bool>,
}

/// A run; dropped, it ends.
#[derive(Debug)]
struct Run {
    parts: mpsc::Receiver<Part>,
    /// Dropped when it shall end.
    client: Option<Disconnect>,
    due: Instant,
    end: watch::Receiver<bool>,
}

/// Writes a run's output into the parts that the client gets.
struct PartWriter(mpsc::Sender<Part>);

#[derive(Serialize)]
struct Said<'a> {
    message: &'a str,
}

#[derive(Serialize)]
struct Ended {
    exit: u8,
}

impl Write for PartWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE)];
        self.0.blocking_send(Part::Data(piece.to_vec())).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl RunSlots {
    pub(super) fn new(end: watch::Receiver<bool>) -> RunSlots {
        RunSlots { places: Arc::new(Semaphore::new(MOST)), end }
    }

    /// Runs a verb, and answers with what it writes.
    pub(super) async fn call(&self, call: Call, subject: Subject) -> Response {
        let (shape, longest) =
            if call.is_stream { (Shape::Lines, LINES) } else { (Shape::Document, DOCUMENT) };
        if call.length.is_some_and(|length| length > longest) {
            return bad(&format!("\"for\" is longer than {}, the most over HTTP", short_of(longest)));
        }
        self.answer(shape, longest, move |context| (call.run)(&subject, context)).await
    }

    /// Runs `work`, for that long at most, and answers with what it writes.
    pub(super) async fn answer(
        &self,
        shape: Shape,
        longest: Duration,
        work: impl FnOnce(&mut Context) -> Outcome + Send + 'static,
    ) -> Response {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return busy(&format!("{MOST} requests like this are being answered"));
        };
        match Run::start(place, longest, self.end.clone(), work) {
            Ok(run) if shape == Shape::Lines => run.lines().await,
            Ok(run) => run.document(shape).await,
            Err(error) => busy(&format!("cannot begin: {error}")),
        }
    }
}

impl Run {
    fn start(
        place: OwnedSemaphorePermit,
        longest: Duration,
        end: watch::Receiver<bool>,
        work: impl FnOnce(&mut Context) -> Outcome + Send + 'static,
    ) -> io::Result<Run> {
        let (cancel, client) = Signals::remote()?;
        let (sender, parts) = mpsc::channel(PIECES);
        let body = move || {
            // Free for the next when this one has ended.
            let _place = place;
            let said = sender.clone();
            let hear = move |text: &str| drop(said.blocking_send(Part::Said(text.to_owned())));
            let mut context = Context::remote(PartWriter(sender.clone()), hear, cancel, PATIENCE);
            let result = work(&mut context);
            // Data from before a failure is still worth having.
            let result = context.flush().and(result);
            let _ = sender.blocking_send(Part::End(result));
        };
        thread::Builder::new().name("serve-verb".into()).stack_size(STACK).spawn(body)?;
        Ok(Run { parts, client: Some(client), due: Instant::now() + longest, end })
    }

    /// The next part; the end of a run that came to none.
    async fn next(&mut self) -> Part {
        let broken = || Part::End(Err(Failure::failed("it broke off")));
        if self.client.is_some() {
            tokio::select! {
                part = self.parts.recv() => return part.unwrap_or_else(broken),
                () = sleep_until(self.due) => {}
                () = flow::over(&mut self.end) => {}
            }
            self.client = None;
            self.due = Instant::now() + ENDING;
        }
        tokio::select! {
            part = self.parts.recv() => part.unwrap_or_else(broken),
            () = sleep_until(self.due) => Part::End(Err(Failure::failed("it took too long"))),
        }
    }

    async fn document(mut self, shape: Shape) -> Response {
        let kind = if shape == Shape::Bytes { "application/octet-stream" } else { "" };
        let kind = if kind.is_empty() { JSON } else { axum::http::HeaderValue::from_static(kind) };
        let mut held = Vec::new();
        while held.len() <= HELD {
            match self.next().await {
                Part::Data(piece) => held.extend_from_slice(&piece),
                Part::Said(_) => {}
                Part::End(Ok(_)) => return bytes(kind, held),
                Part::End(Err(failure)) => return failed(&failure),
            }
        }
        let (writer, body) = flow::body();
        tokio::spawn(async move {
            if writer.write(held).await.is_ok() {
                let _ = self.rest(&writer).await;
            }
        });
        bytes(kind, body)
    }

    /// The rest of a document that is too long to be held.
    async fn rest(&mut self, writer: &BodyWriter) -> Result<(), Gone> {
        loop {
            match self.next().await {
                Part::Data(piece) => writer.write(piece).await?,
                Part::Said(_) => {}
                Part::End(Ok(_)) => return Ok(()),
                Part::End(Err(_)) => {
                    writer.break_off().await;
                    return Ok(());
                }
            }
        }
    }

    async fn lines(mut self) -> Response {
        // A run that fails at once has a status that says so.
        let mut first = vec![self.next().await];
        while let Some(Part::Said(_)) = first.last() {
            first.push(self.next().await);
        }
        if let Some(Part::End(Err(failure @ Failure::Said(_)))) = first.last() {
            return failed(failure);
        }
        let (writer, body) = flow::body();
        tokio::spawn(async move {
            let _ = self.events(first, &writer).await;
        });
        bytes(EVENTS, body)
    }

    async fn events(&mut self, first: Vec<Part>, writer: &BodyWriter) -> Result<(), Gone> {
        let (mut first, mut line) = (first.into_iter(), Vec::new());
        loop {
            let part = if let Some(part) = first.next() {
                part
            } else {
                let part = tokio::select! {
                    part = timeout(HEARTBEAT, self.next()) => part.ok(),
                    () = writer.left() => return Err(Gone),
                };
                let Some(part) = part else {
                    writer.beat().await?;
                    continue;
                };
                part
            };
            match part {
                Part::Data(piece) => {
                    line.extend_from_slice(&piece);
                    if let Some(end) = line.iter().rposition(|&byte| byte == b'\n') {
                        writer.write(events_of(&line[..end])).await?;
                        line.drain(..=end);
                    }
                }
                Part::Said(message) => {
                    writer.event("message", &as_document(&Said { message: &message })).await?;
                }
                Part::End(Ok(exit)) => return writer.event("end", &ended(exit)).await,
                Part::End(Err(Failure::StdoutClosed)) => return Err(Gone),
                Part::End(Err(Failure::Said(report))) => {
                    return writer.event("error", &error_document(&over_http(&report))).await;
                }
            }
        }
    }
}

/// Each line as an event.
fn events_of(lines: &[u8]) -> Vec<u8> {
    let mut events = Vec::with_capacity(lines.len() + 64);
    for line in lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        events.extend_from_slice(b"data: ");
        events.extend_from_slice(line);
        events.extend_from_slice(b"\n\n");
    }
    events
}

fn ended(exit: Exit) -> String {
    as_document(&Ended { exit: exit.code() })
}
