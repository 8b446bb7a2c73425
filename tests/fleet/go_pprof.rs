//! Go's own client of profiles against `dormouse serve`.

use std::process::Command;

use dormouse_testkit::c::have;
use dormouse_testkit::eventually;

use super::serving::{Serving, TOKEN};
use crate::support::Service;

#[test]
fn go_finds_the_busy_function() {
    if !have(&["go"]) {
        return;
    }
    let service = Service::visited();
    let serving = Serving::of(&service);
    let home = tempfile::tempdir().expect("a directory");
    let profile =
        format!("http://any:{TOKEN}@127.0.0.1:{}/debug/pprof/profile?seconds=1", serving.daemon.port());
    // A second of a busy machine may hold no sample of the function: then another one is asked for.
    eventually(|| {
        let top = Command::new("go")
            // It gives up after six seconds, in which this build may not have found all names, and
            // leaves out what has less than a two-hundredth of the time.
            .args(["tool", "pprof", "-top", "-nodefraction=0", "-nodecount=1000", "-timeout", "60", &profile])
            .env("PPROF_TMPDIR", home.path())
            .output()
            .expect("go");
        let (said, remarks) = (String::from_utf8_lossy(&top.stdout), String::from_utf8_lossy(&top.stderr));
        assert!(top.status.success(), "{said}{remarks}{}", serving.daemon.log());
        assert!(said.contains("Type: cpu"), "{said}{remarks}");
        said.contains("blend")
    });
    service.assert_alive();
}
