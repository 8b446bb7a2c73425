//! The CPU limits of the control groups that this process is in.
//!
//! A control group may have a quota: the CPU time that it may use in each period. When its threads
//! have used it up, the kernel *throttles* them until the next period. It counts the periods in
//! which the group was active, those in which it was throttled, and for how long its processors
//! were, which is a sum over processors and so may exceed the time that has passed.
//!
//! Each level of the hierarchy has a quota of its own, and each can throttle. Levels above the
//! mount that the process sees are hidden from it; `cpu.stat.local` shows what they do.
//!
//! | | version 1 | version 2 |
//! |---|---|---|
//! | hierarchy | mount of type `cgroup` with the controller `cpu` | mount of type `cgroup2` |
//! | quota, period | `cpu.cfs_quota_us` (-1: none), `cpu.cfs_period_us` | `cpu.max` |
//! | counts | `cpu.stat`: `throttled_time` in nanoseconds | `cpu.stat`: `throttled_usec`, `usage_usec` |
//!
//! # References
//!
//! `Documentation/scheduler/sched-bwc.rst`; `Documentation/admin-guide/cgroup-v2.rst`, "CPU
//! Interface Files"; cgroups(7); `proc_pid_mountinfo(5)`.

use std::path::{Path, PathBuf};

use super::pressure::FullPressure;
use crate::brief;

/// The CPU limit of a control group, and what it has done since the group began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuLimit {
    /// The path of the group below the mount of its hierarchy, as `/` or `/kubepods/pod7`.
    pub path: String,
    /// The CPU time that the group may use in each period, in microseconds.
    pub quota_us: u64,
    /// The length of a period, in microseconds; not 0.
    pub period_us: u64,
    /// The number of periods in which the group was active.
    pub periods: u64,
    /// In how many of these it was throttled.
    pub throttled_periods: u64,
    /// For how long its processors were throttled, together, in nanoseconds.
    pub throttled_ns: u64,
    /// CPU time of the group, in nanoseconds; `None` where that is not beside the limit.
    pub usage_ns: Option<u64>,
}

/// A version of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The control group of a process, in the hierarchy that limits CPU time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlGroup {
    /// The text by which it was found.
    text: String,
    version: Version,
    /// Where the hierarchy is mounted.
    mount: PathBuf,
    /// The path below it.
    path: String,
}

impl ControlGroup {
    /// Finds the control group of this process.
    ///
    /// # Errors
    ///
    /// Why it is not known.
    ///
    /// # Cost
    ///
    /// Reads two files of `/proc`, of which one has a line for each mount.
    pub fn of_own() -> Result<Self, &'static str> {
        Self::find(Path::new("/"), Path::new("/proc/self"))
    }

    /// Whether the process is still in it.
    pub fn is_current(&self) -> bool {
        brief::read_to_string("/proc/self/cgroup").is_ok_and(|text| text == self.text)
    }

    /// Finds the control group of the process with this directory of `/proc`; mounts are below
    /// `root`.
    fn find(root: &Path, process: &Path) -> Result<Self, &'static str> {
        let text =
            brief::read_to_string(process.join("cgroup")).map_err(|_| "/proc has no control groups")?;
        let mounts = brief::read_to_string(process.join("mountinfo")).map_err(|_| "/proc has no mounts")?;
        let (version, group) = line(&text).ok_or("it is in no control group for CPU time")?;
        let (mount, path) = mounts
            .lines()
            .filter_map(|line| mounted(line, version))
            .find_map(|(top, mount)| Some((mount, below(&group, &top)?)))
            .ok_or("its control group is in no mount that it sees")?;
        let mount = root.join(mount.trim_start_matches('/'));
        if !mount.join(path.trim_start_matches('/')).is_dir() {
            return Err("the directory of its control group is not there");
        }
        Ok(Self { text, version, mount, path })
    }

    /// For how long the group's processors were throttled, together, in nanoseconds, by the limit
    /// of any group around it, also of those that are hidden; `None` where the kernel does not
    /// count it (before Linux 6.7) or the group is the outermost one.
    pub fn throttled_ns(&self) -> Option<u64> {
        let text = brief::read_to_string(self.place().join("cpu.stat.local")).ok()?;
        throttled_ns(&text, self.version)
    }

    /// For how long all tasks of the group waited at once. Groups of version 1 have no such
    /// account.
    ///
    /// # Cost
    ///
    /// Reads three files.
    pub fn full_pressure(&self) -> FullPressure {
        match self.version {
            Version::One => FullPressure::default(),
            Version::Two => FullPressure::of_group(&self.place()),
        }
    }

    /// Its directory.
    fn place(&self) -> PathBuf {
        self.mount.join(self.path.trim_start_matches('/'))
    }

    /// The limits of the group and of each group around it that is visible, from the inside out.
    ///
    /// # Cost
    ///
    /// Reads one file of each level, and two or three more of one that has a limit.
    ///
    /// # Errors
    ///
    /// Why the limits are not known.
    pub fn cpu_limits(&self) -> Result<Vec<CpuLimit>, &'static str> {
        let levels = std::iter::successors(Some(&*self.path), |path| {
            let (outer, _) = path.rsplit_once('/').filter(|(_, name)| !name.is_empty())?;
            Some(if outer.is_empty() { "/" } else { outer })
        });
        levels.filter_map(|path| limit(&self.mount, path, self.version).transpose()).collect()
    }
}

