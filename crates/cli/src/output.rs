//! The output of a run: data to standard output, messages to standard error.
//!
//! Standard output belongs to the next program in the pipe. When that program exits, the run ends
//! with success and without a message; every other error of writing is a failure. Nothing here
//! panics on a closed stream, as `println!` would. Styles are always written, and removed where the
//! stream does not want them ([`anstream`] handles `NO_COLOR`, `TERM=dumb` and files).

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::Path;
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use clap::ColorChoice as Color;
use clap::builder::styling::{AnsiColor, Style};
use serde::Serialize;

use crate::exit::{Exit, Failure, Outcome, Report};
use crate::new_file::cannot_write;
use crate::signals::Signals;
use crate::text::{self, Clean, list};

/// Version of everything that `--json` prints; fields are only ever added within one.
pub(crate) const SCHEMA: u32 = 1;

/// Heads of tables.
pub(crate) const HEAD: Style = Style::new().bold();
/// Good findings.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Findings with a limit, and warnings.
pub(crate) const FAIR: Style = AnsiColor::Yellow.on_default();
/// Bad findings and errors.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// Remarks beside the data.
pub(crate) const DIM: Style = Style::new().dimmed();

/// The part that all subcommands share: where data and messages go and in which form, what ends the
/// run early, and how long a service may take to answer.
pub(crate) struct Context {
    /// Whether `--json` was given.
    pub(crate) json: bool,
    /// How long an answer may take.
    pub(crate) patience: Duration,
    out: BufWriter<Box<dyn Write>>,
    /// The name of `out`, for messages.
    place: String,
    /// `None` at the terminal.
    remote: Option<Remote>,
}

/// A client elsewhere, for whom a verb runs.
struct Remote {
    /// Takes messages.
    hear: Box<dyn Fn(&str)>,
    /// Comes when the client leaves.
    #[cfg_attr(not(feature = "serve"), allow(dead_code, reason = "a terminal has signals"))]
    cancel: Signals,
}

/// A document of `--json`. The list of subcommands ([`crate::cmd`]) names the documents of each,
/// and only these can be written.
#[cfg(not(test))]
pub(crate) trait JsonDocument: Serialize {}
#[cfg(test)]
pub(crate) trait JsonDocument: Serialize + schemars::JsonSchema {}

/// A JSON document with its schema version in front.
#[derive(Serialize)]
struct Document<'a, T> {
    schema: u32,
    #[serde(flatten)]
    body: &'a T,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ErrorBody<'a> {
    error: ErrorText<'a>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ErrorText<'a> {
    kind: &'static str,
    exit: u8,
    #[serde(flatten)]
    report: &'a Report,
}

impl Context {
    /// The streams of this process.
    pub(crate) fn new(json: bool, color: Color, patience: Duration) -> Context {
        match color {
            // anstream takes CI for a request for colour, also on a terminal that has none.
            Color::Auto if is_dumb() && std::env::var_os("CLICOLOR_FORCE").is_none() => ColorChoice::Never,
            Color::Auto => ColorChoice::Auto,
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
        }
        .write_global();
        let stdout = io::stdout();
        let choice = if json { ColorChoice::Never } else { AutoStream::choice(&stdout) };
        let out = BufWriter::new(Box::new(AutoStream::new(stdout, choice)) as Box<dyn Write>);
        Context { json, patience, out, place: "standard output".into(), remote: None }
    }

    /// For a client elsewhere, who reads JSON: `hear` takes messages, `cancel` stands for Ctrl-C.
    #[cfg(feature = "serve")]
    pub(crate) fn remote(
        out: impl Write + 'static,
        hear: impl Fn(&str) + 'static,
        cancel: Signals,
        patience: Duration,
    ) -> Context {
        let out = BufWriter::new(Box::new(out) as Box<dyn Write>);
        let remote = Some(Remote { hear: Box::new(hear), cancel });
        Context { json: true, patience, out, place: "the client".into(), remote }
    }

    /// Whether this runs for a client elsewhere, and nobody is at the terminal.
    pub(crate) fn is_remote(&self) -> bool {
        self.remote.is_some()
    }

    /// A message beside the data; whether anybody reads it is not this run's concern.
    pub(crate) fn note(&self, text: impl fmt::Display) {
        match &self.remote {
            Some(remote) => (remote.hear)(&anstream::adapter::strip_str(&text.to_string()).to_string()),
            None => say(text),
        }
    }

    /// Catches what ends this early: Ctrl-C, or a client that leaves.
    pub(crate) fn cancel(&self) -> Outcome<Signals> {
        match &self.remote {
            #[cfg(feature = "serve")]
            Some(remote) => remote
                .cancel
                .again()
                .map_err(|error| Failure::failed(format!("cannot wait for the client's end: {error}"))),
            _ => Signals::to_end(),
        }
    }

    /// Writes bytes, as they are.
    #[cfg(feature = "serve")]
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Outcome<()> {
        self.out.write_all(bytes).map_err(|error| self.failure(&error))
    }

    /// Has the data go to a file instead of standard output. Its first data replace what the file
    /// had: a failure before that leaves it as it was. The file stays the one that is there,
    /// because the path may be a link, a mount or `/dev/stdout`.
    pub(crate) fn write_to(&mut self, path: &Path) -> Outcome<()> {
        let opened = File::options().write(true).create(true).truncate(false).open(path);
        let out = opened.and_then(Later::new).map_err(|error| cannot_write(path, &error))?;
        self.out = BufWriter::new(Box::new(out));
        self.place = path.display().to_string();
        Ok(())
    }

    /// Writes text, as it is.
    pub(crate) fn text(&mut self, text: impl fmt::Display) -> Outcome<()> {
        write!(self.out, "{text}").map_err(|error| self.failure(&error))
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, text: impl fmt::Display) -> Outcome<()> {
        writeln!(self.out, "{text}").map_err(|error| self.failure(&error))
    }

    /// Writes one JSON document on a line of its own.
    pub(crate) fn document<T: JsonDocument>(&mut self, body: &T) -> Outcome<()> {
        let text = text::json(&Document { schema: SCHEMA, body })
            .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
        self.line(text)
    }

    /// Flushes everything written so far.
    pub(crate) fn flush(&mut self) -> Outcome<()> {
        self.out.flush().map_err(|error| self.failure(&error))
    }

    fn failure(&self, error: &io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::StdoutClosed;
        }
        Failure::failed(format!("cannot write to {}: {error}", self.place))
    }

    /// Tells why the run fails, in the form that was asked for, and how it ends.
    pub(crate) fn fail(&mut self, failure: Failure) -> Exit {
        match failure {
            Failure::StdoutClosed => Exit::Ok,
            Failure::Said(report) => {
                // Data from before the failure is still worth having.
                let _ = self.out.flush();
                tell(&report, self.json);
                report.exit
            }
        }
    }
}

