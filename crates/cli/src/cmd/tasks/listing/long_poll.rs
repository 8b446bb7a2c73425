//! A report on a long poll.

use std::fmt::Write as _;

use dormouse_protocol::{LongPollNowRow, LongPollRow, ThreadSampleRow};
use serde::Serialize;

use crate::duration::{clock_time, short};
use crate::output::{DIM, FAIR, HEAD};
use crate::render::frame::CodeFrame;
use crate::text::{clean, count};
use crate::waiting::place::stack;

/// The report as text.
pub(crate) fn report(row: &LongPollRow, frames: &[CodeFrame]) -> String {
    let time = clock_time(row.at_unix_ns);
    // Milliseconds.
    let time = time.get(..12).unwrap_or(&time);
    let group = if row.group.is_empty() { "(no group)".to_owned() } else { clean(&row.group) };
    let lasted = short(row.lasted_ns);
    let what = if row.over {
        format!("has ended after {lasted}")
    } else {
        format!("lasts for {FAIR}{lasted}{FAIR:#}")
    };
    let thread = format!("{} ({})", clean(&row.thread), row.tid);
    let mut text = format!(
        "{DIM}{time}{DIM:#} {HEAD}{group}{HEAD:#} task {}, thread {thread}: poll {} {what}\n",
        row.task, row.number
    );
    if !row.looks.is_empty() {
        let _ = writeln!(text, "    {}", looks(row));
    }
    if let Some(why) = &row.no_stack {
        let _ = writeln!(text, "    {DIM}(no stack: {}){DIM:#}", clean(why));
    }
    stack(&mut text, frames);
    text
}

/// The calls and states in which its thread was found, and the present one.
fn looks(row: &LongPollRow) -> String {
    let number = row.looks.iter().map(|of| of.looks).sum();
    let found = row.looks.iter().map(|of| format!("{} in {}", clean(&of.within), of.looks));
    let mut text = format!("{}: {}", count(number, "look"), found.collect::<Vec<_>>().join(", "));
    if let Some(now) = &row.now {
        let _ = write!(text, "; now {}", within(now));
    }
    text
}

/// The call with its first arguments, as in
/// `futex(0x7f0100a0, 128, 2), kernel function futex_wait_queue`.
fn within(now: &LongPollNowRow) -> String {
    // Descriptors and flags are small, and addresses are not.
    let argument = |of: &u64| if *of < 0x1_0000 { of.to_string() } else { format!("{of:#x}") };
    let arguments: Vec<_> = now.arguments.iter().map(argument).collect();
    let list = if arguments.is_empty() { String::new() } else { format!("({})", arguments.join(", ")) };
    let function = now.kernel_function.as_deref().map(|name| format!(", kernel function {}", clean(name)));
    format!("{}{list}{}", clean(&now.within), function.unwrap_or_default())
}

/// The report as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LongPollDocument<'a> {
    /// The number of the poll, which all reports on it have.
    poll: u64,
    at_unix_ns: u64,
    group: &'a str,
    task: u64,
    tid: u32,
    thread: &'a str,
    lasted_ns: u64,
    /// Whether `lasted_ns` is exact: times of tasks are taken.
    exact: bool,
    over: bool,
    /// The way by which the stack was found: `tables`, `frame-pointers`, `search`.
    #[serde(skip_serializing_if = "str::is_empty")]
    way: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    no_stack: Option<&'a str>,
    /// The calls and states in which samples since the first report have found the thread: the most
    /// frequent first.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    looks: &'a [ThreadSampleRow],
    /// The last of these samples; absent if the poll is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<&'a LongPollNowRow>,
    /// The innermost function first.
    frames: &'a [CodeFrame],
}

