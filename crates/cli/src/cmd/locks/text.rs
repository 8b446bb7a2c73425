//! The list as text.

use std::fmt::Write as _;

use dormouse_protocol::{LockLongestRow, LockPlaceRow, LockUserRow, WireHeldBy};

use super::deadlocks::Stuck;
use super::listing::{Holder, LockLine, LockListing};
use crate::duration::{short, short_of};
use crate::output::{BAD, DIM, HEAD};
use crate::render::frame::CodeFrame;
use crate::render::table::Table;
use crate::text::{clean, count};
use crate::waiting::place::stack;
use crate::waiting::queues::TaskQueue;

/// The groups that a cell names.
const NAMED: usize = 2;
/// The lines of the table of present waits.
const PRESENT: usize = 10;

pub(super) fn report(listing: &LockListing<'_>, limit: usize) -> String {
    let mut text = String::new();
    for deadlock in &listing.deadlocks {
        let _ = match &deadlock.unsure {
            None => writeln!(text, "{BAD}deadlock{BAD:#}"),
            Some(why) => writeln!(text, "{BAD}may be a deadlock{BAD:#}: {why}"),
        };
        for of in &deadlock.blocked {
            stuck(&mut text, of);
        }
        text.push('\n');
    }
    if listing.lines.is_empty() {
        let _ = writeln!(text, "no lock of dormouse::sync was taken in {}", short_of(listing.length));
    } else {
        text.push_str(&table(listing, limit).render(HEAD));
        let more = listing.lines.len().saturating_sub(limit) as u64 + listing.omitted;
        if more > 0 {
            let _ = writeln!(text, "{DIM}and {}{DIM:#}", count(more, "more line"));
        }
    }
    present(&mut text, listing);
    for (lost, what) in [
        (listing.lost_holders, "there was no room for a lock's holder"),
        (listing.lost_lines, "there was no room to count that a lock was taken"),
        (listing.lost_waits, "there was no room for a wait, which is not shown before it is over"),
    ] {
        if lost > 0 {
            let _ = writeln!(text, "{} {what}", count(lost, "time"));
        }
    }
    text
}

fn table(listing: &LockListing<'_>, limit: usize) -> Table {
    let mut table = Table::new(["LOCK", "WHERE", ">TAKEN/s", ">WAITED", "BY", "HELD BY", ">P99", "LONGEST"]);
    let seconds = listing.length.as_secs_f64().max(1e-9);
    let rate = |n: u64| n as f64 / seconds;
    for line in listing.lines.iter().take(limit) {
        let waited = line.waits.sum_ns > 0;
        table.row([
            lock(&line.place),
            place(&line.place),
            format!("{:.1}", rate(line.acquisitions)),
            if waited { format!("{}/s", short(rate(line.waits.sum_ns) as u64)) } else { "-".into() },
            named(line.by.iter().map(|(group, ns)| (group_name(group.as_deref()), *ns))),
            named(line.held_by.iter().map(|(by, ns)| (holder(by), *ns))),
            line.waits.quantile_ns(0.99).map(short).unwrap_or_default(),
            longest(line),
        ]);
    }
    table
}

/// The name of a lock: the type of its value, and how the line takes it.
fn lock(of: &LockPlaceRow) -> String {
    if of.name.is_empty() {
        return clean(&of.kind);
    }
    let name = short_type(&clean(&of.name));
    if of.kind == "mutex" { name } else { format!("{name} ({})", clean(&of.kind)) }
}

/// A type without the modules of it and of its parameters.
fn short_type(name: &str) -> String {
    let mut short = String::new();
    for (at, part) in name.split_inclusive(|c: char| "<>,() &[];".contains(c)).enumerate() {
        let from = part.rfind("::").map_or(0, |at| at + 2);
        short.push_str(if at == 0 || from > 0 { &part[from..] } else { part });
    }
    short
}

/// A line, without the directories of its file.
fn place(of: &LockPlaceRow) -> String {
    let file = of.file.rsplit('/').next().unwrap_or(&of.file);
    format!("{}:{}", clean(file), of.line)
}

fn group_name(group: Option<&str>) -> String {
    group.map_or_else(|| "(no group)".to_owned(), clean)
}

