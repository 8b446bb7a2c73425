//! Pressure: for how long nothing could go on for want of a resource.
//!
//! The kernel adds up for which time all tasks that had something to do waited for memory, for I/O
//! or for a CPU at once: the total of the line `full`. It does so for the host, and for each
//! control group of version 2. Of the host's CPUs it always shows 0, so that is not read.
//!
//! # References
//!
//! `Documentation/accounting/psi.rst`; `Documentation/admin-guide/cgroup-v2.rst`, "PSI".

use std::path::Path;

use crate::brief;

/// For how long all tasks waited at once, in nanoseconds, since the host or the control group
/// began; `None` where the kernel does not show it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FullPressure {
    /// For a CPU.
    pub cpu_ns: Option<u64>,
    /// For memory.
    pub memory_ns: Option<u64>,
    /// For I/O.
    pub io_ns: Option<u64>,
}

impl FullPressure {
    /// The pressure of the host, as far as this process sees it.
    ///
    /// # Cost
    ///
    /// Reads two files of `/proc`.
    pub fn of_host() -> Self {
        let of = |name: &str| read(&Path::new("/proc/pressure").join(name));
        Self { cpu_ns: None, memory_ns: of("memory"), io_ns: of("io") }
    }

    /// The pressure of the control group with this directory.
    pub(super) fn of_group(place: &Path) -> Self {
        let of = |name: &str| read(&place.join(name));
        Self { cpu_ns: of("cpu.pressure"), memory_ns: of("memory.pressure"), io_ns: of("io.pressure") }
    }

    /// Whether nothing is known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

fn read(path: &Path) -> Option<u64> {
    full_ns(&brief::read_to_string(path).ok()?)
}

/// The total of the line `full`, which is in microseconds.
fn full_ns(text: &str) -> Option<u64> {
    let full = text.lines().find_map(|line| line.strip_prefix("full "))?;
    let total = full.split(' ').find_map(|word| word.strip_prefix("total="))?;
    total.parse::<u64>().ok()?.checked_mul(1_000)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_total_of_full_is_read() {
        let text = "some avg10=0.12 avg60=0.10 avg300=0.02 total=77\n\
                    full avg10=0.00 avg60=0.01 avg300=0.00 total=5122710\n";
        assert_eq!(full_ns(text), Some(5_122_710_000));
        // Of CPUs before Linux 5.13, and what is no such file.
        for other in ["some avg10=0.12 avg60=0.10 avg300=0.02 total=77\n", "", "full total=x", "full avg10=0"]
        {
            assert_eq!(full_ns(other), None, "{other}");
        }
    }

    #[test]
    fn files_that_are_not_there_are_not_zero() {
        let place = tempfile::tempdir().unwrap();
        assert!(FullPressure::of_group(place.path()).is_unknown());
        fs::write(place.path().join("memory.pressure"), "some total=9\nfull total=7\n").unwrap();
        let known = FullPressure { memory_ns: Some(7_000), ..FullPressure::default() };
        assert_eq!(FullPressure::of_group(place.path()), known);
    }
}
