//! Runs of `cargo test`: failed tests run once more, and skipped tests are counted.
//!
//! A test that only a busy machine disturbed passes at its second try, and is listed; one that
//! fails twice fails the step, after all others have run.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead as _, BufReader, pipe};
use std::process::{Command, Stdio};

use crate::process::{Result, cargo, shown};

/// The report lists targets that took longer.
const SLOW_SECONDS: f64 = 10.0;
const SLOW_TARGETS: usize = 20;
/// The beginning of the line of a test that cannot run on this machine (`dormouse_testkit::skip`).
const SKIPPED: &str = "skipped: ";

/// The results of all runs of tests.
#[derive(Default)]
pub(crate) struct Suite {
    skipped: BTreeMap<String, usize>,
    again: Vec<String>,
    targets: Vec<(f64, String)>,
}

/// A target that failed: cargo's options that choose it, and its tests that failed. The list is
/// empty if the whole target has to run again: it ended in the middle, or a name is not one word.
#[derive(Debug, PartialEq)]
struct Failure {
    target: String,
    tests: Vec<String>,
}

/// The results of one run, read line by line.
#[derive(Default)]
struct Results {
    target: String,
    failed: Vec<String>,
    /// Whether `failed` has all tests of the target that failed, each a single word.
    is_complete: bool,
    failures: Vec<Failure>,
    targets: Vec<(f64, String)>,
    skipped: Vec<String>,
}

impl Suite {
    /// `cargo test` with `arguments`. `choice` are those that choose targets or tests: a second try
    /// leaves them out.
    pub(crate) fn run(&mut self, arguments: &str, choice: &str, settings: &[(&str, &str)]) -> Result {
        let arguments = format!("test {arguments} --locked --no-fail-fast");
        let mut command = cargo(&arguments);
        command.args(choice.split_whitespace()).envs(settings.iter().copied());
        let (is_passed, results) = follow(&mut command)?;
        self.add(&results);
        if is_passed {
            return Ok(());
        }
        if results.failures.is_empty() {
            return Err(format!("{} failed outside of any test", shown(&command)));
        }
        let mut twice = Vec::new();
        for Failure { target, tests } in results.failures {
            println!("once more: {target} {}", tests.join(" "));
            self.again.push(format!("{target} {}", tests.join(" ")));
            let mut command = cargo(&arguments);
            command.args(target.split_whitespace()).envs(settings.iter().copied());
            if !tests.is_empty() {
                command.args(["--", "--exact"]).args(&tests);
            }
            let (is_passed, results) = follow(&mut command)?;
            self.add(&results);
            if !is_passed {
                twice.push(target);
            }
        }
        if twice.is_empty() { Ok(()) } else { Err(format!("failed twice: {}", twice.join(", "))) }
    }

    fn add(&mut self, results: &Results) {
        self.targets.extend(results.targets.iter().cloned());
        for why in &results.skipped {
            *self.skipped.entry(why.clone()).or_default() += 1;
        }
    }
}

/// Runs the command, and prints and reads its output.
fn follow(command: &mut Command) -> Result<(bool, Results)> {
    let failed = |why: std::io::Error| why.to_string();
    let (reader, writer) = pipe().map_err(failed)?;
    command.stdin(Stdio::null()).stdout(writer.try_clone().map_err(failed)?).stderr(writer);
    let mut child = command.spawn().map_err(|why| format!("{}: {why}", shown(command)))?;
    // The command holds ends of the pipe, which would never be at its end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut results = Results::default();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.map_err(failed)?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        results.line(&line);
    }
    Ok((child.wait().map_err(failed)?.success(), results))
}

