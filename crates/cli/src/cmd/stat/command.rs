//! `dormouse stat -- COMMAND`: runs a command and shows what it used.
//!
//! The figures are the kernel's account of the child (`wait4`): its own use and that of those of
//! its children for which it has waited. If it has dormouse in it, its groups and threads are
//! sampled while it runs, and the last sample is shown: threads since the start, and groups since
//! the first sample. Their CPU time is counted from then on, and their requests are not to be
//! older.
//!
//! # Safety
//!
//! The unsafe code is one `wait4`, for the account of one child.

use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZero;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use dormouse_protocol::figures::ratio;
use dormouse_sys::clock::monotonic_ns;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::Request;
use super::account::Account;
use super::figures::Figure;
use super::json::Figures;
use super::text;
use crate::child::{Caught, code_of, spawn};
use crate::duration::short;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Context, FAIR, HEAD, say};
use crate::render::column::{NOT_COUNTED, ms};
use crate::render::table::Table;
use crate::sample::delta::{Delta, Window};
use crate::sample::events;
use crate::sample::source::Source;
use crate::sample::tasks::own_peak;
use crate::sample::totals::Usage;
use crate::target::{Finder, Found, Target};
use crate::text::{clean, count};

/// How often a command is read while it runs; a shorter one is not seen from inside.
const LOOK: Duration = Duration::from_millis(100);

/// The use of one run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Used {
    elapsed_ns: u64,
    #[serde(flatten)]
    usage: Usage,
    /// Null if it cannot be distinguished from that of this process; then the next field bounds it.
    max_rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_rss_at_most_bytes: Option<u64>,
}

/// One run that came to its end.
struct Run {
    used: Used,
    status: ExitStatus,
    /// The figures of a command with dormouse in it, and the time from its last sample to its end.
    inside: Option<(Inside, u64)>,
}

/// The inside of a command with dormouse in it.
struct Inside {
    source: Source,
    window: Window,
    /// The time of the last sample.
    at: Instant,
}

impl Inside {
    /// Figures of groups are differences of two samples: without a second one there are none.
    fn delta(&self) -> Delta {
        let mut delta = self.window.delta();
        if delta.inside_ns == 0 {
            delta.inside = None;
        }
        delta
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::cmd) struct RunDocument<'a> {
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
    inside: Option<InsideDocument<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct InsideDocument<'a> {
    before_end_ns: u64,
    /// The time that the figures of groups and runtimes are of. The process's own are since its
    /// start.
    groups_elapsed_ns: u64,
    #[serde(flatten)]
    figures: Figures<'a>,
}

/// Figures of a run that have a mean: key in JSON, scale, places and unit in text, and a name.
const FIGURES: [(&str, f64, usize, &str, &str); 10] = [
    ("cpu_ns", 1e6, 3, "ms", "CPU time"),
    ("cpus_used", 1.0, 3, "", "CPUs used"),
    ("elapsed_ns", 1e6, 3, "ms", "from start to end"),
    ("user_ns", 1e6, 3, "ms", "user mode"),
    ("system_ns", 1e6, 3, "ms", "kernel mode"),
    ("voluntary_switches", 1.0, 1, "", "voluntary context switches"),
    ("involuntary_switches", 1.0, 1, "", "involuntary context switches"),
    ("minor_faults", 1.0, 1, "", "minor page faults"),
    ("major_faults", 1.0, 1, "", "major page faults"),
    ("max_rss_bytes", 1_048_576.0, 1, "MiB", SIZE),
];
const SIZE: &str = "maximum resident size";

/// All runs together.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::cmd) struct RunsDocument {
    #[serde(rename = "type")]
    kind: &'static str,
    command: Vec<String>,
    runs: usize,
    failed_runs: usize,
    /// In the order of [`FIGURES`]; null where one run or more does not have it: the command is too
    /// small for its size to be known.
    #[serde(flatten, serialize_with = "as_map")]
    #[cfg_attr(test, schemars(with = "std::collections::BTreeMap<String, Option<Figure>>"))]
    figures: Vec<(&'static str, Option<Figure>)>,
}

