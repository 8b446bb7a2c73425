//! Runs of `cargo test`: failed and skipped tests, and the time of each program.
//!
//! A test that failed runs once more, with its module; a program without names of tests, as a
//! whole. If it passes then, the run goes on, and the report names it: such a test has to be
//! rewritten.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead as _, BufReader, pipe};
use std::process::{Command, Stdio};

use crate::process::{Result, cargo, shown};

/// The report lists programs, and modules with a process of their own, that took longer.
const SLOW_SECONDS: f64 = 10.0;
const SLOW_TARGETS: usize = 20;
/// The beginning of the line of a test that cannot run on this machine (`dormouse_testkit::skip`).
const SKIPPED: &str = "skipped: ";

/// The end of the line of a module in a process of its own (`dormouse_testkit::run_modules`).
const CPU_TIME: &str = " s of CPU time)";

/// The results of all runs of tests.
#[derive(Default)]
pub(crate) struct Suite {
    /// With every bench, longer stress, and the checks before a release.
    pub(crate) is_long: bool,
    skipped: BTreeMap<String, usize>,
    /// Filters that choose what failed in the present run.
    failed: Vec<String>,
    /// Arguments that choose programs of the present run that failed without naming a test.
    unnamed: Vec<String>,
    /// The tests that ran twice.
    again: Vec<String>,
    targets: Vec<(f64, String)>,
    /// The target that runs now.
    target: String,
    /// Whether the present program has named something that failed.
    is_named: bool,
}

impl Suite {
    pub(crate) fn new(is_long: bool) -> Suite {
        Suite { is_long, ..Suite::default() }
    }

    /// Counts a check that cannot run on this machine.
    pub(crate) fn skip(&mut self, why: &str) {
        println!("{SKIPPED}{why}");
        *self.skipped.entry(why.to_owned()).or_default() += 1;
    }

    /// Counts the skips that another run has printed; its report has each of them once more.
    pub(crate) fn skips_of(&mut self, printed: &str) {
        for line in printed.lines().filter(|line| !line.starts_with("== ")) {
            self.skip_of(line);
        }
    }

    fn skip_of(&mut self, line: &str) {
        if let Some(at) = line.find(SKIPPED) {
            *self.skipped.entry(line[at + SKIPPED.len()..].to_owned()).or_default() += 1;
        }
    }

    /// `cargo test` with `arguments`, and behind them those that choose targets or tests.
    pub(crate) fn run(&mut self, arguments: &str, choice: &str, settings: &[(&str, &str)]) -> Result {
        let arguments = format!("test {arguments} --locked --no-fail-fast {choice}");
        let mut command = cargo(&arguments);
        command.envs(settings.iter().copied());
        if self.follow(&mut command)? {
            return Ok(());
        }
        let (filters, programs) = (std::mem::take(&mut self.failed), std::mem::take(&mut self.unnamed));
        if filters.is_empty() && programs.is_empty() {
            return Err(format!("{} failed, and not by a test", shown(&command)));
        }
        let (chosen, wanted) = arguments.split_once(" -- ").unwrap_or((&arguments, ""));
        let mut runs = Vec::new();
        if !filters.is_empty() {
            let mut command = cargo(chosen);
            command.arg("--").args(&filters);
            runs.push(command);
        }
        // `--test` and its kind choose among the packages that were chosen already.
        runs.extend(programs.iter().map(|program| cargo(&format!("{chosen} {program} -- {wanted}"))));
        self.again.extend(filters.into_iter().chain(programs));
        for command in &mut runs {
            println!("once more: {}", shown(command));
            if !self.follow(command.envs(settings.iter().copied()))? {
                let failed = [std::mem::take(&mut self.failed), std::mem::take(&mut self.unnamed)].concat();
                return Err(format!("failed twice: {}", failed.join(", ")));
            }
        }
        Ok(())
    }

