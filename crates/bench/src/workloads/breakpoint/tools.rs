//! `hit/gdb` and `hit/perf-stat`: a hit of a watch that another program has armed from outside.

use std::io::{BufRead, BufReader, Read, Write, pipe};
use std::process::{self, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::watched;
use crate::apart::Child;
use crate::bench::Bench;
use crate::clocks::wall;
use crate::row::Spec;
use crate::runner::Failure;

/// Writes of a sample.
const HITS: u64 = 200;

/// A program that watches a process.
struct Tool {
    command: Command,
    /// Its input.
    input: &'static str,
    /// The line that it prints when the watch is armed.
    armed: &'static str,
    /// Its output when it has seen all hits.
    seen: String,
    /// The signal that ends it, if the end of its target does not at once.
    ended_by: Option<Signal>,
}

pub(super) fn rows(bench: &mut Bench) {
    let spec = |name| Spec::new(format!("hit/{name}"), "ns").per("write").wall().with("writes", HITS);
    bench.sample(spec("gdb"), || sample(gdb));
    bench.sample(spec("perf-stat"), || sample(perf_stat));
}

fn gdb(pid: u32, addr: usize) -> Tool {
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch", "--readnever", "-iex", "set auto-solib-add off"]);
    for line in [
        &format!("attach {pid}"),
        &format!("watch *(long *) {addr}"),
        "ignore 1 1000000",
        "echo armed\\n",
        "continue",
        "info watchpoints",
    ] {
        command.args(["-ex", line]);
    }
    Tool { command, input: "", armed: "armed", seen: format!("already hit {HITS} times"), ended_by: None }
}

fn perf_stat(pid: u32, addr: usize) -> Tool {
    let mut command = Command::new("perf");
    command.args(["stat", "--control", "fd:0,1", "-x,", "-e", &format!("mem:{addr:#x}/8:w:u")]);
    command.args(["-p", &pid.to_string()]);
    // It looks once a second whether its target has ended.
    let ended_by = Some(Signal::INT);
    Tool { command, input: "enable\n", armed: "ack", seen: format!("\n{HITS},"), ended_by }
}

/// Nanoseconds a hit of a child that writes once the tool has armed its watch.
fn sample(tool: fn(u32, usize) -> Tool) -> Result<f64, Failure> {
    let (mut go, mut release) = pipe()?;
    let child = Child::start(move || {
        go.read_exact(&mut [0])?;
        Ok(vec![wall(|| watched::write(HITS)).0.as_nanos() as f64 / HITS as f64])
    })?;
    let Tool { mut command, input, armed, seen, ended_by } = tool(child.pid(), watched::addr());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = command.get_program().to_string_lossy().into_owned();
    let mut running = Running(command.spawn().map_err(|error| format!("{name}: {error}"))?);
    let pid = Pid::from_raw(running.0.id().cast_signed());
    let process::Child { stdin, stdout, stderr, .. } = &mut running.0;
    let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err(Failure::wrong("a tool without pipes"));
    };
    stdin.write_all(input.as_bytes())?;
    let (mut output, mut said) = (BufReader::new(stdout), String::new());
    while said.lines().last().is_none_or(|line| line.trim() != armed) {
        if output.read_line(&mut said)? == 0 {
            stderr.read_to_string(&mut said)?;
            return Err(Failure::from(format!("{name} has not armed: {said:?}")));
        }
    }
    release.write_all(&[0])?;
    let values = child.values()?;
    if let (Some(pid), Some(signal)) = (pid, ended_by) {
        kill_process(pid, signal)?;
    }
    output.read_to_string(&mut said)?;
    stderr.read_to_string(&mut said)?;
    if !said.contains(&seen) {
        return Err(Failure::from(format!("{name} has not seen {HITS} hits: {said:?}")));
    }
    Ok(values.into_iter().sum())
}

struct Running(process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