fn as_map<S: Serializer>(figures: &[(&str, Option<Figure>)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(figures.iter().map(|(key, figure)| (key, figure)))
}

impl Used {
    fn cpu_ns(&self) -> u64 {
        self.usage.user_ns + self.usage.system_ns
    }

    fn cpus(&self) -> f64 {
        ratio(self.cpu_ns(), self.elapsed_ns)
    }
}

/// Runs `command` once or `repeat` times.
pub(super) fn run(
    command: &[OsString],
    repeat: Option<NonZero<u32>>,
    request: &Request,
    context: &mut Context,
) -> Outcome {
    let caught = Caught::new()?;
    // Before it runs: a name that is no event is not to cost a run.
    let outside = request.events.of_any_process()?;
    let mut runs: Vec<Run> = Vec::new();
    for n in 1..=repeat.map_or(1, NonZero::get) {
        let run = once(command, request, &caught, context.patience)?;
        if context.json {
            let inside = run.inside.as_ref().map(|(inside, ns)| (ns, &inside.source, inside.delta()));
            let account = inside.as_ref().map(|(ns, source, delta)| (**ns, Account::of(source, delta)));
            context.document(&document(command, n, &run, account.as_ref()))?;
        } else if repeat.is_none() {
            print(command, &run, context)?;
        }
        context.flush()?;
        let is_interrupted = caught.is_interrupted() || run.status.signal().is_some();
        runs.push(run);
        if is_interrupted {
            break;
        }
    }
    if runs.iter().all(|run| run.inside.is_none()) {
        events::warn(&outside, context);
    }
    let failed = runs.iter().filter(|run| !run.status.success()).count();
    if repeat.is_some() {
        let total = total(command, &runs, failed)?;
        match runs.last() {
            Some(last) if !context.json => print_total(&total, &last.used, context)?,
            _ => context.document(&total)?,
        }
    }
    let first = runs.iter().map(|run| code_of(run.status)).find(|&code| code != 0);
    Ok(first.map_or(Exit::Ok, Exit::Child))
}

fn once(command: &[OsString], request: &Request, caught: &Caught, patience: Duration) -> Outcome<Run> {
    let (start, start_mono_ns) = (Instant::now(), monotonic_ns());
    let child = spawn(command)?;
    let mut view =
        View { child: Pid::from_child(&child), start_mono_ns, inside: None, is_refused: false, request };
    // Without it there is nothing to do but wait for the end.
    if let Ok(end) = pidfd_open(view.child, PidfdFlags::empty()) {
        while !caught.wait(&end, view.child, Some(Instant::now() + LOOK))? {
            view.look(patience);
        }
    }
    let (status, mut used) = reap(view.child).map_err(|error| {
        Failure::failed(format!("cannot wait for {}: {error}", clean(&words(command)[0])))
    })?;
    used.elapsed_ns = ns(start.elapsed());
    let inside = view.inside.map(|inside| {
        let before_end_ns = ns(inside.at.elapsed());
        (inside, before_end_ns)
    });
    Ok(Run { used, status, inside })
}

/// A command that runs, read from inside.
struct View<'a> {
    child: Pid,
    start_mono_ns: u64,
    inside: Option<Inside>,
    /// The command has no event of a name that was asked for.
    is_refused: bool,
    request: &'a Request,
}

impl View<'_> {
    /// Takes a sample, unless there is no agent yet, or any more; then the last sample stands.
    fn look(&mut self, patience: Duration) {
        if let Some(inside) = &mut self.inside {
            if let Ok(Some(sample)) = inside.source.sample() {
                inside.window.add(sample);
                inside.at = Instant::now();
            }
        } else if !self.is_refused {
            self.find(patience);
        }
    }

    fn find(&mut self, patience: Duration) {
        let finder = Finder::new();
        let target = Target::Pid(self.child.as_raw_pid().cast_unsigned());
        let Some(found) = finder.look(&target).ok().filter(Found::has_agent) else { return };
        let Request { events, waits, calls, objectives, .. } = self.request;
        match Source::reach(&finder, &found, events, patience) {
            Ok(mut source) => {
                if let Err(failure) = source.begin_times(*waits, *calls) {
                    say(format_args!("{FAIR}no times of tasks:{FAIR:#} {failure}"));
                }
                let begun = objectives.as_ref().map_or(Ok(()), |all| source.begin_objectives(all));
                if let Err(failure) = begun {
                    say(format_args!("{FAIR}no objectives:{FAIR:#} {failure}"));
                }
                if let Ok(Some(sample)) = source.sample() {
                    let window = Window::since_start(self.start_mono_ns, sample);
                    self.inside = Some(Inside { source, window, at: Instant::now() });
                }
            }
            Err(Failure::Said(report)) if report.exit == Exit::Usage => {
                say(format_args!("{FAIR}not looked into:{FAIR:#} {}", clean(&report.message)));
                self.is_refused = true;
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
    // SAFETY: zeroes are valid, and so is what the kernel has written over them.
    let usage = unsafe { usage.assume_init() };
    let time = |t: libc::timeval| t.tv_sec.cast_unsigned() * 1_000_000_000 + t.tv_usec.cast_unsigned() * 1000;
    let max_rss_bytes = usage.ru_maxrss.cast_unsigned() * 1024;
    let is_told = is_above_own(max_rss_bytes);
    let used = Used {
        elapsed_ns: 0,
        usage: Usage {
            user_ns: time(usage.ru_utime),
            system_ns: time(usage.ru_stime),
            voluntary_switches: usage.ru_nvcsw.cast_unsigned(),
            involuntary_switches: usage.ru_nivcsw.cast_unsigned(),
            minor_faults: usage.ru_minflt.cast_unsigned(),
            major_faults: usage.ru_majflt.cast_unsigned(),
        },
        max_rss_bytes: Some(max_rss_bytes).filter(|_| is_told),
        max_rss_at_most_bytes: Some(max_rss_bytes).filter(|_| !is_told),
    };
    Ok((ExitStatus::from_raw(status), used))
}

/// A child begins with the memory of the process that starts it, and the kernel's maximum includes
/// that: a value that is not larger shows nothing about the command. (The kernel's count is off by
/// less than a sixteenth.)
fn is_above_own(bytes: u64) -> bool {
    own_peak().is_some_and(|own| bytes > own + own / 16)
}

fn words(command: &[OsString]) -> Vec<String> {
    command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

fn document<'a>(
    command: &[OsString],
    run: u32,
    of: &Run,
    account: Option<&'a (u64, Account<'_>)>,
) -> RunDocument<'a> {
    RunDocument {
        kind: "run",
        command: words(command),
        run,
        exit_code: of.status.code(),
        signal: of.status.signal(),
        cpu_ns: of.used.cpu_ns(),
        cpus_used: of.used.cpus(),
        used: of.used,
        inside: account.map(|(before_end_ns, account)| InsideDocument {
            before_end_ns: *before_end_ns,
            groups_elapsed_ns: account.delta.inside_ns,
            figures: Figures::of(account),
        }),
    }
}

