//! The machine of a run: a report without its machine cannot be compared.
//!
//! Everything is read at run time and optional: a value that a sandbox hides is absent, not
//! guessed.

use std::fs;

use serde::{Deserialize, Serialize};

/// The machine, kernel and build of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Model name of the processor.
    pub(crate) cpu: Option<String>,
    /// Processors that this process may use.
    pub(crate) cpus: usize,
    /// Architecture that the benchmark was built for.
    pub(crate) arch: String,
    /// Whether the processor reports that it runs under a hypervisor.
    pub(crate) hypervisor: Option<bool>,
    /// Frequency governor of the first processor.
    pub(crate) governor: Option<String>,
    /// Clock source of the kernel.
    pub(crate) clocksource: Option<String>,
    /// Kernel release.
    pub(crate) kernel: String,
    /// Load average over the last minute, before the run.
    pub(crate) load_1m: Option<f64>,
    /// Compiler.
    pub(crate) rustc: String,
    /// Cargo profile that the build derives from: `debug` or `release`.
    pub(crate) profile: String,
    /// Version of this workspace.
    pub(crate) dormouse: String,
    /// The tier of the thread clock.
    pub(crate) clock_tier: String,
}

impl Machine {
    /// Examines the machine on which this runs.
    #[must_use]
    pub(crate) fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            cpu: field(&cpuinfo, "model name").map(str::to_owned),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            arch: std::env::consts::ARCH.to_owned(),
            hypervisor: field(&cpuinfo, "flags")
                .map(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned()),
            load_1m: Self::load(),
            rustc: env!("DORMOUSE_BENCH_RUSTC").to_owned(),
            profile: env!("DORMOUSE_BENCH_PROFILE").to_owned(),
            dormouse: env!("CARGO_PKG_VERSION").to_owned(),
            clock_tier: format!("{:?}", dormouse::clock::tier()).to_lowercase(),
        }
    }

    /// The load average over the last minute.
    pub(crate) fn load() -> Option<f64> {
        line("/proc/loadavg")?.split(' ').next()?.parse().ok()
    }

    /// One line of text.
    #[must_use]
    pub(crate) fn line(&self) -> String {
        format!(
            "{} x {}{}, Linux {}, {} ({}), thread clock by {}",
            self.cpus,
            self.cpu.as_deref().unwrap_or(&self.arch),
            if self.hypervisor == Some(true) { " (virtual machine)" } else { "" },
            self.kernel,
            self.rustc,
            self.profile,
            self.clock_tier,
        )
    }

    /// Why the numbers of this machine or build are less reliable.
    #[must_use]
    pub(crate) fn warnings(&self) -> Vec<String> {
        let profile = (self.profile != "release").then(|| {
            format!("built with the {} profile: the rows say nothing about an optimised build", self.profile)
        });
        let guest = (self.hypervisor == Some(true)).then(|| {
            "in a virtual machine: interrupts between processors cost an exit, and stolen time is in the wall \
             times"
                .to_owned()
        });
        let busy = self.load_1m.filter(|load| load > &(self.cpus as f64 * 0.5)).map(|load| {
            format!("the machine was busy before the run: load {load} on {} processors", self.cpus)
        });
        [profile, guest, busy].into_iter().flatten().collect()
    }
}

/// Value of the first `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// First line of a file.
fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            cpu: Some("EPYC".to_owned()),
            cpus: 2,
            arch: "x86_64".to_owned(),
            hypervisor: Some(false),
            governor: None,
            clocksource: None,
            kernel: "6.1".to_owned(),
            load_1m: Some(0.1),
            rustc: "rustc 1.95".to_owned(),
            profile: "release".to_owned(),
            dormouse: "0.1.0".to_owned(),
            clock_tier: "rseq".to_owned(),
        }
    }

    #[test]
    fn cpuinfo_fields_are_found_by_whole_name() {
        let text = "model\t\t: 1\nmodel name\t: AMD EPYC\nflags\t\t: fpu hypervisor\n";
        assert_eq!(field(text, "model name"), Some("AMD EPYC"));
        assert_eq!(field(text, "name"), None);
    }

    #[test]
    fn a_quiet_release_build_needs_no_warning() {
        assert_eq!(machine().warnings(), Vec::<String>::new());
    }

    #[test]
    fn debug_build_guest_and_load_are_warned_of() {
        let warnings =
            Machine { profile: "debug".to_owned(), hypervisor: Some(true), load_1m: Some(3.0), ..machine() }
                .warnings();
        assert_eq!(warnings.len(), 3, "{warnings:?}");
    }
}