impl<'a> LongPollDocument<'a> {
    pub(crate) fn new(row: &'a LongPollRow, frames: &'a [CodeFrame]) -> Self {
        Self {
            poll: row.number,
            at_unix_ns: row.at_unix_ns,
            group: &row.group,
            task: row.task,
            tid: row.tid,
            thread: &row.thread,
            lasted_ns: row.lasted_ns,
            exact: row.exact,
            over: row.over,
            way: &row.way,
            no_stack: row.no_stack.as_deref(),
            looks: &row.looks,
            now: row.now.as_ref(),
            frames,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waiting::place::tests::frame;

    fn row() -> LongPollRow {
        LongPollRow {
            number: 3,
            at_unix_ns: 3_723_004_000_000,
            tid: 77,
            thread: "worker".into(),
            task: 9,
            group: "GET /tea".into(),
            lasted_ns: 10_400_000,
            way: "tables".into(),
            ..LongPollRow::default()
        }
    }

    fn plain(row: &LongPollRow, frames: &[CodeFrame]) -> String {
        anstream::adapter::strip_str(&report(row, frames)).to_string()
    }

    #[test]
    fn own_functions_follow_the_innermost() {
        let frames = [
            frame("__GI___clock_nanosleep", "", 0),
            frame("std::thread::sleep", "/rustc/1/library/std/src/thread.rs", 9),
            frame("shop::grind", "/src/grind.rs", 12),
            frame("tokio::runtime::task::poll", "", 0),
            frame("shop::brew::{{closure}}", "/src/brew.rs", 30),
        ];
        let right = "01:02:03.004 GET /tea task 9, thread worker (77): poll 3 lasts for 10.4 ms\n    \
                     shop::grind (grind.rs:12), in __GI___clock_nanosleep\n    shop::brew (brew.rs:30)\n";
        assert_eq!(plain(&row(), &frames), right);
        let lack = frame("(caller unknown: register not shown)", "", 0);
        let not_whole = plain(&row(), &[&frames[..], &[lack]].concat());
        assert_eq!(not_whole, format!("{right}    (caller unknown: register not shown)\n"));
        let foreign = plain(&row(), &frames[..2]);
        assert!(foreign.contains("    __GI___clock_nanosleep\n    std::thread::sleep"), "{foreign}");
        let over = plain(&LongPollRow { over: true, ..row() }, &[]);
        assert!(over.ends_with("poll 3 has ended after 10.4 ms\n"), "{over}");
        let why = plain(&LongPollRow { no_stack: Some("it is gone".into()), ..row() }, &[]);
        assert!(why.ends_with("    (no stack: it is gone)\n"), "{why}");
    }

    #[test]
    fn looks_name_calls_with_arguments() {
        let look = |within: &str, looks| ThreadSampleRow { within: within.into(), looks };
        let now = LongPollNowRow {
            within: "futex".into(),
            arguments: vec![0x7f01_00a0, 128, 2],
            kernel_function: Some("futex_wait_queue".into()),
            mutex_owner: None,
        };
        let looks = vec![look("futex", 6), look("on a CPU", 1)];
        let lasts = LongPollRow { looks: looks.clone(), now: Some(now), ..row() };
        let right = "7 looks: futex in 6, on a CPU in 1; now futex(0x7f0100a0, 128, 2), kernel function \
                     futex_wait_queue";
        assert!(plain(&lasts, &[]).contains(&format!("    {right}\n")), "{}", plain(&lasts, &[]));
        let over = plain(&LongPollRow { looks, over: true, ..row() }, &[]);
        assert!(over.ends_with("    7 looks: futex in 6, on a CPU in 1\n"), "{over}");
        let json = serde_json::to_value(LongPollDocument::new(&lasts, &[])).unwrap();
        assert_eq!(json["looks"][0], serde_json::json!({ "within": "futex", "looks": 6 }));
        assert_eq!(json["now"]["arguments"][1], 128);
    }

    #[test]
    fn numbers_have_their_units() {
        let (row, frames) = (row(), [frame("a::b", "/a.rs", 1)]);
        let json = serde_json::to_value(LongPollDocument::new(&row, &frames)).unwrap();
        let right = serde_json::json!({
            "poll": 3, "at_unix_ns": 3_723_004_000_000_u64, "group": "GET /tea", "task": 9, "tid": 77,
            "thread": "worker", "lasted_ns": 10_400_000, "exact": false, "over": false, "way": "tables",
            "frames": [{ "function": "a::b", "inlined": false, "file": "/a.rs", "line": 1 }],
        });
        assert_eq!(json, right);
    }
}
