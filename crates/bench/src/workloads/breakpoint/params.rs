//! The options of `bench breakpoint`, in the words of `perf bench breakpoint thread`.

use clap::value_parser;

/// Parameters of `bench breakpoint`; the defaults are the origin's.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Options of breakpoint (as perf bench breakpoint thread)")]
pub(crate) struct BreakpointArgs {
    /// How often threads are made and joined, by all parallel makers together.
    #[arg(short, long, value_name = "N", default_value_t = 30)]
    #[arg(value_parser = value_parser!(u32).range(1..=100_000))]
    pub(crate) repeat: u32,

    /// Number of breakpoints that each thread inherits.
    #[arg(short, long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = value_parser!(u32).range(1..=4))]
    pub(crate) breakpoints: u32,

    /// Number of threads that make threads.
    #[arg(short, long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = value_parser!(u32).range(1..=1024))]
    pub(crate) parallelism: u32,

    /// Number of threads that each makes at a time.
    #[arg(short, long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = value_parser!(u32).range(1..=1024))]
    pub(crate) threads: u32,

    /// Number of processors in the accounting, independent of this machine.
    #[arg(long, value_name = "N", default_value_t = 256)]
    #[arg(value_parser = value_parser!(u32).range(1..=8192))]
    pub(crate) cpus: u32,
}

impl BreakpointArgs {
    /// Threads made in all: an operation is to make and join one.
    pub(super) fn operations(&self) -> f64 {
        f64::from(self.repeat) * f64::from(self.threads)
    }

    /// Threads with breakpoints that live at one moment: the made ones, their makers, and the
    /// first.
    pub(super) fn population(&self) -> u32 {
        self.repeat.min(self.parallelism) * self.threads + self.parallelism + 1
    }
}
