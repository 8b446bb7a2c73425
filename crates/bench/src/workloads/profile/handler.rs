//! `handler/…` and `sample/…`: the cost of a sample of [`CALLS`] calls, for the sampled thread and
//! for the process.
//!
//! All take the same signals at the same place, sent by the thread to itself, which is the price of
//! `handler-signal/empty`; the cost of a handler is the difference. The signals carry the values of
//! the timer's own: our handler, which checks them, takes them for samples. `pprof` takes any
//! SIGPROF. Its handler also aggregates; ours leaves that to its thread, whose time is the row
//! `sample/drain`. The first samples leave copies of the stack, from which its functions are
//! learned.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use dormouse_profile::{Options, Profiling};

use super::frames::{Built, CALLS, EmptyHandler, TimerSignal, take};
use crate::bench::Bench;
use crate::clocks::thread_cpu_by_name;
use crate::row::Spec;
use crate::runner::Failure;
use crate::workloads::teaparty::program_of;

/// Signals in a row: no more than there is room for copies of stacks.
const BURST: u64 = 32;
/// How long to wait until samples are received.
const PATIENCE: Duration = Duration::from_secs(10);
/// So rarely that the peers' own timers have no part in it.
const PEERS_HZ: i32 = 1;

pub(super) fn rows(bench: &mut Bench) {
    let bursts = bench.pick(40, 8);
    let spec = |name: &str| signal_spec(&format!("handler-signal/{name}"));
    bench.sample(spec("empty"), move || empty(Built::Kept, bursts));
    let drained = Spec::new("sample/drain", "ns").per("sample").with("of", "dormouse");
    let callers = Spec::new("sample/callers", "frames").per("sample").with("of", "dormouse");
    let start = Spec::new("start/plain", "us").wall().with("threads", 1);
    bench.sample([spec("dormouse"), drained, callers, start], move || {
        let Sampled { took, drained, callers, started } = ours(Built::Kept, bursts)?;
        Ok([took, drained, callers, started])
    });
    bench.sample(spec("pprof-frame-pointer"), move || {
        let guard = pprof::ProfilerGuard::new(PEERS_HZ)?;
        let took = on_a_thread(move || all(PROF, Built::Kept, bursts, |_| Ok(())))?;
        let deepest = guard.report().build_unresolved()?.data.keys().map(|key| key.frames.len()).max();
        deep_enough(deepest)?;
        Ok(took)
    });
    by_tables_row(bench, spec("pprof-tables"), by_tables(), Built::Kept, bursts);
}

/// Adds `sample-signal/PEER/BUILT`: the same of both forms of the chain, of those that go by
/// tables.
pub(crate) fn rows_by_form(bench: &mut Bench) {
    let (bursts, program) = (bench.pick(40, 8), by_tables());
    for built in Built::ALL {
        let spec = |peer: &str| signal_spec(&format!("sample-signal/{peer}/{}", built.name()));
        bench.sample(spec("empty"), move || empty(built, bursts));
        bench.sample(spec("dormouse"), move || ours(built, bursts).map(|sampled| sampled.took));
        by_tables_row(bench, spec("pprof-tables"), program.clone(), built, bursts);
    }
}

fn signal_spec(name: &str) -> Spec {
    Spec::new(name, "ns").per("signal").cpu()
}

/// A signal whose handler does nothing.
fn empty(built: Built, bursts: u64) -> Result<f64, Failure> {
    let _empty = EmptyHandler::install(libc::SIGPROF)?;
    on_a_thread(move || all(PROF, built, bursts, |_| Ok(())))
}

fn by_tables_row(bench: &mut Bench, spec: Spec, program: Result<PathBuf, String>, built: Built, bursts: u64) {
    if let Some(program) = bench.need(spec.clone(), program) {
        bench.sample(spec, move || apart(&program, built, bursts));
    }
}

const PROF: TimerSignal = TimerSignal { signal: libc::SIGPROF, value: 0 };

