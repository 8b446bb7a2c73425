//! What `bench breakpoint` can be told, in the words of `perf bench breakpoint thread`.

use clap::value_parser;

/// Parameters of `bench breakpoint`; the defaults are the origin's.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Options of breakpoint (as perf bench breakpoint thread)")]
pub struct BreakpointArgs {
    /// How often threads are made and joined, by all parallel threads together.
    #[arg(short, long, value_name = "N", default_value_t = REPEAT)]
    #[arg(value_parser = value_parser!(u32).range(1..=100_000))]
    pub repeat: u32,

    /// Breakpoints that each thread inherits.
    #[arg(short, long, value_name = "N", default_value_t = BREAKPOINTS)]
    #[arg(value_parser = value_parser!(u32).range(1..=4))]
    pub breakpoints: u32,

    /// Threads that make threads.
    #[arg(short, long, value_name = "N", default_value_t = PARALLELISM)]
    #[arg(value_parser = value_parser!(u32).range(1..=1024))]
    pub parallelism: u32,

    /// Threads that each makes at a time.
    #[arg(short, long, value_name = "N", default_value_t = THREADS)]
    #[arg(value_parser = value_parser!(u32).range(1..=1024))]
    pub threads: u32,

    /// Processors that are accounted, whatever this machine has.
    #[arg(long, value_name = "N", default_value_t = CPUS)]
    #[arg(value_parser = value_parser!(u32).range(1..=8192))]
    pub cpus: u32,
}

const REPEAT: u32 = 30;
const BREAKPOINTS: u32 = 4;
const PARALLELISM: u32 = 64;
const THREADS: u32 = 64;
const CPUS: u32 = 256;

impl Default for BreakpointArgs {
    fn default() -> Self {
        Self {
            repeat: REPEAT,
            breakpoints: BREAKPOINTS,
            parallelism: PARALLELISM,
            threads: THREADS,
            cpus: CPUS,
        }
    }
}

impl BreakpointArgs {
    /// Threads made in all: an operation is to make and join one.
    pub(super) fn operations(&self) -> f64 {
        f64::from(self.repeat) * f64::from(self.threads)
    }

    /// Threads with breakpoints that live at one moment: those that were made, their makers, and the first.
    pub(super) fn population(&self) -> u32 {
        self.repeat.min(self.parallelism) * self.threads + self.parallelism + 1
    }

    /// The same with a part of the threads, at least one at a time.
    pub(super) fn with_threads_over(&self, divisor: u32) -> Self {
        Self { threads: (self.threads / divisor).max(1), ..self.clone() }
    }
}