fn holder((by, group): &Holder) -> String {
    match by {
        WireHeldBy::Group => group_name(group.as_deref()),
        WireHeldBy::Before => "(before)".to_owned(),
        WireHeldBy::Unknown => "(unknown)".to_owned(),
        WireHeldBy::Others => "(others)".to_owned(),
    }
}

/// The first names; the share of each, if there are several.
fn named(all: impl ExactSizeIterator<Item = (String, u64)> + Clone) -> String {
    let sum: u64 = all.clone().map(|(_, ns)| ns).sum();
    let (is_one, more) = (all.len() == 1, all.len().saturating_sub(NAMED));
    let name = |(name, ns): (String, u64)| {
        if is_one { name } else { format!("{name} {:.0} %", 100.0 * ns as f64 / sum.max(1) as f64) }
    };
    let mut names: Vec<String> = all.take(NAMED).map(name).collect();
    if more > 0 {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

fn longest(line: &LockLine) -> String {
    if line.waits.count() == 0 {
        return String::new();
    }
    let at = |longest: &LockLongestRow| {
        let of = longest.place.as_ref().map(place)?;
        Some(format!("{} at {of}", short(longest.blame.ns)))
    };
    line.longest.as_ref().and_then(at).unwrap_or_else(|| short(line.waits.max_ns))
}

/// The locks and queues for which somebody waits now.
fn present(text: &mut String, listing: &LockListing<'_>) {
    let mut addresses: Vec<u64> = Vec::new();
    for waiter in listing.waiters {
        if !addresses.contains(&waiter.address) {
            addresses.push(waiter.address);
        }
    }
    let (queues, unplaced) = listing.queues.as_ref().map_or((&[][..], 0), |(all, n)| (&all[..], *n));
    let futexes = listing.futexes.as_deref().unwrap_or_default();
    if addresses.is_empty() && queues.is_empty() && futexes.is_empty() {
        return;
    }
    // Of which locks the service left waits out is not known.
    let more = if listing.waiters_omitted > 0 { "+" } else { "" };
    let mut table = Table::new([">WAITING NOW", "LOCK", "WHERE", ">LONGEST", "BY", "HELD BY", "SINCE"]);
    for address in addresses.iter().take(PRESENT) {
        let waiters: Vec<_> = listing.waiters.iter().filter(|user| user.address == *address).collect();
        let holders: Vec<_> = listing.holders.iter().filter(|hold| hold.user.address == *address).collect();
        let Some(first) = waiters.first() else { continue };
        let mut held = holders.iter().map(|hold| user_name(hold.user)).take(NAMED).collect::<Vec<_>>();
        if holders.len() > NAMED {
            held.push(format!("{} more", holders.len() - NAMED));
        }
        if held.is_empty() {
            held.push("(not seen)".to_owned());
        }
        let exact = holders.iter().filter_map(|hold| hold.user.for_ns).max();
        let at_least = holders.iter().filter_map(|hold| hold.at_least_ns).max();
        let since = match (exact, at_least) {
            (exact, Some(ns)) if exact.is_none_or(|exact| exact < ns) => format!("> {}", short(ns)),
            (exact, _) => exact.map(short).unwrap_or_default(),
        };
        table.row([
            format!("{}{more}", waiters.len()),
            lock(&first.place),
            place(&first.place),
            first.for_ns.map(short).unwrap_or_default(),
            named(groups_of(&waiters).into_iter()),
            held.join(", "),
            since,
        ]);
    }
    for queue in queues.iter().take(PRESENT) {
        let by = queue.by.iter().map(|of| (clean(&of.group), of.tasks));
        table.row([
            queue.waiting.to_string(),
            queue_name(queue),
            code_place(&queue.place),
            short(queue.longest_ns),
            named(by),
            holder(&(WireHeldBy::Unknown, None)),
            String::new(),
        ]);
    }
    for futex in futexes.iter().take(PRESENT) {
        let owner = futex.owner_tid.map(|tid| format!("thread {tid}"));
        table.row([
            futex.waiting.to_string(),
            format!("futex {:#x}", futex.address),
            futex.place.as_ref().map(code_place).unwrap_or_default(),
            short(futex.longest_ns),
            named(futex.by.iter().map(|group| (group_name(Some(&**group).filter(|it| !it.is_empty())), 1))),
            owner.unwrap_or_else(|| holder(&(WireHeldBy::Unknown, None))),
            String::new(),
        ]);
    }
    text.push('\n');
    text.push_str(&table.render(HEAD));
    let all = [addresses.len(), queues.len(), futexes.len()];
    let more: usize = all.iter().map(|rows| rows.saturating_sub(PRESENT)).sum();
    if more > 0 {
        let _ = writeln!(text, "{DIM}and {}{DIM:#}", count(more as u64, "more lock or queue"));
    }
    if listing.waiters_omitted > 0 {
        let waits = count(listing.waiters_omitted, "more wait");
        let _ = writeln!(text, "{DIM}and {waits}, the shorter ones{DIM:#}");
    }
    if unplaced > 0 {
        let tasks = count(unplaced, "task");
        let _ = writeln!(text, "{DIM}{tasks} may wait there, too: since before places were noted{DIM:#}");
    }
}

/// How many of these waits are of each group, the largest number first.
fn groups_of(waiters: &[&LockUserRow]) -> Vec<(String, u64)> {
    let mut groups: Vec<(String, u64)> = Vec::new();
    for name in waiters.iter().map(|user| group_name(user.group.as_deref())) {
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, waits)) => *waits += 1,
            None => groups.push((name, 1)),
        }
    }
    groups.sort_by_key(|(_, waits)| std::cmp::Reverse(*waits));
    groups
}

