//! Processes, from `/proc`.
//!
//! Everything here may vanish between two reads, and belongs to others: if a file cannot be read,
//! the result is `None`, or the process is left out; it is never a failure of the whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::SplitAsciiWhitespace;

use dormouse_sys::process::threads::list_whole_at;

use crate::exit::{Exit, Failure, Outcome};
use crate::user::distance;

/// The longest name that the kernel keeps in `comm`.
const COMM_MAX: usize = 15;

/// The `/proc` of this machine, or a tree that looks like it.
#[derive(Debug, Clone)]
pub(crate) struct Proc {
    root: PathBuf,
}

/// The facts about one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its process id here.
    pub(crate) pid: u32,
    /// Its process id in its own pid namespace, which is what it reports itself.
    pub(crate) inner_pid: u32,
    /// The process that it is a thread of; `pid` itself for a process.
    pub(crate) leader: u32,
    /// Effective user.
    pub(crate) uid: u32,
    /// Start, in clock ticks after boot.
    pub(crate) start_ticks: u64,
    /// It has ended and waits for its parent.
    pub(crate) is_zombie: bool,
    /// The kernel's name for it.
    pub(crate) comm: String,
    /// File name of its executable, or else of its first argument.
    pub(crate) exe: Option<String>,
}

impl Process {
    /// Whether its environment turns dormouse off. False if this user may not read that.
    pub(crate) fn is_off(&self) -> bool {
        let environment = fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == b"DORMOUSE=off")
    }

    /// Whether `name` names it: by `comm`, which the kernel cuts off, or by the executable's file
    /// name.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        let cut_off = name.len() > COMM_MAX && name.as_bytes().get(..COMM_MAX) == Some(self.comm.as_bytes());
        self.comm == name || cut_off && self.exe.is_none() || self.exe.as_deref() == Some(name)
    }

    /// Its name; the executable's if the kernel has cut the name off.
    pub(crate) fn name(&self) -> &str {
        self.exe
            .as_deref()
            .filter(|exe| self.comm.len() == COMM_MAX && exe.starts_with(&self.comm))
            .unwrap_or(&self.comm)
    }
}

impl Proc {
    /// The real one.
    pub(crate) fn system() -> Proc {
        Proc { root: PathBuf::from("/proc") }
    }

    #[cfg(test)]
    pub(crate) fn at(root: &Path) -> Proc {
        Proc { root: root.to_owned() }
    }

    /// A file of a process.
    pub(crate) fn path(&self, pid: u32, file: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(file)
    }

    /// A file of this process.
    pub(crate) fn own_path(&self, file: &str) -> PathBuf {
        self.root.join("self").join(file)
    }

    /// The id of this process there.
    pub(crate) fn own_id(&self) -> Option<u32> {
        fs::read_link(self.root.join("self")).ok()?.to_str()?.parse().ok()
    }

    /// Checks that `/proc` is usable: a process id that is not in it does not exist, unless `/proc`
    /// is empty.
    pub(crate) fn check(&self) -> Outcome<()> {
        fs::symlink_metadata(self.root.join("self")).map(drop).map_err(|error| {
            let message = format!("processes cannot be looked up in {}: {error}", self.root.display());
            Failure::new(Exit::Unsupported, message).hint("mount /proc")
        })
    }

