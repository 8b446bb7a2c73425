//! A real CPU limit: a control group of the version that has the controller on this machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::Duration;

use crate::skip;

/// A control group with a CPU limit. It goes with this, after its processes.
#[derive(Debug)]
pub struct LimitedGroup {
    outer: PathBuf,
    /// The group in which this process was.
    home: PathBuf,
}

impl LimitedGroup {
    /// A group with that much CPU time in each 100 ms, and one inside of it without a limit;
    /// `None`, and a skip with the reason, if nobody may make one here.
    pub fn make(quota: Duration) -> Option<Self> {
        let made = Hierarchy::find().and_then(|hierarchy| hierarchy.make(quota));
        made.map_err(|why| skip(format_args!("no control group for CPU time can be made: {why}"))).ok()
    }

    /// Moves a process into the group.
    ///
    /// # Panics
    ///
    /// Panics if the kernel refuses.
    pub fn admit(&self, pid: u32) {
        move_to(&self.outer, pid).expect("it moves");
    }

    /// Moves a process into the group without a limit inside.
    ///
    /// # Panics
    ///
    /// Panics if the kernel refuses.
    pub fn admit_inside(&self, pid: u32) {
        move_to(&self.inner(), pid).expect("it moves");
    }

    /// The name of the group.
    pub fn name(&self) -> &str {
        self.outer.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// For how long the kernel has kept processors from the group: a sum over them.
    pub fn throttled(&self) -> Duration {
        let stat = fs::read_to_string(self.outer.join("cpu.stat")).unwrap_or_default();
        let value = |key: &str| stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
        let by_version_2 = value("throttled_usec ").map(Duration::from_micros);
        by_version_2.or_else(|| value("throttled_time ").map(Duration::from_nanos)).unwrap_or_default()
    }

    fn inner(&self) -> PathBuf {
        self.outer.join("inner")
    }
}

impl Drop for LimitedGroup {
    fn drop(&mut self) {
        // For a process that has left, this changes nothing.
        let _ = move_to(&self.home, process::id());
        // A group can go once its processes are gone, a moment after they were awaited.
        for group in [self.inner(), self.outer.clone()] {
            let _ = (0..1000).find(|_| {
                thread::yield_now();
                fs::remove_dir(&group).is_ok() || !group.exists()
            });
        }
    }
}

fn move_to(group: &Path, pid: u32) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), pid.to_string())
}

/// Where the controller is mounted.
struct Hierarchy {
    root: PathBuf,
    /// This process's group, from there.
    own: String,
    is_version_2: bool,
}

impl Hierarchy {
    fn find() -> io::Result<Self> {
        let own = |controller: &str| -> io::Result<String> {
            let groups = fs::read_to_string("/proc/self/cgroup")?;
            let mut groups = groups.lines().map(|line| line.splitn(3, ':').skip(1));
            let path = groups.find_map(|mut of| {
                let is_its = of.next()?.split(',').any(|name| name == controller);
                is_its.then(|| of.next()).flatten().map(str::to_owned)
            });
            Ok(path.unwrap_or_default())
        };
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        for mount in mounts.lines() {
            let [_, root, kind, options, ..] = mount.split(' ').collect::<Vec<_>>()[..] else { continue };
            let root = PathBuf::from(root);
            if kind == "cgroup" && options.split(',').any(|option| option == "cpu") {
                return Ok(Self { root, own: own("cpu")?, is_version_2: false });
            }
            let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            if kind == "cgroup2" && controllers.split_whitespace().any(|name| name == "cpu") {
                return Ok(Self { root, own: own("")?, is_version_2: true });
            }
        }
        Err(io::Error::other("the controller is not mounted"))
    }

    fn make(&self, quota: Duration) -> io::Result<LimitedGroup> {
        let outer = self.root.join(format!("dormouse-test-{}", process::id()));
        let home = self.root.join(self.own.trim_start_matches('/'));
        if self.is_version_2 {
            fs::write(self.root.join("cgroup.subtree_control"), "+cpu")?;
        }
        fs::create_dir(&outer)?;
        let limit = LimitedGroup { outer, home };
        let quota = quota.as_micros();
        if self.is_version_2 {
            fs::write(limit.outer.join("cpu.max"), format!("{quota} 100000"))?;
        } else {
            fs::write(limit.outer.join("cpu.cfs_quota_us"), quota.to_string())?;
        }
        fs::create_dir(limit.inner())?;
        Ok(limit)
    }
}
