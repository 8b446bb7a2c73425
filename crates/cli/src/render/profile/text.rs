//! A profile as tables: the functions of each group, then what is missing.

use std::fmt::Write as _;

use dormouse_profile::symbols::NO_SAMPLE;
use dormouse_profile::{Profile, ProfileKind, Symbols};

use super::coverage;
use super::uses::{FunctionUse, GroupUse, amount, percent, uses};
use crate::duration::short;
use crate::output::{DIM, HEAD};
use crate::render::table::Table;
use crate::text::{Clean, clean, count};

/// Groups that have a table of their own; the others have one line together.
const MOST_GROUPS: usize = 20;

/// The longest name of a function in a table, in characters.
const MOST_NAME: usize = 72;

/// The longest place in a table that is not cut, in characters.
const MOST_PLACE: usize = 36;

/// The meaning of a column, for headlines.
fn subject(kind: ProfileKind, column: usize) -> &'static str {
    match (kind, column) {
        (ProfileKind::Alloc, 3) => "memory that was allocated and is still there",
        (ProfileKind::Alloc, _) => "allocated memory",
        (ProfileKind::Faults, _) => "page faults",
        (ProfileKind::Wall, _) => "wall time of tasks",
        _ => "CPU time",
    }
}

/// The groups of the profile of `who`, with at most `most` functions of each.
pub(crate) fn groups(who: &str, profile: &Profile, symbols: &Symbols, column: usize, most: usize) -> String {
    let groups = uses(profile, symbols, column);
    let sum: u64 = groups.iter().map(|group| group.total).sum();
    let whole = if column == profile.kind.main_column() { sum.max(profile.coverage.total) } else { sum };
    let mut text =
        format!("{HEAD}{who}: {} in {}{HEAD:#}\n", subject(profile.kind, column), short(profile.duration_ns));
    for group in groups.iter().take(MOST_GROUPS) {
        let (total, share) = (amount(profile.kind, column, group.total), percent(group.total, whole));
        let _ = write!(text, "\n{HEAD}{}{HEAD:#}  {total}, {share:.1} % of the process", Clean(&group.name));
        match &group.functions[..] {
            [only] if only.name == NO_SAMPLE => {
                let _ = writeln!(text, " {DIM}{NO_SAMPLE}{DIM:#}");
            }
            _ => {
                text.push('\n');
                text.push_str(&functions(profile.kind, column, group, most));
            }
        }
    }
    let others = groups.get(MOST_GROUPS..).unwrap_or_default();
    if !others.is_empty() {
        let total: u64 = others.iter().map(|group| group.total).sum();
        let _ = writeln!(
            text,
            "\n{}: {}, {:.1} % of the process; --json has all",
            count(others.len() as u64, "more group"),
            amount(profile.kind, column, total),
            percent(total, whole)
        );
    }
    text.push('\n');
    text
}

/// The lines below a profile.
pub(crate) fn coverage(profile: &Profile) -> String {
    coverage::lines(profile).into_iter().map(|line| line + "\n").collect()
}

/// The functions of a group that used most.
pub(crate) fn functions(kind: ProfileKind, column: usize, group: &GroupUse, most: usize) -> String {
    let mut table = Table::new([">SELF %", ">SELF", ">TOTAL %", ">TOTAL", "FUNCTION", "MOSTLY AT"]);
    for of in group.functions.iter().take(most) {
        table.row([
            format!("{:.1}", percent(of.own, group.total)),
            amount(kind, column, of.own),
            format!("{:.1}", percent(of.total, group.total)),
            amount(kind, column, of.total),
            clean(&brief(&of.name)),
            place(of),
        ]);
    }
    let mut text = table.render(DIM);
    if group.functions.len() > most {
        let _ = writeln!(
            text,
            "{DIM}and {}{DIM:#}",
            count((group.functions.len() - most) as u64, "more function")
        );
    }
    text
}

/// A name that fits into a table: what stands in angle brackets is left out where it is too long,
/// the innermost first.
pub(crate) fn brief(name: &str) -> String {
    let mut text = name.to_owned();
    for depth in [3, 2, 1] {
        if text.chars().count() <= MOST_NAME {
            return text;
        }
        text = without_brackets(name, depth);
    }
    if text.chars().count() > MOST_NAME {
        text = text.chars().take(MOST_NAME - 1).chain(['…']).collect();
    }
    text
}

/// The name without what is nested in more than `most` angle brackets. Brackets at the very
/// beginning contain the type that a function belongs to.
fn without_brackets(name: &str, most: usize) -> String {
    let outside = most;
    let mut most = outside + usize::from(name.starts_with('<'));
    let (mut text, mut depth, mut before) = (String::new(), 0, ' ');
    for c in name.chars() {
        let is_end = c == '>' && before != '-' && depth > 0;
        depth -= usize::from(is_end);
        if depth < most {
            text.push(c);
        }
        if is_end && depth == 0 {
            most = outside;
        }
        if c == '<' {
            depth += 1;
            if depth == most {
                text.push('…');
            }
        }
        before = c;
    }
    text
}

