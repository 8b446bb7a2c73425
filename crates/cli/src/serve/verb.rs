//! The verbs that are served, and the flags that a request may give them.
//!
//! A request never gives a word of the command line as it is: a flag that stands in the table
//! becomes one word `--flag=value`, and an operand stands behind `--`, which only verbs with an
//! operand get: behind that of others stands a command to run. So nothing in a value is taken for a
//! flag, and no flag that writes a file, runs a command or keeps a key is ever reached.

use std::time::Duration;

use super::served::Shape;

/// The longest that a verb may take whose answer is one document, and one whose answer is lines.
const DOCUMENT: Duration = Duration::from_secs(300);
const LINES: Duration = Duration::from_secs(3600);

/// A flag of a verb.
#[derive(Debug, Clone, Copy)]
enum Takes {
    Value,
    /// It is there, or not.
    Nothing,
    /// A value, or nothing; and the verb prints lines.
    Streams,
}

/// A verb.
#[derive(Debug)]
pub(super) struct Verb {
    name: &'static str,
    /// The name in the query of what stands behind the process, if something may.
    operand: Option<&'static str>,
    flags: &'static [(&'static str, Takes)],
    /// Flags that are given where the request has not the first part of one of them.
    always: &'static [&'static str],
    shape: Shape,
}

/// A command line, and what comes of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) line: Vec<String>,
    pub(super) shape: Shape,
    pub(super) longest: Duration,
}

use Takes::{Nothing, Streams, Value};

/// Verbs that read.
const READING: [Verb; 9] = [
    Verb::reading("keys", Some("glob"), &[]),
    Verb {
        always: &["--for=1s"],
        ..Verb::reading(
            "stat",
            None,
            &[("for", Value), ("waits", Nothing), ("event", Value), ("interval", Streams)],
        )
    },
    Verb {
        shape: Shape::Lines,
        ..Verb::reading(
            "top",
            None,
            &[("count", Value), ("interval", Value), ("event", Value), ("waits", Nothing)],
        )
    },
    Verb::reading("list", None, &[]),
    Verb::reading("slots", None, &[]),
    Verb::reading("doctor", None, &[]),
    Verb::reading("triggers", None, &[]),
    Verb::reading(
        "tasks",
        None,
        &[
            ("for", Value),
            ("group", Value),
            ("state", Value),
            ("older", Value),
            ("waiting", Value),
            ("sort", Value),
            ("limit", Value),
            ("cpu", Nothing),
            ("tree", Nothing),
            ("long-poll", Streams),
        ],
    ),
    Verb::reading(
        "profile",
        None,
        &[
            ("for", Value),
            ("hz", Value),
            ("group", Value),
            ("kind", Value),
            ("live", Nothing),
            ("unwind", Nothing),
            ("top", Value),
        ],
    ),
];

/// Takes addresses, as many as there are.
const MAPS: Verb = Verb::reading("maps", Some("addr"), &[]);

/// Switches probes on for as long as somebody reads.
pub(super) const TRACE: Verb =
    Verb { shape: Shape::Lines, ..Verb::reading("trace", Some("glob"), &[("for", Value), ("count", Value)]) };

/// Takes debug registers for as long as somebody reads.
pub(super) const WATCH: Verb = Verb {
    always: &["--stream"],
    shape: Shape::Lines,
    ..Verb::reading(
        "watch",
        Some("what"),
        &[
            ("access", Value),
            ("changed", Nothing),
            ("equals", Value),
            ("mask", Value),
            ("group", Value),
            ("max", Value),
            ("for", Value),
            ("rate", Value),
            ("flexible", Nothing),
        ],
    )
};

/// Switches keys on for a time.
pub(super) const ON: Verb = Verb::reading("on", Some("glob"), &[("for", Value)]);

/// Switches keys off.
pub(super) const OFF: Verb = Verb::reading("off", Some("glob"), &[]);

/// The reading verb of that name.
pub(super) fn reading(name: &str) -> Option<&'static Verb> {
    READING.iter().chain([&MAPS]).find(|verb| verb.name == name)
}

impl Verb {
    const fn reading(
        name: &'static str,
        operand: Option<&'static str>,
        flags: &'static [(&'static str, Takes)],
    ) -> Verb {
        Verb { name, operand, flags, always: &[], shape: Shape::Document }
    }

    /// The command line of a request for a process, or why there is none.
    pub(super) fn call(&self, target: &str, query: &[(String, String)]) -> Result<Call, String> {
        let mut line = vec!["dormouse".into(), self.name.to_owned(), target.to_owned(), "--json".into()];
        let (mut shape, mut operands) = (self.shape, Vec::new());
        for (name, value) in query {
            // As the fields of JSON are spelled.
            let name = name.replace('_', "-");
            if self.operand == Some(name.as_str()) {
                if value == "-" {
                    return Err(format!("{name:?} is \"-\", and there is no standard input here"));
                }
                operands.push(value.clone());
                continue;
            }
            let Some(&(_, takes)) = self.flags.iter().find(|(flag, _)| *flag == name) else {
                return Err(self.unknown(&name));
            };
            match takes {
                Value => line.push(format!("--{name}={value}")),
                Streams => {
                    line.push(format!("--{name}={value}"));
                    shape = Shape::Lines;
                }
                Nothing if is_true(value).ok_or_else(|| format!("{name:?} is 1 or 0"))? => {
                    line.push(format!("--{name}"));
                }
                Nothing => {}
            }
        }
        for flag in self.always {
            let name = flag.split('=').next().unwrap_or(flag);
            let is_given = |word: &String| word.split('=').next() == Some(name);
            if shape == self.shape && !line.iter().any(is_given) {
                line.push((*flag).to_owned());
            }
        }
        if !operands.is_empty() {
            line.push("--".into());
            line.append(&mut operands);
        }
        let longest = if shape == Shape::Lines { LINES } else { DOCUMENT };
        Ok(Call { line, shape, longest })
    }

    fn unknown(&self, name: &str) -> String {
        let names = self.flags.iter().map(|(name, _)| *name).chain(self.operand);
        let known = names.collect::<Vec<_>>().join(", ");
        let known = if known.is_empty() { "nothing does".to_owned() } else { format!("{known} do") };
        format!("{name:?} means nothing to {}: {known}", self.name)
    }
}

