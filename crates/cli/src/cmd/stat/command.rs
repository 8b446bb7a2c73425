//! `dormouse stat -- COMMAND`: runs a command and says what it used.
//!
//! The figures are the kernel's account of the child (`wait4`): its own and that of those of its children that it has
//! waited for. If it has dormouse in it, its groups and threads are looked at while it runs, and the last look is shown.
//!
//! Ctrl-C and Ctrl-\ reach the command from the terminal; this process lives on to tell what was used. SIGTERM and SIGHUP
//! come to this process alone, and are passed on.
//!
//! # Safety
//!
//! One `wait4`, for the account of one child.

use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZero;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::Serialize;

use super::figures::Figure;
use super::json::{Account, ratio};
use super::text;
use crate::duration::short;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Context, FAIR, HEAD, say};
use crate::sample::events::{self, Wish};
use crate::sample::spent::{Spent, Window};
use crate::sample::tasks::own_peak;
use crate::sample::{Source, mono_ns};
use crate::signals::{Signals, wait};
use crate::target::{Finder, Found as Process, Target};
use crate::text::{Align, Table, clean, count};

/// How often a command is looked at while it runs; a shorter one is not seen from inside.
const LOOK: Duration = Duration::from_millis(100);

/// What one run used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Used {
    elapsed_ns: u64,
    user_ns: u64,
    system_ns: u64,
    voluntary_switches: u64,
    involuntary_switches: u64,
    minor_faults: u64,
    major_faults: u64,
    /// Null where it cannot be told from that of this process; then the next one bounds it.
    max_rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_rss_at_most_bytes: Option<u64>,
}

/// One run that came to its end.
struct Run {
    used: Used,
    status: ExitStatus,
    /// Of a command with dormouse in it.
    last: Option<Last>,
}

/// What was seen of a command from inside, the last time.
struct Last {
    source: Source,
    spent: Spent,
    before_end_ns: u64,
}

#[derive(Serialize)]
struct RunDocument<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    command: Vec<String>,
    run: u32,
    /// Null after a signal.
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    cpu_ns: u64,
    cpus_used: f64,
    #[serde(flatten)]
    used: Used,
    /// From inside, if it has dormouse in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    inside: Option<Inside<'a>>,
}

#[derive(Serialize)]
struct Inside<'a> {
    before_end_ns: u64,
    #[serde(flatten)]
    account: Account<'a>,
}

#[derive(Serialize)]
struct TotalDocument {
    #[serde(rename = "type")]
    kind: &'static str,
    command: Vec<String>,
    runs: usize,
    failed_runs: usize,
    cpu_ns: Figure,
    cpus_used: Figure,
    elapsed_ns: Figure,
    user_ns: Figure,
    system_ns: Figure,
    voluntary_switches: Figure,
    involuntary_switches: Figure,
    minor_faults: Figure,
    major_faults: Figure,
    /// Null where the command is too small for it in one run or more.
    max_rss_bytes: Option<Figure>,
}

impl Used {
    fn cpu_ns(&self) -> u64 {
        self.user_ns + self.system_ns
    }

    fn cpus(&self) -> f64 {
        ratio(self.cpu_ns(), self.elapsed_ns)
    }
}

/// Signals while a command runs.
struct Caught {
    /// The terminal sends these to the command as well.
    kept: Signals,
    term: Signals,
    hangup: Signals,
}