impl Results {
    fn line(&mut self, line: &str) {
        if let Some(at) = line.find(SKIPPED) {
            self.skipped.push(line[at + SKIPPED.len()..].to_owned());
        }
        let trimmed = line.trim_start();
        if let Some(running) = trimmed
            .strip_prefix("Running ")
            .or_else(|| trimmed.strip_prefix("Doc-tests ").filter(|_| trimmed != line))
        {
            let name = running.strip_prefix("unittests ").unwrap_or(running);
            // `src/lib.rs (target/debug/deps/dormouse-0123456789abcdef)`
            let is_unit = running.len() != name.len();
            let program = name.rsplit_once('/').map(|(_, program)| program.trim_end_matches(')'));
            let name = name.split(' ').next().unwrap_or_default();
            name.clone_into(&mut self.target);
            if is_unit && let Some((program, _)) = program.and_then(|it| it.rsplit_once('-')) {
                self.target = format!("{program} (in its files)");
            }
            self.failed.clear();
            self.is_complete = false;
        } else if let Some(name) = line.strip_prefix("test ").and_then(|it| it.strip_suffix(" ... FAILED")) {
            if !self.failed.iter().any(|known| known == name) {
                self.failed.push(name.to_owned());
            }
        } else if let Some(result) = line.strip_prefix("test result: ") {
            let number = |after: &str| {
                let rest = &result[result.find(after)? + after.len()..];
                rest.split([' ', 's', ';']).next()?.parse::<f64>().ok()
            };
            let seconds = number("finished in ").unwrap_or_default();
            self.targets.push((seconds, self.target.clone()));
            let is_all = number(" passed; ") == Some(self.failed.len() as f64);
            self.is_complete = is_all && !self.failed.iter().any(|name| name.contains(' '));
        } else if let Some(target) = line
            .strip_prefix("error: test failed, to rerun pass `")
            .or_else(|| line.strip_prefix("error: doctest failed, to rerun pass `"))
        {
            // Chosen by its package too, its features would be others.
            let words: Vec<_> = target.trim_end_matches('`').split(' ').collect();
            let words = if words[0] == "-p" { &words[2..] } else { &words[..] };
            let tests = std::mem::take(&mut self.failed);
            let tests = if self.is_complete { tests } else { Vec::new() };
            self.failures.push(Failure { target: words.join(" "), tests });
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut slow: Vec<_> = self.targets.iter().filter(|(seconds, _)| *seconds > SLOW_SECONDS).collect();
        slow.sort_by(|one, other| other.0.total_cmp(&one.0));
        writeln!(out, "\n== targets with more than {SLOW_SECONDS} s")?;
        for (seconds, name) in slow.into_iter().take(SLOW_TARGETS) {
            writeln!(out, "{seconds:7.1} s  {name}")?;
        }
        writeln!(out, "\n== skipped: {}", self.skipped.values().sum::<usize>())?;
        for (why, count) in &self.skipped {
            writeln!(out, "{count:7}  {why}")?;
        }
        writeln!(out, "\n== run twice: {}", self.again.len())?;
        self.again.iter().try_for_each(|one| writeln!(out, "{one}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Failure, Results};

    fn read(text: &str) -> Results {
        let mut results = Results::default();
        text.lines().for_each(|line| results.line(line));
        results
    }

    #[test]
    fn failed_tests_are_run_again_by_name() {
        let results = read(
            "     Running tests/traps.rs (target/debug/deps/traps-0123456789abcdef)\n\
             test handlers::chain ... FAILED\n\
             test others ... ok\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 12.50s\n\
             error: test failed, to rerun pass `-p dormouse-keys --test traps`\n",
        );
        let tests = vec!["handlers::chain".to_owned()];
        assert_eq!(results.failures, [Failure { target: "--test traps".to_owned(), tests }]);
        assert_eq!(results.targets, [(12.5, "tests/traps.rs".to_owned())]);
    }

    #[test]
    fn interrupted_target_runs_again_as_a_whole() {
        let results = read(
            "     Running unittests src/lib.rs (target/debug/deps/dormouse_keys-0123456789abcdef)\n\
             test one ... FAILED\n\
             skipped: no debug registers here\n\
             test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
             error: test failed, to rerun pass `-p dormouse-keys --lib`\n",
        );
        assert_eq!(results.failures, [Failure { target: "--lib".to_owned(), tests: Vec::new() }]);
        assert_eq!(results.targets, [(0.01, "dormouse_keys (in its files)".to_owned())]);
        assert_eq!(results.skipped, ["no debug registers here"]);
    }
}
