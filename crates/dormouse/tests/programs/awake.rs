//! Keys that `DORMOUSE_ON` names are awake from `init` on; nonsense is told. No test harness: each
//! case is a process.

use std::process::Command;

use dormouse::keys::Selector;

dormouse::static_key! {
    static FIRST: "awake.first" = false;
    static SECOND: "awake.second" = false;
}

/// Says which keys are on before `init`, which after, and what is wrong.
fn service() {
    let state = || [dormouse::unlikely!(FIRST), dormouse::unlikely!(SECOND)].map(u8::from);
    let before = state();
    let agent = dormouse::init().unwrap();
    println!("{before:?} {:?} {}", state(), agent.warnings().join("; "));
    // Once: what was switched off since stays off.
    dormouse::keys::Batch::new()
        .disable_all(Selector::parse("awake.*").unwrap().keys().iter().map(|used| used.key))
        .apply()
        .unwrap();
    dormouse::init().unwrap();
    assert_eq!(state(), [0, 0]);
}

fn run(setting: &str) -> String {
    let place = tempfile::tempdir().unwrap();
    let mut service = Command::new(std::env::current_exe().unwrap());
    service.env("DORMOUSE_TEST_SERVICE", "1").env("DORMOUSE_RUNTIME_DIR", place.path());
    let output = service.env("DORMOUSE_ON", setting).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

pub(crate) fn main() {
    if std::env::var_os("DORMOUSE_TEST_SERVICE").is_some() {
        return service();
    }
    assert_eq!(run(""), "[0, 0] [0, 0]");
    assert_eq!(run("awake.*"), "[0, 0] [1, 1]");
    assert_eq!(run("awake.*,!*.first"), "[0, 0] [0, 1]");
    for (nonsense, why) in
        [("awake.[", "malformed glob"), ("awke.first", "near: awake.first"), (",", "empty")]
    {
        let said = run(nonsense);
        assert!(said.starts_with("[0, 0] [0, 0] DORMOUSE_ON") && said.contains(why), "{said}");
    }
    println!("6 passed, 0 failed");
}