/// Runs `command` once or `repeat` times.
pub(super) fn run(
    command: &[OsString],
    repeat: Option<NonZero<u32>>,
    wish: &Wish,
    context: &mut Context,
) -> Outcome {
    let caught = Caught {
        kept: Signals::of_terminal()?,
        term: Signals::of_one(Signal::TERM)?,
        hangup: Signals::of_one(Signal::HUP)?,
    };
    // Before it runs: a name that is no event is not to cost a run.
    let outside = wish.of_any_process()?;
    let mut runs: Vec<Run> = Vec::new();
    for n in 1..=repeat.map_or(1, NonZero::get) {
        let run = once(command, wish, &caught, context.patience)?;
        if context.json {
            context.document(&document(command, n, &run))?;
        } else if repeat.is_none() {
            print(command, &run, context)?;
        }
        context.flush()?;
        let is_interrupted = caught.kept.take() || run.status.signal().is_some();
        runs.push(run);
        if is_interrupted {
            break;
        }
    }
    if runs.iter().all(|run| run.last.is_none()) {
        events::warn(&outside);
    }
    let failed = runs.iter().filter(|run| !run.status.success()).count();
    if repeat.is_some() {
        let total = total(command, &runs, failed);
        match runs.last() {
            Some(last) if !context.json => print_total(&total, &last.used, context)?,
            _ => context.document(&total)?,
        }
    }
    let first = runs.iter().map(|run| code(run.status)).find(|&code| code != 0);
    Ok(first.map_or(Exit::Ok, Exit::Child))
}

/// As a shell has it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

fn once(command: &[OsString], wish: &Wish, caught: &Caught, patience: Duration) -> Outcome<Run> {
    let [program, arguments @ ..] = command else {
        return Err(Failure::new(Exit::Usage, "there is no command behind `--`"));
    };
    let (start, start_mono_ns) = (Instant::now(), mono_ns());
    let child =
        Command::new(program).args(arguments).spawn().map_err(|error| Failure::not_run(program, &error))?;
    let mut view = View { child: Pid::from_child(&child), start_mono_ns, inside: Found::NotYet };
    // Without it there is nothing to do but wait for the end.
    if let Ok(end) = pidfd_open(view.child, PidfdFlags::empty()) {
        while !caught.wait(&end, view.child)? {
            view.look(wish, patience);
        }
    }
    let (status, mut used) = reap(view.child).map_err(|error| {
        Failure::new(Exit::Failed, format!("cannot wait for {}: {error}", display(program)))
    })?;
    used.elapsed_ns = ns(start.elapsed());
    let last = match view.inside {
        Found::Seen(seen) => Some(Last {
            spent: seen.window.spent(),
            before_end_ns: ns(seen.at.elapsed()),
            source: seen.source,
        }),
        Found::NotYet | Found::Refused => None,
    };
    Ok(Run { used, status, last })
}

impl Caught {
    /// Waits until the command ends or is to be looked at again, and passes signals on; true: it has ended.
    fn wait(&self, end: &OwnedFd, child: Pid) -> Outcome<bool> {
        let fds = [end.as_fd(), self.term.as_fd(), self.hangup.as_fd()];
        let [ended, term, hangup] = wait(fds, Some(Instant::now() + LOOK))
            .map_err(|error| Failure::new(Exit::Failed, format!("cannot wait: {error}")))?;
        let both = [(term, &self.term, Signal::TERM), (hangup, &self.hangup, Signal::HUP)];
        for (_, _, signal) in both.into_iter().filter(|(came, signals, _)| *came && signals.take()) {
            // It may just have ended.
            let _ = kill_process(child, signal);
        }
        Ok(ended)
    }
}

/// What is seen of the command from inside.
struct View {
    child: Pid,
    start_mono_ns: u64,
    inside: Found,
}

enum Found {
    NotYet,
    Seen(Box<Seen>),
    /// What was asked for is nothing that it has.
    Refused,
}

/// A command with dormouse in it.
struct Seen {
    source: Source,
    /// Since its start.
    window: Window,
    /// When it was last looked at.
    at: Instant,
}

impl View {
    /// Looks, unless there is nobody to ask yet, or any more; then the last look stands.
    fn look(&mut self, wish: &Wish, patience: Duration) {
        match &mut self.inside {
            Found::Refused => {}
            Found::Seen(seen) => {
                if let Ok(Some(sample)) = seen.source.sample() {
                    seen.window.add(sample);
                    seen.at = Instant::now();
                }
            }
            Found::NotYet => self.find(wish, patience),
        }
    }