/// The file and the line: the crate and the path in it (`tokio/runtime/task/core.rs:365`), because
/// the names of inlined functions may have no path; elsewhere the last two parts.
fn place(of: &FunctionUse) -> String {
    let Some((path, line)) = &of.place else { return String::new() };
    let last = |path: &str, parts: usize| path.rmatch_indices('/').nth(parts - 1).map_or(0, |(at, _)| at + 1);
    let file = match path.rsplit_once("/src/") {
        Some((root, inside)) => {
            let name = without_version(&root[last(root, 1)..]);
            let whole = format!("{name}/{inside}");
            let is_long = whole.chars().count() > MOST_PLACE;
            if is_long { format!("{name}/…/{}", &inside[last(inside, 2)..]) } else { whole }
        }
        None => path[last(path, 2)..].to_owned(),
    };
    let file = clean(&file);
    if *line == 0 { file } else { format!("{file}:{line}") }
}

/// The name of a crate, from that of the directory that it was unpacked to: `mio-1.2.4`.
fn without_version(directory: &str) -> &str {
    let mut at = directory.match_indices('-').map(|(at, _)| at);
    let is_version = |at: &usize| directory.as_bytes().get(at + 1).is_some_and(u8::is_ascii_digit);
    at.find(is_version).map_or(directory, |at| &directory[..at])
}

#[cfg(test)]
mod tests {
    use super::super::uses::tests::tea;
    use super::*;

    #[test]
    fn groups_and_functions_stand_by_use() {
        let (profile, symbols) = tea();
        let text = groups("tea (process 7)", &profile, &symbols, 1, 2);
        let text = anstream::adapter::strip_str(&text).to_string();
        let right = "\
tea (process 7): CPU time in 2.00 s

GET /blend  1.00 us, 90.3 % of the process
SELF %    SELF  TOTAL %    TOTAL  FUNCTION  MOSTLY AT
  60.0  600 ns     60.0   600 ns  stir      src/tea.rs:31
  20.0  200 ns    100.0  1.00 us  blend     src/tea.rs:21
and 2 more functions

(unattributed)  100 ns, 9.0 % of the process
SELF %    SELF  TOTAL %   TOTAL  FUNCTION         MOSTLY AT
 100.0  100 ns    100.0  100 ns  (stack unknown)

GET /menu  7 ns, 0.6 % of the process (not sampled)
";

        assert!(text.starts_with(right), "{text}");
    }

    #[test]
    fn long_names_lose_what_is_in_brackets() {
        let long = "a".repeat(80);
        for (name, right) in [
            ("tea::steep", "tea::steep".to_owned()),
            (&*format!("try<{long}<u8>, x>"), "try<…>".to_owned()),
            (&format!("<Tea<{long}> as Brew>::steep::<{long}>"), "<Tea<…> as Brew>::steep::<…>".to_owned()),
            (&format!("f<fn(A) -> B<{long}>>::g"), "f<fn(A) -> B<…>>::g".to_owned()),
            (&long, format!("{}…", "a".repeat(71))),
        ] {
            assert_eq!(brief(name), right);
        }
    }

    #[test]
    fn a_place_says_the_crate() {
        let of = |file: &str, line| {
            place(&FunctionUse { name: String::new(), own: 0, total: 0, place: Some((file.into(), line)) })
        };
        let registry = "/root/.cargo/registry/src/index-1949cf8c";
        for (file, right) in [
            (&*format!("{registry}/mio-1.2.4/src/net/tcp/stream.rs"), "mio/net/tcp/stream.rs:7"),
            (&format!("{registry}/http-body-0.1.0-rc.2/src/lib.rs"), "http-body/lib.rs:7"),
            (
                &format!("{registry}/tokio-1.54.1/src/runtime/scheduler/multi_thread/worker.rs"),
                "tokio/…/multi_thread/worker.rs:7",
            ),
            ("/rustc/5980/library/core/src/option.rs", "core/option.rs:7"),
            ("/home/a/src/tea/src/routes/blend.rs", "tea/routes/blend.rs:7"),
            ("src/tea.rs", "src/tea.rs:7"),
            ("./malloc/malloc.c", "malloc/malloc.c:7"),
            ("tea.c", "tea.c:7"),
        ] {
            assert_eq!(of(file, 7), right);
        }
        assert_eq!(of("./malloc/malloc.c", 0), "malloc/malloc.c");
    }

    #[test]
    fn many_groups_share_a_line() {
        let (mut profile, symbols) = tea();
        let one = profile.groups[2].clone();
        for n in 0..30 {
            profile.groups.push(dormouse_profile::ProfileGroup { name: format!("g{n}"), ..one.clone() });
        }
        let text = groups("tea", &profile, &symbols, 1, 2);
        assert!(text.contains("13 more groups: 91 ns"), "{text}");
    }
}