fn total(command: &[OsString], runs: &[Run], failed_runs: usize) -> Outcome<RunsDocument> {
    let documents = runs.iter().map(|run| serde_json::to_value(document(command, 0, run, None)));
    let documents: Vec<Value> = documents
        .collect::<Result<_, _>>()
        .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
    let figure = |&(key, ..): &(&'static str, f64, usize, &str, &str)| {
        let values: Option<Vec<f64>> = documents.iter().map(|run| run[key].as_f64()).collect();
        (key, values.map(Figure::of))
    };
    let figures = FIGURES.iter().map(figure).collect();
    Ok(RunsDocument { kind: "total", command: words(command), runs: runs.len(), failed_runs, figures })
}

fn print(command: &[OsString], run: &Run, context: &mut Context) -> Outcome<()> {
    let used = &run.used;
    let ended = match run.status.signal() {
        Some(signal) => format!("was ended by signal {signal}"),
        None => format!("ended with {}", code_of(run.status)),
    };
    context.line(format_args!("{HEAD}`{}` {ended}:{HEAD:#}\n", clean(&words(command).join(" "))))?;
    let mut table = text::figures();
    let cpus = format!("{:.3} CPUs used", used.cpus());
    text::figure(&mut table, ms(used.cpu_ns()), "ms", "CPU time", cpus);
    text::figure(&mut table, ms(used.elapsed_ns), "ms", "from start to end", "");
    text::usage_figures(&mut table, Some(&used.usage));
    match used.max_rss_bytes {
        Some(bytes) => text::figure(&mut table, text::mib(bytes), "MiB", SIZE, ""),
        None => text::figure(&mut table, NOT_COUNTED.into(), "", SIZE, at_most(used)),
    }
    context.line(table.render(HEAD))?;
    let Some((inside, before_end_ns)) = &run.inside else { return Ok(()) };
    let delta = inside.delta();
    let of_groups = match delta.inside_ns {
        0 => "not known, because it was seen once".to_owned(),
        time => format!("of the {} before that", short(time)),
    };
    let head = format!("as seen last, {} before its end; groups are {of_groups}:", short(*before_end_ns));
    context.text(text::account(&head, &Account::of(&inside.source, &delta)))
}

/// The bound of a size that this process hides.
fn at_most(used: &Used) -> String {
    format!(
        "at most {} MiB, which is this command's own size",
        text::mib(used.max_rss_at_most_bytes.unwrap_or(0))
    )
}

fn print_total(total: &RunsDocument, last: &Used, context: &mut Context) -> Outcome<()> {
    let failed = match total.failed_runs {
        0 => String::new(),
        n => format!(", {n} of them failed"),
    };
    let command = clean(&total.command.join(" "));
    context
        .line(format_args!("{HEAD}`{command}`, {}{failed}:{HEAD:#}\n", count(total.runs as u64, "run")))?;
    let mut table = Table::new([">MEAN", ">± STDDEV", ">%", "UNIT", "OF"]);
    for ((_, scale, places, unit, of), (_, figure)) in FIGURES.iter().zip(&total.figures) {
        let Some(Figure { mean, stddev, stddev_percent, .. }) = figure else { continue };
        table.row([
            format!("{:.places$}", mean / scale),
            format!("± {:.places$}", stddev / scale),
            format!("{stddev_percent:.1}"),
            (*unit).to_owned(),
            (*of).to_owned(),
        ]);
    }
    context.text(table.render(HEAD))?;
    if total.figures.iter().any(|(_, figure)| figure.is_none()) {
        context.line(format_args!("{}: {NOT_COUNTED} ({})", SIZE, at_most(last)))?;
    }
    Ok(())
}

fn ns(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}