    fn find(&mut self, wish: &Wish, patience: Duration) {
        let finder = Finder::new();
        let target = Target::Pid(self.child.as_raw_pid().cast_unsigned());
        let Some(found) = finder.look(&target).ok().filter(Process::has_agent) else { return };
        match Source::reach(&finder, &found, wish, patience) {
            Ok(mut source) => {
                if let Ok(Some(sample)) = source.sample() {
                    let window = Window::since_start(self.start_mono_ns, sample);
                    self.inside = Found::Seen(Box::new(Seen { source, window, at: Instant::now() }));
                }
            }
            Err(Failure::Said(report)) if report.exit == Exit::Usage => {
                say(format_args!("{FAIR}not looked into:{FAIR:#} {}", clean(&report.message)));
                self.inside = Found::Refused;
            }
            Err(_) => {}
        }
    }
}

/// Waits for the child and takes the kernel's account of it.
#[expect(unsafe_code, reason = "std has no wait that gives the account of one child")]
fn reap(child: Pid) -> io::Result<(ExitStatus, Used)> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both are valid places; the child is ours and was not waited for.
        let waited = unsafe { libc::wait4(child.as_raw_pid(), &raw mut status, 0, usage.as_mut_ptr()) };
        if waited >= 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: zeroes are valid, and so is what the kernel wrote over them.
    let usage = unsafe { usage.assume_init() };
    let time = |t: libc::timeval| t.tv_sec.cast_unsigned() * 1_000_000_000 + t.tv_usec.cast_unsigned() * 1000;
    let max_rss_bytes = usage.ru_maxrss.cast_unsigned() * 1024;
    let is_told = is_above_own(max_rss_bytes);
    let used = Used {
        elapsed_ns: 0,
        user_ns: time(usage.ru_utime),
        system_ns: time(usage.ru_stime),
        voluntary_switches: usage.ru_nvcsw.cast_unsigned(),
        involuntary_switches: usage.ru_nivcsw.cast_unsigned(),
        minor_faults: usage.ru_minflt.cast_unsigned(),
        major_faults: usage.ru_majflt.cast_unsigned(),
        max_rss_bytes: Some(max_rss_bytes).filter(|_| is_told),
        max_rss_at_most_bytes: Some(max_rss_bytes).filter(|_| !is_told),
    };
    Ok((ExitStatus::from_raw(status), used))
}

/// A child begins with the memory of who starts it, and the kernel's account of its largest size keeps that: what is no
/// larger says nothing of the command. (A sixteenth is more than the kernel's count is off by.)
fn is_above_own(bytes: u64) -> bool {
    own_peak().is_some_and(|own| bytes > own + own / 16)
}

fn display(text: &OsStr) -> String {
    clean(&text.to_string_lossy())
}

fn words(command: &[OsString]) -> Vec<String> {
    command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

fn document<'a>(command: &[OsString], run: u32, of: &'a Run) -> RunDocument<'a> {
    RunDocument {
        kind: "run",
        command: words(command),
        run,
        exit_code: of.status.code(),
        signal: of.status.signal(),
        cpu_ns: of.used.cpu_ns(),
        cpus_used: of.used.cpus(),
        used: of.used,
        inside: of.last.as_ref().map(|last| Inside {
            before_end_ns: last.before_end_ns,
            account: Account::of(&last.source, &last.spent),
        }),
    }
}

fn total(command: &[OsString], runs: &[Run], failed_runs: usize) -> TotalDocument {
    let of = |value: fn(&Used) -> f64| Figure::of(runs.iter().map(|run| value(&run.used)));
    TotalDocument {
        kind: "total",
        command: words(command),
        runs: runs.len(),
        failed_runs,
        cpu_ns: of(|used| used.cpu_ns() as f64),
        cpus_used: of(Used::cpus),
        elapsed_ns: of(|used| used.elapsed_ns as f64),
        user_ns: of(|used| used.user_ns as f64),
        system_ns: of(|used| used.system_ns as f64),
        voluntary_switches: of(|used| used.voluntary_switches as f64),
        involuntary_switches: of(|used| used.involuntary_switches as f64),
        minor_faults: of(|used| used.minor_faults as f64),
        major_faults: of(|used| used.major_faults as f64),
        max_rss_bytes: runs
            .iter()
            .map(|run| run.used.max_rss_bytes.map(|bytes| bytes as f64))
            .collect::<Option<Vec<f64>>>()
            .map(Figure::of),
    }
}