    /// Checks that `/proc` does not hide what it has of a process from this user
    /// (`hidepid=noaccess`).
    pub(crate) fn check_shown(&self, pid: u32) -> Outcome<()> {
        match fs::read(self.path(pid, "status")) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let message = format!("process {pid} belongs to another user: /proc hides what is in it");
                Err(Failure::new(Exit::Denied, message).hint("run this as that user or as root"))
            }
            _ => Ok(()),
        }
    }

    /// The ids of all processes that can be seen, in order.
    pub(crate) fn pids(&self) -> io::Result<Vec<u32>> {
        // An entry that cannot be read is left out, and the others are returned.
        let entries = fs::read_dir(&self.root)?.filter_map(Result::ok);
        let mut pids: Vec<u32> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        pids.sort_unstable();
        Ok(pids)
    }

    /// The ids of the threads of a process, in order.
    pub(crate) fn tids(&self, pid: u32) -> io::Result<Vec<u32>> {
        let mut tids = Vec::new();
        // A list that stays incomplete has most.
        list_whole_at(self.path(pid, "task"), &mut tids)?;
        tids.sort_unstable();
        Ok(tids)
    }

    /// The facts about a process; `None` when there is none.
    pub(crate) fn process(&self, pid: u32) -> Option<Process> {
        let status = read_text(&self.path(pid, "status")).ok()?;
        let stat = read_text(&self.path(pid, "stat")).ok()?;
        let (comm, mut fields) = stat_fields(&stat)?;
        let state = fields.next()?;
        let number = |name: &str, index: usize| -> Option<u32> {
            line(&status, name)?.split_ascii_whitespace().nth(index)?.parse().ok()
        };
        Some(Process {
            pid,
            inner_pid: line(&status, "NSpid")
                .and_then(|ids| ids.split_ascii_whitespace().last()?.parse().ok())
                .unwrap_or(pid),
            leader: number("Tgid", 0).unwrap_or(pid),
            // A stranger may run a set-uid program: of the real, saved and effective user the most
            // foreign counts.
            uid: [0, 2, 1].into_iter().filter_map(|of| number("Uid", of)).max_by_key(|&uid| distance(uid))?,
            // Field 22 of the line; the state is field 3.
            start_ticks: fields.nth(18)?.parse().ok()?,
            // Not if only its first thread has ended.
            is_zombie: matches!(state, "Z" | "X") && number("Threads", 0).is_none_or(|left| left <= 1),
            comm: comm.to_owned(),
            exe: self.exe(pid),
        })
    }

    fn exe(&self, pid: u32) -> Option<String> {
        let path = fs::read_link(self.path(pid, "exe")).ok().or_else(|| {
            let arguments = read_text(&self.path(pid, "cmdline")).ok()?;
            let first = arguments.split('\0').next().filter(|first| !first.is_empty())?;
            Some(PathBuf::from(first))
        })?;
        let name = path.file_name()?.to_string_lossy();
        // An executable that was replaced while it runs, as every upgrade does.
        Some(name.strip_suffix(" (deleted)").unwrap_or(&name).to_owned())
    }
}

/// The name in a line of `stat`, and the fields behind it: the first is field 3, the state. The
/// name is in parentheses and may contain some, so fields are counted from the last.
pub(crate) fn stat_fields(stat: &str) -> Option<(&str, SplitAsciiWhitespace<'_>)> {
    let (before, after) = stat.rsplit_once(')')?;
    Some((before.split_once('(')?.1, after.split_ascii_whitespace()))
}

/// The rest of the line that starts with `name:`.
pub(crate) fn line<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Puts a process into a `/proc` of our own making.
    pub(crate) fn put(root: &Path, pid: u32, comm: &str, exe: Option<&str>, extra_status: &str) {
        let dir = root.join(pid.to_string());
        fs::create_dir_all(&dir).unwrap();
        fs::write(
            dir.join("status"),
            format!("Name:\t{comm}\nTgid:\t{pid}\nUid:\t1000\t1001\t1000\t1000\n{extra_status}"),
        )
        .unwrap();
        let zeros = "0 ".repeat(18);
        fs::write(dir.join("stat"), format!("{pid} ({comm}) S {zeros}4242 0 0\n")).unwrap();
        if let Some(exe) = exe {
            std::os::unix::fs::symlink(exe, dir.join("exe")).unwrap();
        }
    }

    #[test]
    fn the_files_of_a_process_become_its_facts() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), 7, "a) (b", Some("/opt/tea house (deleted)"), "NSpid:\t7\t12\t1\n");
        let process = Proc::at(dir.path()).process(7).unwrap();
        assert_eq!(
            process,
            Process {
                pid: 7,
                inner_pid: 1,
                leader: 7,
                uid: 1001,
                start_ticks: 4242,
                is_zombie: false,
                comm: "a) (b".into(),
                exe: Some("tea house".into()),
            }
        );
        assert_eq!(Proc::at(dir.path()).process(8), None);
    }

    #[test]
    fn a_process_has_kernel_and_executable_names() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), 1, "worker", Some("/usr/bin/teaparty"), "");
        put(dir.path(), 2, "a-very-long-nam", None, "");
        put(dir.path(), 3, "a-very-long-nam", Some("/bin/a-very-long-name-indeed"), "");
        fs::write(dir.path().join("2/cmdline"), "").unwrap();
        let proc = Proc::at(dir.path());
        let named = |name: &str| -> Vec<u32> {
            let pids = proc.pids().unwrap();
            pids.into_iter().filter(|&pid| proc.process(pid).unwrap().is_named(name)).collect()
        };
        assert_eq!(named("worker"), [1]);
        assert_eq!(named("teaparty"), [1]);
        assert_eq!(named("a-very-long-name-indeed"), [2, 3]);
        assert_eq!(named("a-very-long-name-other"), [2], "only what is not known to be another is a match");
        assert!(named("tea").is_empty());
    }

    #[test]
    fn this_process_is_seen_in_the_real_proc() {
        let me = Proc::system().process(std::process::id()).unwrap();
        assert_eq!((me.pid, me.leader, me.is_zombie), (std::process::id(), std::process::id(), false));
        assert!(me.start_ticks > 0);
    }
}