fn is_true(value: &str) -> Option<bool> {
    match value {
        "" | "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn line(verb: &str, pairs: &[(&str, &str)]) -> Result<String, String> {
        reading(verb).unwrap().call("7", &query(pairs)).map(|call| call.line.join(" "))
    }

    #[test]
    fn queries_become_command_lines() {
        assert_eq!(line("keys", &[]).unwrap(), "dormouse keys 7 --json");
        assert_eq!(line("keys", &[("glob", "--x")]).unwrap(), "dormouse keys 7 --json -- --x");
        assert_eq!(line("stat", &[]).unwrap(), "dormouse stat 7 --json --for=1s");
        assert_eq!(
            line("stat", &[("for", "2s"), ("waits", "1")]).unwrap(),
            "dormouse stat 7 --json --for=2s --waits"
        );
        assert_eq!(line("stat", &[("interval", "1s")]).unwrap(), "dormouse stat 7 --json --interval=1s");
        assert_eq!(
            line("tasks", &[("tree", "0"), ("group", "a b")]).unwrap(),
            "dormouse tasks 7 --json --group=a b"
        );
    }

    #[test]
    fn flags_that_do_more_than_read_are_refused() {
        for (verb, name) in [
            ("profile", "o"),
            ("profile", "output"),
            ("profile", "diff"),
            ("profile", "command"),
            ("stat", "output"),
            ("stat", "pid"),
            ("stat", "repeat"),
            ("tasks", "wake"),
            ("triggers", "add"),
            ("triggers", "remove"),
            ("keys", "json=0 --timeout"),
            ("keys", ""),
        ] {
            assert!(line(verb, &[(name, "/tmp/x")]).is_err(), "{verb} {name}");
        }
        assert!(line("maps", &[("addr", "-")]).is_err(), "the server's own input is nobody's");
        for verb in ["on", "off", "reset", "trace", "watch", "record", "serve", "bench", "demo", "generate"] {
            assert!(reading(verb).is_none(), "{verb} does more than read");
        }
        assert!(ON.call("7", &query(&[("keep", "1")])).is_err());
        assert!(OFF.call("7", &query(&[("force", "1")])).is_err());
    }

    #[test]
    fn streams_are_told_from_documents() {
        let shape = |verb: &str, pairs: &[(&str, &str)]| {
            let call = reading(verb).unwrap().call("7", &query(pairs)).unwrap();
            (call.shape, call.longest)
        };
        assert_eq!(shape("stat", &[]), (Shape::Document, DOCUMENT));
        assert_eq!(shape("stat", &[("interval", "1s")]), (Shape::Lines, LINES));
        assert_eq!(shape("tasks", &[("long_poll", "1s")]).0, Shape::Lines);
        assert_eq!(shape("top", &[]).0, Shape::Lines);
    }

    /// Words that want to be more than a value, put together by chance.
    #[test]
    fn any_query_gives_values_alone() {
        let words = ["--output=/tmp/x", "--", "-", "", "=", "keep", " ", "\0", "1", "*", "\n--wake", "ö"];
        let mut state = 1_u64;
        let mut below = |bound: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % bound as u64) as usize
        };
        let (mut read, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let verb = &READING[below(READING.len())];
            let names: Vec<_> = verb.flags.iter().map(|(name, _)| *name).chain(verb.operand).collect();
            let mut query = Vec::new();
            for _ in 0..below(4) {
                let is_known = below(8) > 0 && !names.is_empty();
                let name = if is_known { names[below(names.len())] } else { words[below(words.len())] };
                query.push((name.to_owned(), [(); 2].map(|()| words[below(words.len())]).concat()));
            }
            let Ok(call) = verb.call("7", &query) else {
                refused += 1;
                continue;
            };
            read += 1;
            assert_eq!(call.line[..4], ["dormouse", verb.name, "7", "--json"]);
            let mut rest = call.line[4..].iter();
            for word in rest.by_ref().take_while(|word| *word != "--") {
                let name = word.split('=').next().unwrap_or(word);
                let is_flag = |flag: &str| name.strip_prefix("--") == Some(flag);
                let is_always = verb.always.iter().any(|flag| flag.split('=').next() == Some(name));
                assert!(is_always || verb.flags.iter().any(|(flag, _)| is_flag(flag)), "{:?}", call.line);
            }
            assert!(verb.operand.is_some() || rest.next().is_none(), "{:?}", call.line);
        }
        assert!(read > 1_000 && refused > 1_000, "{read} read, {refused} refused");
    }
}
