//! Processes that resist: what tests do to the child that they run in.
#![allow(dead_code, reason = "each test crate uses its part")]

use std::io;

/// Runs `body` in a forked child that ends with 0, or with 101 if it panics; gives what `waitpid` says. A child that
/// waits for ever is ended by SIGALRM.
pub(crate) fn fork(body: impl FnOnce()) -> libc::c_int {
    // SAFETY: the child has the thread that runs this test and needs no other; it leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", io::Error::last_os_error());
    if child == 0 {
        // SAFETY: plain calls.
        unsafe { libc::alarm(120) };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: as above.
        unsafe { libc::_exit(if ended.is_ok() { 0 } else { 101 }) };
    }
    wait(child)
}

pub(crate) fn wait(child: libc::pid_t) -> libc::c_int {
    let mut status = 0;
    // SAFETY: waits for a child of ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

/// Whether a child of [`fork`] was killed by this signal.
pub(crate) fn died_of(status: libc::c_int, signal: libc::c_int) -> bool {
    libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == signal
}

pub(crate) fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Says that a part of a test was left out, and why.
pub(crate) fn skipped(why: &str) {
    println!("1 skipped: {why}");
}

fn check(result: libc::c_int) {
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// Has the kernel refuse to make code writable.
pub(crate) fn refuse_exec_gain() {
    // SAFETY: concerns permissions of this process alone.
    check(unsafe { libc::prctl(libc::PR_SET_MDWE, libc::PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) });
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

/// A system call that is refused, whatever its arguments or where its third has all of these bits, and how.
pub(crate) struct Refusal {
    pub(crate) call: libc::c_long,
    pub(crate) third_has: u32,
    pub(crate) answer: u32,
}

/// The answer EPERM.
pub(crate) const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

/// Filters the calling thread's system calls from now on.
pub(crate) fn refuse(refusals: &[Refusal]) {
    const NUMBER: u32 = 0;
    const THIRD: u32 = 32;
    let op = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |offset| op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0);
    let give = |answer| op(libc::BPF_RET | libc::BPF_K, answer, 0, 0);
    let mut program = Vec::new();
    for refusal in refusals {
        program.push(load(NUMBER));
        program.push(op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, refusal.call as u32, 0, 4));
        program.push(load(THIRD));
        program.push(op(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, refusal.third_has, 0, 0));
        program.push(op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, refusal.third_has, 0, 1));
        program.push(give(refusal.answer));
    }
    program.push(give(libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program.
    unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        check(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter));
    }
}

/// Refuses to make anything writable and executable.
pub(crate) const NO_WRITABLE_CODE: Refusal = Refusal {
    call: libc::SYS_mprotect,
    third_has: (libc::PROT_WRITE | libc::PROT_EXEC) as u32,
    answer: EPERM,
};

/// Refuses a call whatever its arguments.
pub(crate) const fn no(call: libc::c_long) -> Refusal {
    Refusal { call, third_has: 0, answer: EPERM }
}

/// The mappings of this process: bounds, permissions, and the rest of the line.
pub(crate) fn mappings() -> Vec<(std::ops::Range<usize>, String, String)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let parse = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let (permissions, rest) = rest.split_once(' ')?;
        Some((number(from)?..number(to)?, permissions.to_owned(), rest.to_owned()))
    };
    maps.lines().filter_map(parse).collect()
}