/// The version and the path of the group that limits CPU time, from `/proc/PID/cgroup`.
fn line(text: &str) -> Option<(Version, String)> {
    let mut lines = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':')
    });
    let is_for_cpu = |controllers: &str| controllers.split(',').any(|one| one == "cpu");
    let first = lines.clone().find(|(controllers, _)| is_for_cpu(controllers));
    let found = first.map(|(_, path)| (Version::One, path));
    let second =
        || lines.find(|(controllers, _)| controllers.is_empty()).map(|(_, path)| (Version::Two, path));
    found.or_else(second).map(|(version, path)| (version, path.to_owned()))
}

/// The root of a mount in its hierarchy, and where it is mounted, if it is one of that version.
fn mounted(line: &str, version: Version) -> Option<(String, String)> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3);
    let (root, place) = (fields.next()?, fields.next()?);
    let mut kind = kind.split(' ');
    let (kind, options) = (kind.next()?, kind.nth(1).unwrap_or_default());
    let is_meant = match version {
        Version::One => kind == "cgroup" && options.split(',').any(|option| option == "cpu"),
        Version::Two => kind == "cgroup2",
    };
    is_meant.then(|| (unescaped(root), unescaped(place)))
}

/// A path without the escapes of blanks: `\040`.
fn unescaped(path: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(path.to_owned(), |path, (escape, to)| path.replace(escape, to))
}

/// The path of a group below the root of a mount.
fn below(group: &str, top: &str) -> Option<String> {
    if group.split('/').any(|part| part == "..") {
        return None;
    }
    let rest = group.strip_prefix(top.trim_end_matches('/'))?;
    let is_below = rest.is_empty() || rest.starts_with('/');
    is_below.then(|| if rest.is_empty() { "/".to_owned() } else { rest.to_owned() })
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The quota and the period of one group, as they are written; `None` if it cannot have any, as the
/// outermost one, or one for which nobody has asked for them.
fn quota(place: &Path, version: Version) -> Option<(String, String)> {
    let text = |name: &str| brief::read_to_string(place.join(name)).ok();
    match version {
        Version::One => Some((text("cpu.cfs_quota_us")?, text("cpu.cfs_period_us")?)),
        Version::Two => {
            let text = text("cpu.max")?;
            let (quota, period) = text.split_once(' ').unwrap_or((&text, ""));
            Some((quota.to_owned(), period.to_owned()))
        }
    }
}

/// The limit of one group, if it has one.
fn limit(mount: &Path, path: &str, version: Version) -> Result<Option<CpuLimit>, &'static str> {
    let place = mount.join(path.trim_start_matches('/'));
    let Some((quota, period)) = quota(&place, version) else { return Ok(None) };
    if ["-1", "max"].contains(&quota.trim()) {
        return Ok(None);
    }
    let of =
        |quota_us, period_us| counted(&place, version, CpuLimit { quota_us, period_us, ..unlimited(path) });
    let known = number(&quota).zip(number(&period).filter(|period| *period > 0));
    known
        .and_then(|(quota_us, period_us)| of(quota_us, period_us))
        .map(Some)
        .ok_or("the kernel writes its limit in another form")
}

fn unlimited(path: &str) -> CpuLimit {
    CpuLimit {
        path: path.to_owned(),
        quota_us: 0,
        period_us: 0,
        periods: 0,
        throttled_periods: 0,
        throttled_ns: 0,
        usage_ns: None,
    }
}

/// A count of `cpu.stat`.
fn count(stat: &str, name: &str) -> Option<u64> {
    let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(key, _)| *key == name).and_then(|(_, value)| number(value))
}

fn throttled_ns(stat: &str, version: Version) -> Option<u64> {
    match version {
        Version::One => count(stat, "throttled_time"),
        Version::Two => count(stat, "throttled_usec").map(|us| us.saturating_mul(1_000)),
    }
}

