//! `dormouse bench` and `dormouse compare`, which the program `dormouse-bench` does.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::support::{DORMOUSE, Run, finish};

/// The command under another name, in a folder in which `program` is the bench.
fn installed(program: Option<&str>) -> (TempDir, PathBuf) {
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder beside the command");
    let command = folder.path().join("dm");
    std::fs::hard_link(DORMOUSE, &command).expect("another name");
    if let Some(program) = program {
        symlink(program, folder.path().join("dormouse-bench")).expect("a link");
    }
    (folder, command)
}

fn run(program: Option<&str>, words: &[&str]) -> (Run, PathBuf) {
    let (_folder, path) = installed(program);
    let mut command = Command::new(&path);
    command.args(words).env("PATH", "/nowhere");
    (finish(command), path)
}

#[test]
fn the_program_beside_it_gets_all_words() {
    for (words, heard) in [
        (&["bench", "keys", "--quick", "-o", "x", "--json"][..], "keys --quick -o x --json\n"),
        (&["bench", "--quick", "keys"], "--quick keys\n"),
        (&["--json", "bench", "keys"], "--json keys\n"),
        (&["compare", "a", "b", "--threshold", "2"], "compare a b --threshold 2\n"),
    ] {
        let (ran, _) = run(Some("/bin/echo"), words);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), heard), "{ran:?}");
    }
}

#[test]
fn it_ends_as_the_program_does() {
    assert_eq!(run(Some("/bin/false"), &["bench", "keys"]).0.code, Some(1));
    let (ran, path) = run(Some("/usr/bin/printenv"), &["bench", "DORMOUSE_COMMAND"]);
    assert_eq!(ran.stdout.trim_end(), path.to_str().expect("UTF-8"), "it finds the command that ran it");
}

#[test]
fn a_missing_program_says_how_to_install_it() {
    run(None, &["bench", "keys"])
        .0
        .assert_fails(127, &["dormouse-bench", "cargo install --path crates/bench"]);
    let (json, _) = run(None, &["--json", "compare", "a", "b"]);
    let error: serde_json::Value = serde_json::from_str(&json.stderr).expect("one document");
    assert_eq!(error["error"]["exit"], 127, "{error}");
}