fn print(command: &[OsString], run: &Run, context: &mut Context) -> Outcome<()> {
    let used = &run.used;
    let ended = match run.status.signal() {
        Some(signal) => format!("was ended by signal {signal}"),
        None => format!("ended with {}", code(run.status)),
    };
    context.line(format_args!("{HEAD}`{}` {ended}:{HEAD:#}\n", clean(&words(command).join(" "))))?;
    let mut table = text::figures();
    let mut row = |value: String, unit: &str, of: &str, note: String| {
        table.row([value, unit.to_owned(), of.to_owned(), note]);
    };
    row(text::ms(used.cpu_ns()), "ms", "CPU time", format!("{:.3} CPUs used", used.cpus()));
    row(text::ms(used.elapsed_ns), "ms", "from start to end", String::new());
    row(text::ms(used.user_ns), "ms", "user mode", String::new());
    row(text::ms(used.system_ns), "ms", "kernel mode", String::new());
    let switches = used.voluntary_switches + used.involuntary_switches;
    let involuntary = format!("{} involuntary", used.involuntary_switches);
    row(switches.to_string(), "", "context switches", involuntary);
    let faults = used.minor_faults + used.major_faults;
    row(faults.to_string(), "", "page faults", format!("{} major", used.major_faults));
    let size = "maximum resident size";
    match used.max_rss_bytes {
        Some(bytes) => row(text::mib(bytes), "MiB", size, String::new()),
        None => row(text::NOT_COUNTED.into(), "", size, at_most(used)),
    }
    context.line(table.render(HEAD))?;
    let Some(last) = &run.last else { return Ok(()) };
    let head = format!("as seen last, {} before its end:", short(last.before_end_ns));
    context.text(text::account(&head, &last.source, &last.spent))
}

/// What is known of a size that this process hides.
fn at_most(used: &Used) -> String {
    format!(
        "at most {} MiB, what this command itself takes",
        text::mib(used.max_rss_at_most_bytes.unwrap_or(0))
    )
}

fn print_total(total: &TotalDocument, last: &Used, context: &mut Context) -> Outcome<()> {
    let failed = match total.failed_runs {
        0 => String::new(),
        n => format!(", {n} of them failed"),
    };
    let command = clean(&total.command.join(" "));
    context
        .line(format_args!("{HEAD}`{command}`, {}{failed}:{HEAD:#}\n", count(total.runs as u64, "run")))?;
    let mut table = Table::new([
        ("MEAN", Align::Right),
        ("± STDDEV", Align::Right),
        ("%", Align::Right),
        ("UNIT", Align::Left),
        ("OF", Align::Left),
    ]);
    let ms = 1e6;
    for (figure, scale, places, unit, of) in [
        (total.cpu_ns, ms, 3, "ms", "CPU time"),
        (total.cpus_used, 1.0, 3, "", "CPUs used"),
        (total.elapsed_ns, ms, 3, "ms", "from start to end"),
        (total.user_ns, ms, 3, "ms", "user mode"),
        (total.system_ns, ms, 3, "ms", "kernel mode"),
        (total.voluntary_switches, 1.0, 1, "", "voluntary context switches"),
        (total.involuntary_switches, 1.0, 1, "", "involuntary context switches"),
        (total.minor_faults, 1.0, 1, "", "minor page faults"),
        (total.major_faults, 1.0, 1, "", "major page faults"),
    ]
    .into_iter()
    .chain(total.max_rss_bytes.map(|size| (size, 1_048_576.0, 1, "MiB", "maximum resident size")))
    {
        table.row([
            format!("{:.places$}", figure.mean / scale),
            format!("± {:.places$}", figure.stddev / scale),
            format!("{:.1}", figure.stddev_percent),
            unit.to_owned(),
            of.to_owned(),
        ]);
    }
    context.text(table.render(HEAD))?;
    if total.max_rss_bytes.is_none() {
        context.line(format_args!("maximum resident size: {} ({})", text::NOT_COUNTED, at_most(last)))?;
    }
    Ok(())
}

fn ns(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}