/// A message on standard error, of what never runs for a client elsewhere; a verb has
/// [`Context::note`].
pub(crate) fn say(text: impl fmt::Display) {
    let _ = writeln!(AutoStream::auto(io::stderr().lock()), "{text}");
}

/// Writes a report to standard error, as text or as JSON.
pub(crate) fn tell(report: &Report, json: bool) {
    let near = list(&report.near, 8);
    if json {
        say(error_document(report));
        return;
    }
    say(format_args!("{BAD}error:{BAD:#} {}", Clean(&report.message)));
    if !near.is_empty() {
        say(format_args!("  near: {near}"));
    }
    if let Some(hint) = &report.hint {
        say(format_args!("  hint: {}", Clean(hint)));
    }
}

/// A report as JSON.
pub(crate) fn error_document(report: &Report) -> String {
    let error = ErrorText { kind: report.exit.word(), exit: report.exit.code(), report };
    as_document(&ErrorBody { error })
}

/// One JSON document, with its schema version in front.
pub(crate) fn as_document<T: Serialize>(body: &T) -> String {
    text::json(&Document { schema: SCHEMA, body }).unwrap_or_else(|error| error.to_string())
}

/// Whether both ends of the conversation with a person are a terminal that can be drawn on.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && is_drawable(&io::stdout())
}

/// Whether a stream is a terminal that can be drawn on.
pub(crate) fn is_drawable(stream: &impl io::IsTerminal) -> bool {
    stream.is_terminal() && !is_dumb()
}

/// Whether the terminal can do no more than print.
/// A file that loses what it had when it is written to.
struct Later {
    file: AutoStream<File>,
    /// The handle by which its old content goes, until then.
    old: Option<File>,
}

impl Later {
    fn new(file: File) -> io::Result<Self> {
        let old = if file.metadata()?.is_file() { Some(file.try_clone()?) } else { None };
        Ok(Self { file: AutoStream::auto(file), old })
    }
}

impl Write for Later {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(old) = self.old.take() {
            old.set_len(0)?;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

#[cfg(all(test, feature = "serve"))]
mod tests {
    use super::*;

    #[test]
    fn an_old_file_stays_until_there_is_data() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("figures");
        let link = directory.path().join("link");
        std::fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let (cancel, _hang_up) = Signals::remote().unwrap();
        let mut context = Context::remote(io::sink(), |_| {}, cancel, Duration::ZERO);
        context.write_to(&link).unwrap();
        context.fail(Failure::failed("there is no such process"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        for all in ["new\n", "new\nnew\n"] {
            context.line("new").unwrap();
            context.flush().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), all);
        }
        context.write_to("/dev/null".as_ref()).unwrap();
        assert!(link.is_symlink());
    }

    #[test]
    fn messages_reach_the_client() {
        let (heard, hears) = std::sync::mpsc::channel();
        let (cancel, _hang_up) = Signals::remote().unwrap();
        let hear = move |text: &str| heard.send(text.to_owned()).unwrap();
        let context = Context::remote(io::sink(), hear, cancel, Duration::ZERO);
        context.note(format_args!("{BAD}loud{BAD:#}"));
        assert_eq!(hears.recv().unwrap(), "loud");
    }
}
