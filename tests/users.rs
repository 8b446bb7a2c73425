//! Users whom a service refuses.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::support::{DORMOUSE, NOBODY, Run, Service, command, finish, run, skip};

#[test]
fn someone_elses_process_is_exit_4() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can start a service as another user");
    }
    let runtime = tempfile::tempdir().expect("a temporary directory");
    chown(runtime.path(), Some(NOBODY), Some(NOBODY)).expect("a directory of another user");
    let service = Service::start_as(DORMOUSE.as_ref(), runtime, |command| {
        command.uid(NOBODY).gid(NOBODY);
    });
    let service = match service {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return skip("other users may not read the directory that the command was built in");
        }
        result => result.expect("a service of another user"),
    };
    // Root may.
    assert_eq!(run(["keys", &service.target()]).code, Some(0));
    let refused = stranger(&["on", &service.target(), "*"]);
    refused.assert_fails(4, &["belongs to user 65534", "is closed to you", "as that user or as root"]);
    let listed = stranger(&["ps"]);
    let row =
        listed.stdout.lines().find(|row| row.trim_start().starts_with(&service.target())).expect("a row");
    assert!(row.contains("65534") && row.contains("is closed to you"), "{row}");
    assert_eq!(service.keys_on("*"), 0);

    // A socket that is open to all by mistake: the agent itself refuses.
    for (path, mode) in [(service.socket().parent().expect("a directory"), 0o755), (&service.socket(), 0o777)]
    {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
    }
    let above = service.socket().ancestors().nth(2).expect("a directory").to_owned();
    std::fs::set_permissions(above, Permissions::from_mode(0o755)).expect("a mode");
    let refused = stranger(&["on", &service.target(), "*"]);
    refused.assert_fails(4, &["belongs to uid 65534, you are uid 65533"]);
    assert_eq!(service.keys_on("*"), 0);
    service.assert_alive();
}

/// The command, run by a third user.
fn as_stranger(args: &[&str]) -> Command {
    let mut command = command(args);
    command.uid(NOBODY - 1).gid(NOBODY - 1);
    command
}

fn stranger(args: &[&str]) -> Run {
    finish(as_stranger(args))
}

#[test]
fn what_others_may_not_see_is_exit_4() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can be another user");
    }
    if as_stranger(&["--version"]).output().is_err() {
        return skip("other users may not read the directory that the command was built in");
    }
    // This one: root's, and without an agent.
    let target = &std::process::id().to_string();
    // That is known to all.
    for args in [&["on", target, "*"][..], &["stat", target, "--waits"], &["profile", target, "--kind=alloc"]]
    {
        stranger(args).assert_fails(3, &["has no dormouse in it"]);
    }
    for args in [&["profile", target][..], &["watch", target, "x"], &["maps", target]] {
        stranger(args).assert_fails(4, &["may not be read"]);
    }
    // Here nobody knows.
    let mut hidden = Command::new("unshare");
    hidden.args(["--mount", "sh", "-c", "mount -t proc -o hidepid=noaccess proc /proc && exec \"$@\"", "sh"]);
    let ids = format!("{}", NOBODY - 1);
    hidden.args(["setpriv", "--reuid", &ids, "--regid", &ids, "--clear-groups", DORMOUSE, "on", target, "*"]);
    let hidden = finish(hidden);
    if hidden.stderr.contains("unshare") || hidden.stderr.contains("mount:") {
        return skip("no process can be hidden here");
    }
    hidden.assert_fails(4, &["belongs to another user", "/proc hides"]);
}

/// In its namespace the service's user has the number by which the kernel shows all others.
#[test]
fn nobody_is_not_everybody_outside_of_the_namespace() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can be another user");
    }
    let runtime = tempfile::tempdir().expect("a temporary directory");
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-user=65534", "--"]);
        command
    };
    if !unshare().arg("true").status().is_ok_and(|ended| ended.success()) {
        return skip("unshare makes no user namespaces here");
    }
    let mut inside = unshare();
    inside.args([DORMOUSE, "teaparty"]);
    let service = Service::start_by(inside, runtime, |_| {}).expect("a service in a user namespace");
    stranger(&["on", &service.target(), "*"])
        .assert_fails(4, &["belongs to uid 65534, you are uid 65534", "users outside"]);
}