pub(super) fn compare(bench: &mut Bench) {
    for peer in ["dormouse", "pprof-frame-pointer", "pprof-tables"] {
        let of = |name: &str| format!("handler-signal/{name}");
        bench.minus(format!("handler/{peer}"), &of(peer), &of("empty"));
    }
    for peer in ["pprof-frame-pointer", "pprof-tables"] {
        let (ours, theirs) = ("handler/dormouse", format!("handler/{peer}"));
        bench.times(format!("handler-over-{peer}/dormouse"), ours, &theirs);
    }
    bench.at_most("a sample of 32 calls in at most 0.5 us", "handler/dormouse", 500.0);
    bench.at_most(
        "at most a tenth of pprof-rs by frame pointers",
        "handler-over-pprof-frame-pointer/dormouse",
        0.1,
    );
}

/// The nanoseconds of a signal; what is in between may take its time.
fn all(
    signal: TimerSignal,
    built: Built,
    bursts: u64,
    mut after: impl FnMut(u64) -> Result<(), Failure>,
) -> Result<f64, Failure> {
    let mut took = Duration::ZERO;
    for burst in 1..=bursts {
        took += take(signal, built, BURST)?;
        after(burst * BURST)?;
    }
    Ok(took.as_nanos() as f64 / (bursts * BURST) as f64)
}

/// A thread has few frames beside the chain.
fn on_a_thread<T: Send>(work: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    thread::scope(|scope| {
        let spawned = thread::Builder::new().name("bench-sampled".to_owned()).spawn_scoped(scope, work)?;
        spawned.join().unwrap_or_else(|_| Err(Failure::wrong("the sampled thread panicked")))
    })
}

/// A sample of ours.
struct Sampled {
    /// Nanoseconds of its signal, and its part of what our thread used.
    took: f64,
    drained: f64,
    /// The frames that were found.
    callers: f64,
    /// Microseconds for the begin of the profile.
    started: f64,
}

fn ours(built: Built, bursts: u64) -> Result<Sampled, Failure> {
    on_a_thread(move || {
        let mut options = Options::default();
        options.hz = PEERS_HZ.unsigned_abs();
        let begun = Instant::now();
        let profiling = Profiling::start(&options)?;
        let started = begun.elapsed().as_nanos() as f64 / 1e3;
        let signal = TimerSignal::of_this_thread()?;
        let used = || sampler_cpu().ok_or_else(|| Failure::from("no thread named dormouse-profile"));
        let before = used()?;
        let took = all(signal, built, bursts, |sent| received(&profiling, sent))?;
        let drained = used()?.saturating_sub(before);
        let profile = profiling.read();
        let deepest = profile.samples.iter().map(|sample| profile.stack(sample.stack).count()).max();
        deep_enough(deepest)?;
        Ok(Sampled {
            took,
            drained: drained.as_nanos() as f64 / (bursts * BURST) as f64,
            callers: deepest.unwrap_or(0) as f64,
            started,
        })
    })
}

/// Builds the program of the peer that goes by tables. Two versions of `pprof` define one symbol,
/// so no program can have both.
fn by_tables() -> Result<PathBuf, String> {
    program_of("dormouse-bench", &["--bin", "dormouse-bench-by-tables"])
}

/// A sample of the peer that goes by tables, from its own program.
fn apart(program: &Path, built: Built, bursts: u64) -> Result<f64, Failure> {
    let words = [bursts, BURST].map(|number| number.to_string());
    let output = Command::new(program).args(words).arg(built.name()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let (took, deepest) = said.trim().split_once(' ').ok_or("the peer's program says nothing")?;
    deep_enough(Some(deepest.parse()?))?;
    Ok(took.parse()?)
}

/// Waits until this profile has as many samples.
fn received(profiling: &Profiling, sent: u64) -> Result<(), Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = profiling.read().coverage;
        if seen.dropped + seen.uncopied > 0 {
            let lost = format!("{} samples and {} copies found no room", seen.dropped, seen.uncopied);
            return Err(Failure::wrong(lost));
        }
        if seen.samples >= sent {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Failure::wrong(format!("{} samples received of {sent}", seen.samples)));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn deep_enough(deepest: Option<usize>) -> Result<(), Failure> {
    match deepest {
        Some(deepest) if deepest >= CALLS => Ok(()),
        deepest => Err(Failure::wrong(format!("the deepest stack has {} frames", deepest.unwrap_or(0)))),
    }
}

/// CPU time of the thread that takes samples in.
pub(super) fn sampler_cpu() -> Option<Duration> {
    thread_cpu_by_name("dormouse-profil")
}