/// The limit with the kernel's counts.
fn counted(place: &Path, version: Version, limit: CpuLimit) -> Option<CpuLimit> {
    let stat = brief::read_to_string(place.join("cpu.stat")).ok()?;
    let usage_ns = match version {
        Version::One => {
            brief::read_to_string(place.join("cpuacct.usage")).ok().and_then(|text| number(&text))
        }
        Version::Two => count(&stat, "usage_usec").map(|us| us.saturating_mul(1_000)),
    };
    Some(CpuLimit {
        periods: count(&stat, "nr_periods")?,
        throttled_periods: count(&stat, "nr_throttled")?,
        throttled_ns: throttled_ns(&stat, version)?,
        usage_ns,
        ..limit
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The files of a process and of its control groups.
    fn recorded(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn limits(root: &tempfile::TempDir) -> Result<Vec<CpuLimit>, &'static str> {
        ControlGroup::find(root.path(), &root.path().join("proc/self"))?.cpu_limits()
    }

    const MOUNTS_2: &str = "29 1 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn each_visible_level_has_its_limit() {
        let root = recorded(&[
            ("proc/self/cgroup", "0::/kubepods.slice/pod7/app\n"),
            ("proc/self/mountinfo", MOUNTS_2),
            ("sys/fs/cgroup/cpu.stat", "usage_usec 9\n"),
            ("sys/fs/cgroup/kubepods.slice/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/kubepods.slice/cpu.stat", "usage_usec 9\nnr_periods 0\n"),
            ("sys/fs/cgroup/kubepods.slice/pod7/cpu.max", "150000 100000\n"),
            (
                "sys/fs/cgroup/kubepods.slice/pod7/cpu.stat",
                "usage_usec 70\nuser_usec 60\nsystem_usec 10\nnr_periods 8\nnr_throttled 2\nthrottled_usec 12\n",
            ),
            ("sys/fs/cgroup/kubepods.slice/pod7/app/cpu.max", "50000 100000\n"),
            (
                "sys/fs/cgroup/kubepods.slice/pod7/app/cpu.stat",
                "usage_usec 50\nnr_periods 100\nnr_throttled 41\nthrottled_usec 3000\nnr_bursts 0\n",
            ),
        ]);
        let limits = limits(&root).unwrap();
        let app = CpuLimit {
            path: "/kubepods.slice/pod7/app".into(),
            quota_us: 50_000,
            period_us: 100_000,
            periods: 100,
            throttled_periods: 41,
            throttled_ns: 3_000_000,
            usage_ns: Some(50_000),
        };
        assert_eq!(limits[0], app);
        let group = || ControlGroup::find(root.path(), &root.path().join("proc/self")).unwrap();
        assert_eq!(group().throttled_ns(), None, "an older kernel");
        let local = root.path().join("sys/fs/cgroup/kubepods.slice/pod7/app/cpu.stat.local");
        fs::write(local, "throttled_usec 7\n").unwrap();
        assert_eq!(group().throttled_ns(), Some(7_000));
        assert_eq!(
            (&*limits[1].path, limits[1].quota_us, limits.len()),
            ("/kubepods.slice/pod7", 150_000, 2)
        );
    }

    #[test]
    fn version_one_has_a_hierarchy_for_cpu() {
        // As a container without a namespace of control groups sees it.
        let root = recorded(&[
            ("proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/docker/ab\n1:name=systemd:/y\n0::/z\n"),
            (
                "proc/self/mountinfo",
                "40 1 0:30 /docker/ab /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                 41 1 0:31 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n\
                 42 1 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            ),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.stat", "nr_periods 5\nnr_throttled 1\nthrottled_time 77\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpuacct.usage", "1234\n"),
        ]);
        let limits = limits(&root).unwrap();
        assert_eq!((limits.len(), &*limits[0].path, limits[0].quota_us), (1, "/", 200_000));
        assert_eq!((limits[0].throttled_ns, limits[0].usage_ns), (77, Some(1234)));
    }

    #[test]
    fn no_limit_is_not_an_unknown_one() {
        let none = recorded(&[
            ("proc/self/cgroup", "0::/a b\n"),
            ("proc/self/mountinfo", &MOUNTS_2.replace("/sys/fs/cgroup", "/the\\040groups")),
            ("the groups/a b/cpu.max", "max 100000\n"),
        ]);
        assert_eq!(limits(&none), Ok(vec![]));
        for (cgroup, mountinfo) in [
            ("0::/../other\n", MOUNTS_2),
            ("0::/gone\n", MOUNTS_2),
            ("0::/\n", "29 1 0:26 / /proc rw - proc proc rw\n"),
            ("1:name=systemd:/\n", MOUNTS_2),
            ("0::/elsewhere\n", "29 1 0:26 /else /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
        ] {
            let unknown = recorded(&[
                ("proc/self/cgroup", cgroup),
                ("proc/self/mountinfo", mountinfo),
                ("sys/fs/cgroup/else/cpu.max", "max 100000"),
            ]);
            assert!(limits(&unknown).is_err(), "{cgroup} {mountinfo}");
        }
        assert!(limits(&recorded(&[("proc/self/cgroup", "0::/\n")])).is_err());
    }

    #[test]
    fn malformed_counts_are_unknown() {
        for (max, stat) in [
            ("50000", "nr_periods 1\nnr_throttled 1\nthrottled_usec 1\n"),
            ("x 100000", "nr_periods 1\nnr_throttled 1\nthrottled_usec 1\n"),
            ("50000 0", "nr_periods 1\nnr_throttled 1\nthrottled_usec 1\n"),
            ("50000 100000", "nr_periods 1\nnr_throttled x\nthrottled_usec 1\n"),
            ("50000 100000", "usage_usec 4\n"),
        ] {
            let root = recorded(&[
                ("proc/self/cgroup", "0::/\n"),
                ("proc/self/mountinfo", MOUNTS_2),
                ("sys/fs/cgroup/cpu.max", max),
                ("sys/fs/cgroup/cpu.stat", stat),
            ]);
            assert!(limits(&root).is_err(), "{max} {stat}");
        }
    }
}