    /// Runs the command, prints and reads its output, and returns whether it succeeded.
    fn follow(&mut self, command: &mut Command) -> Result<bool> {
        let failed = |why: std::io::Error| why.to_string();
        let (reader, writer) = pipe().map_err(failed)?;
        command.stdin(Stdio::null()).stdout(writer.try_clone().map_err(failed)?).stderr(writer);
        let mut child = command.spawn().map_err(|why| format!("{}: {why}", shown(command)))?;
        // The command holds ends of the pipe, which would never be at its end.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        for line in BufReader::new(reader).split(b'\n') {
            let line = line.map_err(failed)?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            self.line(&line);
        }
        Ok(child.wait().map_err(failed)?.success())
    }

    /// Reads one line of a run.
    fn line(&mut self, line: &str) {
        self.skip_of(line);
        let trimmed = line.trim_start();
        if let Some(running) = trimmed
            .strip_prefix("Running ")
            .or_else(|| trimmed.strip_prefix("Doc-tests ").filter(|_| trimmed != line))
        {
            let name = running.strip_prefix("unittests ").unwrap_or(running);
            // `tests/all/main.rs (target/debug/deps/all-0123456789abcdef)`, or the module of a test
            // program, in a process of its own.
            let is_unit = running.len() != name.len();
            let program = name.rsplit_once('/').map(|(_, program)| program.trim_end_matches(')'));
            // The time of a module stays with its name.
            let target = if name.ends_with(CPU_TIME) { Some(name) } else { name.split(' ').next() };
            target.unwrap_or_default().clone_into(&mut self.target);
            if is_unit && let Some((program, _)) = program.and_then(|it| it.rsplit_once('-')) {
                self.target = format!("{program} (in its files)");
            }
        } else if let Some(name) = line.strip_prefix("test ").and_then(|it| it.strip_suffix(" ... FAILED")) {
            self.failed.push(name.to_owned());
            self.is_named = true;
        } else if let Some(modules) = line.strip_prefix("modules that failed: ") {
            // All of their tests: one may have ended its process.
            for module in modules.split(' ').filter(|name| !name.is_empty()) {
                let module = format!("{module}::");
                self.failed.retain(|name| !name.starts_with(&module));
                self.failed.push(module);
            }
            self.is_named = true;
        } else if line.starts_with("error: test failed") || line.starts_with("error: doctest failed") {
            // ``error: test failed, to rerun pass `-p dormouse-profile --test storm` ``
            if !std::mem::take(&mut self.is_named) {
                let choice = line.split('`').nth(1).unwrap_or_default();
                let words = choice.split(' ').skip_while(|word| !word.starts_with("--"));
                self.unnamed.push(words.collect::<Vec<_>>().join(" "));
            }
        } else if let Some((_, seconds)) = line.split_once("; finished in ") {
            let seconds = seconds.trim_end_matches('s').parse().unwrap_or_default();
            self.targets.push((seconds, self.target.clone()));
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
    use super::Suite;

    #[test]
    fn modules_and_unit_tests_are_told_apart() {
        let mut suite = Suite::default();
        let text = "     Running tests/all/main.rs (target/debug/deps/all-0123456789abcdef)\n\
             \n     Running traps (3.21 s of CPU time)\n\
             test traps::handlers::chain ... FAILED\n\
             test others ... ok\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 12.50s\n\
             \n     Running others\n\
             \nmodules that failed: traps\n\
             error: test failed, to rerun pass `-p dormouse-keys --test all`\n     \
             Running unittests src/lib.rs (target/debug/deps/dormouse_keys-0123456789abcdef)\n\
             skipped: no debug registers here\n\
             test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";
        text.lines().for_each(|line| suite.line(line));
        assert_eq!(suite.failed, ["traps::"]);
        assert!(suite.unnamed.is_empty());
        let targets = [
            (12.5, "traps (3.21 s of CPU time)".to_owned()),
            (0.01, "dormouse_keys (in its files)".to_owned()),
        ];
        assert_eq!(suite.targets, targets);
        assert_eq!(suite.skipped["no debug registers here"], 1);
    }

    #[test]
    fn programs_without_test_names_are_chosen_whole() {
        let mut suite = Suite::default();
        let text = "     Running unittests src/lib.rs (target/debug/deps/dormouse_keys-0123456789abcdef)\n\
             test one ... FAILED\n\
             error: test failed, to rerun pass `-p dormouse-keys --lib`\n     \
             Running unittests src/lib.rs (target/debug/deps/dormouse_maps-0123456789abcdef)\n\
             error: test failed, to rerun pass `-p dormouse-maps --lib`\n";
        text.lines().for_each(|line| suite.line(line));
        assert_eq!(suite.failed, ["one"]);
        assert_eq!(suite.unnamed, ["--lib"]);
    }
}