/// The name of a queue of others.
fn queue_name(of: &TaskQueue) -> String {
    let kind = of.kind.word();
    of.pool.map_or_else(|| kind.to_owned(), |pool| format!("{kind} ({pool})"))
}

/// A line of code, or its function where there is no line.
fn code_place(of: &CodeFrame) -> String {
    match (&of.file, of.line) {
        (Some(file), Some(line)) => format!("{}:{line}", clean(file.rsplit('/').next().unwrap_or(file))),
        _ => clean(&of.function),
    }
}

/// A group, its task and its line.
fn user_name(of: &LockUserRow) -> String {
    let group = group_name(of.group.as_deref());
    let who = if of.task == 0 { format!("thread {}", of.tid) } else { format!("task {}", of.task) };
    format!("{group} ({who}) at {}", place(&of.place))
}

/// One of those who wait for one another.
fn stuck(text: &mut String, of: &Stuck<'_>) {
    let for_ns = of.waiter.for_ns.map(|ns| format!(" for {}", short(ns))).unwrap_or_default();
    let (waiter, holder, lock) = (user_name(of.waiter), user_name(of.holder), lock(&of.waiter.place));
    let _ = writeln!(text, "  {waiter} waits{for_ns} for {lock}, held by {holder}");
    if let Some(why) = of.no_stack {
        let _ = writeln!(text, "    {DIM}(no stack: {}){DIM:#}", clean(why));
    }
    // The innermost functions of a task's place only take its waker.
    let own = of.frames.iter().position(|frame| frame.is_own && of.waiter.place.awaited);
    stack(text, &of.frames[own.unwrap_or(0)..]);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anstream::adapter::strip_str;
    use dormouse_protocol::{LockBlockedRow, LockCycleRow, LockReport};

    use super::super::deadlocks::tests;
    use super::super::futexes::FutexWaits;
    use super::super::listing::tests::{blame, place as row_place, row};
    use super::*;
    use crate::waiting::place::tests::frame;
    use crate::waiting::queues::QueueKind;

    fn user(number: u64, task: u64, line: u32, group: &str) -> LockUserRow {
        LockUserRow {
            number,
            address: 4096,
            place: row_place("cache.rs", line, "mutex", "shop::Index"),
            group: Some(group.to_owned()),
            task,
            tid: 9,
            for_ns: (number < 10).then_some(number * 1_000_000),
            timed: false,
        }
    }

    fn text(before: &LockReport, now: &LockReport) -> String {
        let listing = LockListing::new(before, now, Duration::from_secs(2));
        strip_str(&report(&listing, 2)).to_string()
    }

    #[test]
    fn one_row_is_one_line() {
        let index = row_place("cache.rs", 41, "mutex", "alloc::collections::BTreeMap<u32, shop::Index>");
        let mut before_us = row(row_place("config.rs", 7, "read", "shop::Config"), "", 4, &[3_000_000], "");
        before_us.held_by = vec![blame(WireHeldBy::Before, "", 3_000_000)];
        before_us.longest = None;
        let now = LockReport {
            lines: vec![
                row(index.clone(), "POST /orders", 400, &[310_000_000, 2_000_000], "GET /blend"),
                row(index, "GET /menu", 40, &[44_000_000], "GET /blend"),
                before_us,
                row(row_place("pool.rs", 12, "permit", ""), "GET /menu", 9, &[], ""),
            ],
            holders: vec![user(9, 77, 88, "GET /blend")],
            waiters: vec![user(5, 78, 41, "POST /orders"), user(4, 79, 41, "GET /menu")],
            ..LockReport::default()
        };
        insta::assert_snapshot!(text(&LockReport::default(), &now), @r"
        LOCK                  WHERE        TAKEN/s     WAITED  BY                                 HELD BY         P99  LONGEST
        BTreeMap<u32, Index>  cache.rs:41    220.0   178 ms/s  POST /orders 88 %, GET /menu 12 %  GET /blend   310 ms  310 ms at blend.rs:88
        Config (read)         config.rs:7      2.0  1.50 ms/s  (no group)                         (before)    3.00 ms  3.00 ms
        and 1 more line

        WAITING NOW  LOCK   WHERE        LONGEST  BY                                 HELD BY                              SINCE
                  2  Index  cache.rs:41  5.00 ms  POST /orders 50 %, GET /menu 50 %  GET /blend (task 77) at cache.rs:88  9.00 ms
        ");
    }

    #[test]
    fn an_untimed_hold_lasts_since_it_was_seen() {
        // The numbers from 10 on have no time.
        let with = |holders: &[u64]| LockReport {
            holders: holders.iter().map(|number| user(*number, 77, 88, "GET /blend")).collect(),
            waiters: vec![user(5, 78, 41, "POST /orders")],
            ..LockReport::default()
        };
        let since = |before: &[u64], now: &[u64]| {
            let text = text(&with(before), &with(now));
            let last = text.lines().last().unwrap_or_default().trim_end();
            last.rsplit("  ").next().unwrap_or_default().trim().to_owned()
        };
        assert_eq!(since(&[11], &[11]), "> 2.00 s", "a guard that was forgotten, perhaps");
        assert_eq!(since(&[9], &[9]), "9.00 ms");
        assert!(since(&[12], &[11]).ends_with("cache.rs:88"), "another hold");
    }

    #[test]
    fn of_cut_waits_there_are_more() {
        let waiters = vec![user(5, 78, 41, "POST /orders"), user(4, 79, 41, "GET /menu")];
        let now = LockReport { waiters, waiters_omitted: 300, lost_waits: 7, ..LockReport::default() };
        insta::assert_snapshot!(text(&LockReport::default(), &now), @r"
        no lock of dormouse::sync was taken in 2.00 s

        WAITING NOW  LOCK   WHERE        LONGEST  BY                                 HELD BY     SINCE
                 2+  Index  cache.rs:41  5.00 ms  POST /orders 50 %, GET /menu 50 %  (not seen)
        and 300 more waits, the shorter ones
        7 times there was no room for a wait, which is not shown before it is over
        ");
    }

    #[test]
    fn queues_of_others_have_no_holder() {
        let at = |kind, pool, line, by: &[(&str, u64)]| {
            let place = frame("shop::orders", "/src/orders.rs", line);
            let by = by.iter().map(|(group, tasks)| (*group, *tasks));
            TaskQueue::of(kind, pool, place, 5_000_000, by)
        };
        let queues = vec![
            at(QueueKind::Pool, Some("sqlx"), 42, &[("POST /orders", 3), ("GET /menu", 1)]),
            at(QueueKind::Channel, None, 0, &[("GET /tea", 1)]),
        ];
        let report_of = LockReport::default();
        let listing = LockListing::new(&report_of, &report_of, Duration::from_secs(2));
        let futexes = vec![FutexWaits {
            address: 0x7f01_00a0,
            place: Some(frame("shop::menu", "/src/menu.rs", 9)),
            waiting: 2,
            longest_ns: 40_000_000,
            by: vec!["GET /menu".to_owned(), String::new()],
            owner_tid: Some(77),
        }];
        let listing = LockListing { queues: Some((queues, 7)), futexes: Some(futexes), ..listing };
        insta::assert_snapshot!(strip_str(&report(&listing, 2)), @r"
        no lock of dormouse::sync was taken in 2.00 s

        WAITING NOW  LOCK              WHERE         LONGEST  BY                                 HELD BY    SINCE
                  4  pool (sqlx)       orders.rs:42  5.00 ms  POST /orders 75 %, GET /menu 25 %  (unknown)
                  1  full channel      shop::orders  5.00 ms  GET /tea                           (unknown)
                  2  futex 0x7f0100a0  menu.rs:9     40.0 ms  GET /menu 50 %, (no group) 50 %    thread 77
        7 tasks may wait there, too: since before places were noted
        ");
    }

    #[test]
    fn a_deadlock_comes_first() {
        let blocked = |waiter, holder| LockBlockedRow {
            waiter,
            holder,
            no_stack: Some("the thread\x1b has ended".to_owned()),
            ..LockBlockedRow::default()
        };
        let cycle = LockCycleRow {
            blocked: vec![
                blocked(user(1, 77, 41, "GET /menu"), user(11, 78, 90, "GET /blend")),
                blocked(user(2, 78, 91, "GET /blend"), user(12, 77, 40, "GET /menu")),
            ],
        };
        let report = LockReport { cycles: vec![cycle], lost_holders: 3, ..LockReport::default() };
        let now = LockReport { lost_holders: 4, ..report.clone() };
        insta::assert_snapshot!(text(&report, &now), @r"
        deadlock
          GET /menu (task 77) at cache.rs:41 waits for 1.00 ms for Index, held by GET /blend (task 78) at cache.rs:90
            (no stack: the thread\u{1b} has ended)
          GET /blend (task 78) at cache.rs:91 waits for 2.00 ms for Index, held by GET /menu (task 77) at cache.rs:40
            (no stack: the thread\u{1b} has ended)

        no lock of dormouse::sync was taken in 2.00 s
        1 time there was no room for a lock's holder
        ");
        assert!(!text(&LockReport::default(), &report).contains("deadlock"), "it is there once");
        let mut of_tasks = report;
        of_tasks.cycles[0].blocked[0].waiter.place.awaited = true;
        let text = text(&of_tasks, &of_tasks);
        assert!(text.starts_with("may be a deadlock: another future of a task"), "{text}");
    }

    #[test]
    fn those_in_a_deadlock_have_their_functions() {
        let of_thread = tests::row(false, &[7], None);
        let of_task = tests::row(true, &[], None);
        let mut text = String::new();
        super::stuck(&mut text, &tests::stuck(&of_thread));
        super::stuck(&mut text, &tests::stuck(&of_task));
        insta::assert_snapshot!(strip_str(&text), @r"
          GET /menu (thread 9) at cache.rs:41 waits for Index, held by GET /menu (thread 9) at cache.rs:90
            shop::menu (menu.rs:41), in syscall
            shop::main (main.rs:3)
          GET /menu (thread 9) at cache.rs:41 waits for Index, held by GET /menu (thread 9) at cache.rs:90
            shop::menu (menu.rs:41)
            shop::main (main.rs:3)
        ");
    }

    #[test]
    fn types_lose_their_modules() {
        for (name, right) in [
            ("u32", "u32"),
            ("shop::cache::Index", "Index"),
            ("std::collections::HashMap<alloc::string::String, shop::Item>", "HashMap<String, Item>"),
            ("(a::B, &[c::D])", "(B, &[D])"),
        ] {
            assert_eq!(short_type(name), right);
        }
    }
}
