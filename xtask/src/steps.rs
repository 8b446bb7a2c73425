//! The steps of a run in their order, and the report of a run.

use std::fs::File;
use std::process::Child;
use std::time::Instant;

use crate::process::{Result, output, program, read, target};
use crate::suite::Suite;
use crate::{amd64, arm64, checks, install, nightly, release, supply};

type Step = fn(&mut Suite) -> Result;

/// Each step with its name, and whether it belongs to long runs alone. Steps that fail fast come
/// first.
const STEPS: [(&str, bool, Step); 24] = [
    ("install", false, |_| install::all()),
    ("fleet", true, |_| crate::fleet::build()),
    ("format", false, |_| checks::format()),
    ("supply", false, |_| supply::check()),
    ("advisories", true, supply::advisories),
    ("lints", false, |_| checks::lints()),
    ("documentation", false, |_| checks::documentation()),
    ("arm64", false, arm64::step),
    ("release", false, |suite| checks::release(suite.is_long)),
    ("archive", true, |_| crate::archive::archive(&target().join("archive"))),
    ("benches", true, |_| checks::benches()),
    ("bare", false, checks::bare),
    ("fallback", false, checks::fallback),
    ("flags", false, checks::flags),
    ("plain", true, checks::plain),
    ("fuzz", false, checks::fuzz),
    ("tests", false, checks::tests),
    ("amd64", true, amd64::step),
    ("kernels", true, amd64::kernels),
    ("models", true, checks::models),
    ("miri", true, nightly::miri),
    ("sanitizers", true, nightly::sanitizers),
    ("packages", true, |_| release::packages()),
    ("promises", true, release::promises),
];

/// Steps that share nothing with others. In a short run of all steps they run beside the tests,
/// which wait a third of their time, and at a lower priority than these.
const BESIDE: [&str; 3] = ["lints", "documentation", "arm64"];

pub(crate) fn names() -> Vec<&'static str> {
    STEPS.iter().map(|(name, ..)| *name).collect()
}

/// Runs the steps that `wanted` names, or all of them, up to the first that fails.
pub(crate) fn run(is_long: bool, wanted: &[String]) -> Result {
    if let Some(other) = wanted.iter().find(|name| !names().contains(&name.as_str())) {
        return Err(format!("there is no step `{other}`: {}", names().join(" ")));
    }
    let began = Instant::now();
    let mut laps = Vec::new();
    let mut suite = Suite::new(is_long);
    let is_wanted = |name: &str, is_for_long: bool| match wanted {
        [] => is_long || !is_for_long,
        names => names.iter().any(|it| it == name),
    };
    let has_beside = !is_long && wanted.is_empty();
    let is_beside = |name: &str| has_beside && BESIDE.contains(&name);
    let mut beside = None;
    let mut done = Ok(());
    for (name, _, step) in
        STEPS.iter().filter(|(name, is_long, _)| is_wanted(name, *is_long) && !is_beside(name))
    {
        println!("\n== {name}: {}", room()?);
        if has_beside && *name == "tests" {
            beside = Some(Beside::begin()?);
        }
        let (began, used) = (Instant::now(), cpu_seconds()?);
        done = step(&mut suite).map_err(|why| format!("the step `{name}` failed: {why}"));
        if let Some(beside) = beside.take() {
            done = done.and(beside.end(&mut suite));
        }
        let (seconds, used) = (began.elapsed().as_secs(), cpu_seconds()? - used);
        println!("-- {name}: {seconds} s, {used} s of CPU time");
        laps.push((seconds, used, name));
        if done.is_err() {
            break;
        }
    }
    println!("\n== ended after {} s", began.elapsed().as_secs());
    laps.sort_by_key(|(seconds, ..)| std::cmp::Reverse(*seconds));
    for (seconds, used, name) in laps {
        println!("{seconds:5} s  {name}, {used} s of CPU time");
    }
    print!("{suite}");
    done
}

/// A run of the steps in [`BESIDE`].
struct Beside {
    run: Child,
}

impl Beside {
    fn begin() -> Result<Self> {
        let this = std::env::current_exe().map_err(|why| why.to_string())?;
        // Cargo locks a target directory while it builds.
        let folder = target().join("beside");
        std::fs::create_dir_all(&folder).map_err(|why| why.to_string())?;
        let log = File::create(Self::log()).map_err(|why| why.to_string())?;
        let errors = log.try_clone().map_err(|why| why.to_string())?;
        let mut command = program("nice -n 19");
        command.arg(this).arg("ci").args(BESIDE).env("CARGO_TARGET_DIR", folder);
        let run = command.stdout(log).stderr(errors).spawn().map_err(|why| format!("nice: {why}"))?;
        Ok(Self { run })
    }

    fn log() -> std::path::PathBuf {
        target().join("beside.log")
    }

    /// Waits for the end, prints what was printed, and counts the skips in it.
    fn end(mut self, suite: &mut Suite) -> Result {
        let status = self.run.wait().map_err(|why| why.to_string())?;
        let printed = read(&Self::log())?;
        println!("\n== beside the tests:\n{printed}");
        suite.skips_of(&printed);
        if status.success() { Ok(()) } else { Err(format!("{}: {status}", BESIDE.join(" "))) }
    }
}

/// The CPU time of all programs that have run, and of those that they ran and waited for (proc(5),
/// `cutime` and `cstime`, in ticks of 10 ms).
fn cpu_seconds() -> Result<u64> {
    let stat = crate::process::read("/proc/self/stat".as_ref())?;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks =
        fields.split_ascii_whitespace().skip(13).take(2).map(|field| field.parse::<u64>().unwrap_or(0));
    Ok(ticks.sum::<u64>() / 100)
}

/// The size of the target directory, and the free space of its disk.
fn room() -> Result<String> {
    std::fs::create_dir_all(target()).map_err(|why| why.to_string())?;
    let built = output(program("du -sm").arg(target()))?;
    let free = output(program("df -m --output=avail").arg(target()))?;
    let (built, free) = (built.split_whitespace().next(), free.lines().last());
    Ok(format!("target has {} MB, {} MB are free", built.unwrap_or("?"), free.unwrap_or("?").trim()))
}
