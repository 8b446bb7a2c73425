//! Processes that resist: what tests do to the child that they run in.
use std::io;

use dormouse_testkit::{Filter, skip};

pub(crate) fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

fn check(result: libc::c_int) {
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// Has the kernel refuse to make code writable. False, and a skip: one before Linux 6.3 cannot.
#[must_use]
pub(crate) fn refuse_exec_gain() -> bool {
    // SAFETY: concerns permissions of this process alone.
    let result = unsafe { libc::prctl(libc::PR_SET_MDWE, libc::PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) };
    if result != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        skip("the kernel cannot forbid code to become writable (PR_SET_MDWE)");
        return false;
    }
    check(result);
    true
}

/// Leaves `/proc` behind.
pub(crate) fn leave_proc() {
    let empty = std::env::temp_dir().join(format!("dormouse-resist-{}", std::process::id()));
    std::fs::create_dir(&empty).unwrap();
    std::env::set_current_dir(&empty).unwrap();
    // It has no name from here on, and nothing is left behind.
    std::fs::remove_dir(&empty).unwrap();
    std::os::unix::fs::chroot(".").unwrap();
}

/// Becomes nobody, who cannot be dumped.
pub(crate) fn become_undumpable() {
    // SAFETY: concerns this process alone.
    unsafe {
        check(libc::setresgid(65534, 65534, 65534));
        check(libc::setresuid(65534, 65534, 65534));
        check(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0));
    }
}

/// Refuses to make anything writable and executable.
pub(crate) fn no_writable_code() -> Filter {
    let both = (libc::PROT_WRITE | libc::PROT_EXEC) as u64;
    Filter::refuse(&[]).and_where(libc::SYS_mprotect, 2, both, &[both])
}

/// Mappings that are writable and executable at once.
pub(crate) fn writable_code() -> Vec<std::ops::Range<usize>> {
    let text = std::fs::read("/proc/self/maps").unwrap();
    let lines = dormouse_maps::parse(&text).flatten();
    let writable = lines.filter(|line| line.perms.to_string().starts_with("rwx"));
    writable.map(|line| line.start as usize..line.last as usize + 1).collect()
}

/// A mapping of this process.
pub(crate) struct Mapped {
    pub(crate) range: std::ops::Range<usize>,
    pub(crate) perms: String,
    pub(crate) offset: u64,
    pub(crate) name: String,
}

/// The mapping of this process that `addr` lies in.
pub(crate) fn mapping_at(addr: usize) -> Mapped {
    let text = std::fs::read("/proc/self/maps").unwrap();
    let line = dormouse_maps::parse(&text).flatten().find(|line| addr as u64 <= line.last).unwrap();
    assert!(line.start <= addr as u64, "nothing is mapped at {addr:#x}");
    Mapped {
        range: line.start as usize..line.last as usize + 1,
        perms: line.perms.to_string(),
        offset: line.offset,
        name: String::from_utf8_lossy(&line.name).into_owned(),
    }
}
