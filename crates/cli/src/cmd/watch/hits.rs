//! Hits of a watch for users and programs: a table of places, one line for each hit, JSON.

use std::fmt::Write as _;

use dormouse_protocol::{CoverageRow, HitRow, SiteRow, WireHitStackEnd, WireState};
use serde::Serialize;

use super::places::{CodePlace, Places, SeenThread};
use super::snapshot::{End, WatchSnapshot};
use crate::duration::short;
use crate::output::{DIM, FAIR, GOOD, HEAD};
use crate::render::frame::CodeFrame;
use crate::render::table::Table;
use crate::text::{Clean, clean, count};
use crate::waiting::stacks::{CUT, LOST};

/// Accesses that no debug register sees, in every report.
pub(crate) const BLIND: [&str; 3] =
    ["accesses by the kernel (read(2), io_uring)", "through other mappings of the page", "by devices (DMA)"];

/// Values below this are shown as people count, others as processors do.
const COUNTED: u64 = 1 << 32;

/// The place of a hit whose signal came too late to find it.
const NOWHERE: &str = "0x0";

/// A report in the JSON of `watch`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ReportDocument {
    state: WireState,
    hits: u64,
    delivered: u64,
    passed: u64,
    lost: u64,
    #[serde(flatten)]
    coverage: CoverageRow,
    #[serde(skip_serializing_if = "Option::is_none")]
    over_because: Option<String>,
    /// Why counts and times are those of an earlier report; absent if they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    stale_because: Option<String>,
    /// Per cent of the time.
    armed_percent: f64,
    blind_spots: [&'static str; 3],
    sites: Vec<SiteDocument>,
    hits_at_other_sites: u64,
    /// Why places are unknown; null: they are not.
    counts_only: Option<String>,
    /// Hits that are in no line of `--stream`.
    unprinted: u64,
    /// Why the watch ended; null if it goes on, or reached the requested end.
    end: Option<End>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SiteDocument {
    hits: u64,
    share_percent: f64,
    #[serde(flatten)]
    last: HitDocument,
}

/// A hit in the JSON of `watch`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct HitDocument {
    #[serde(flatten)]
    place: CodePlace,
    group: Option<String>,
    old: Option<u64>,
    new: Option<u64>,
    /// The thread's id as seen from here; null if it could not be determined.
    tid: Option<u32>,
    inner_tid: u32,
    thread: Option<String>,
    task: Option<u64>,
    time_mono_ns: u64,
    stack: Vec<CodePlace>,
    /// How many calls of `stack` lie before those that are left out; null if none are.
    inner: Option<u32>,
    /// How far `stack` leads; null if that is not known.
    stack_end: Option<WireHitStackEnd>,
}

impl ReportDocument {
    pub(crate) fn new(snapshot: &WatchSnapshot, places: &mut Places) -> ReportDocument {
        let row = &snapshot.row;
        let mut site = |site: &SiteRow| SiteDocument {
            hits: site.hits,
            share_percent: percent(site.hits, row.passed),
            last: HitDocument::new(&site.last, places),
        };
        ReportDocument {
            state: row.state,
            hits: row.hits,
            delivered: row.delivered,
            passed: row.passed,
            lost: row.lost,
            coverage: row.coverage,
            over_because: row.over_because.clone(),
            stale_because: row.stale_because.clone(),
            armed_percent: percent(row.coverage.armed_ns, row.coverage.wall_ns),
            blind_spots: BLIND,
            sites: row.sites.iter().map(&mut site).collect(),
            hits_at_other_sites: row.other_sites,
            counts_only: snapshot.counts_only.clone(),
            unprinted: snapshot.unprinted,
            end: snapshot.end,
        }
    }
}

impl HitDocument {
    pub(crate) fn new(hit: &HitRow, places: &mut Places) -> HitDocument {
        let SeenThread { tid, name } = places.thread(hit.tid);
        HitDocument {
            place: places.of_hit(hit.ip),
            group: hit.group.clone(),
            old: hit.old,
            new: hit.new,
            tid,
            inner_tid: hit.tid,
            thread: name,
            task: (hit.task != 0).then_some(hit.task),
            time_mono_ns: hit.mono_ns,
            stack: places.of_stack(hit),
            inner: hit.inner,
            stack_end: hit.end,
        }
    }
}

/// A report as a table of places, as it stands at `now` of `CLOCK_MONOTONIC`, and below it the
/// share of what happened that it shows.
pub(crate) fn report(snapshot: &WatchSnapshot, places: &mut Places, stacks: bool, now: u64) -> String {
    let (row, mut text) = (&snapshot.row, String::new());
    if !row.sites.is_empty() {
        const SITE: usize = 2;
        let titles = [">HITS", ">SHARE", "SITE", "GROUP", "LAST", "THREAD", ">TASK", ">AGO"];
        let mut table = Table::new(titles);
        for site in &row.sites {
            let (place, last) = (places.of_hit(site.last.ip), &site.last);
            let mut lines = functions(&place).into_iter();
            table.row([
                site.hits.to_string(),
                format!("{:.1} %", percent(site.hits, row.passed)),
                lines.next().unwrap_or_default(),
                last.group.as_deref().map_or_else(|| "-".to_owned(), clean),
                values(last),
                thread(&places.thread(last.tid), last.tid),
                if last.task == 0 { "-".to_owned() } else { last.task.to_string() },
                short(now.saturating_sub(last.mono_ns)),
            ]);
            let callers = if stacks { callers(last, places) } else { Vec::new() };
            for line in lines.chain(callers) {
                table.text(SITE, line);
            }
        }
        text.push_str(&table.render(HEAD));
    }
    for line in coverage(snapshot) {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// The lines below a table, without which "no hit" would mean nothing.
fn coverage(snapshot: &WatchSnapshot) -> Vec<String> {
    let row = &snapshot.row;
    let CoverageRow { threads_armed, threads_alive, armed_ns, wall_ns, rests, late, unread, unpassed } =
        row.coverage;
    let mut seen = match row.hits {
        0 => "no hit".to_owned(),
        n => count(n, "hit"),
    };
    // Without a filter the two are read one after the other, and those after the last are left out.
    if snapshot.is_filtered && row.passed < row.delivered {
        let _ = write!(seen, ", {} of {} pass the filters", row.passed, row.delivered);
    }
    if let Some(why) = &snapshot.counts_only {
        let _ = write!(seen, ", {FAIR}counted only: {}{FAIR:#}", Clean(why));
    }
    if snapshot.unprinted > 0 {
        let _ = write!(seen, ", {FAIR}{} not printed one by one{FAIR:#}", snapshot.unprinted);
    }
    if row.lost > 0 {
        let _ = write!(seen, ", {FAIR}{} counted but not looked at{FAIR:#}", row.lost);
    }
    if late > 0 {
        let _ = write!(seen, ", {FAIR}{late} late: their threads block SIGTRAP{FAIR:#}");
    }
    if unread > 0 {
        let _ = write!(seen, ", {FAIR}{unread} without their value: {}{FAIR:#}", snapshot.unread_why());
    }
    if row.other_sites > 0 {
        let _ = write!(seen, ", {} at further places", row.other_sites);
    }
    let is_over = row.state == WireState::Over;
    let is_part = !is_over && threads_armed < threads_alive || armed_ns < wall_ns / 100 * 99;
    let style = if is_part { FAIR } else { DIM };
    let share = format!("{} of {} ({:.0} %)", short(armed_ns), short(wall_ns), percent(armed_ns, wall_ns));
    let threads = match row.state {
        WireState::Over if snapshot.is_at_max => "over by --max: it was armed".to_owned(),
        WireState::Over if row.over_because.is_some() => {
            format!("over: {}; it was armed", Clean(row.over_because.as_deref().unwrap_or_default()))
        }
        WireState::Over => "over: it was armed".to_owned(),
        _ => format!("armed on {threads_armed} of {threads_alive} threads,"),
    };
    let mut lines = vec![seen, format!("{style}{threads} {share}{style:#}")];
    if let Some(why) = &row.stale_because {
        lines.push(format!("{FAIR}counts and times of an earlier report: {}{FAIR:#}", Clean(why)));
    }
    if row.len > 8 && row.sites.iter().any(|site| site.last.new.is_some()) {
        lines.push(format!("{DIM}values are those of the 1 to 8 of {} bytes that were hit{DIM:#}", row.len));
    }
    if let Some(end) = snapshot.end {
        let what = match end {
            End::Exit => "the process has ended",
            End::Exec => "the process executes another program: watch it again",
            End::HungUp => {
                "the process lives, but its dormouse has closed the connection, as where it executes another \
                 program: watch it again"
            }
        };
        lines.push(format!("{FAIR}{what}{FAIR:#}"));
    }
    if unpassed > 0 {
        let hits = count(unpassed, "hit");
        lines.push(format!(
            "{FAIR}{hits} of an exclusive or unknown instruction, which needs a rest to pass: it may have \
             written meanwhile{FAIR:#}"
        ));
    }
    // The others are in the line above.
    if u64::from(rests) > unpassed {
        let times = count(u64::from(rests) - unpassed, "time");
        lines.push(format!("{FAIR}rested {times}: more hits a second than --rate allows{FAIR:#}"));
    }
    lines.push(format!("{DIM}never seen: {}{DIM:#}", BLIND.join(", ")));
    lines
}

/// One hit on one line, and its stack on lines of their own.
pub(crate) fn hit(hit: &HitRow, places: &mut Places, stacks: bool, begun: u64) -> String {
    let place = places.of_hit(hit.ip);
    let function = functions(&place).into_iter().next().unwrap_or_default();
    let seconds = hit.mono_ns.saturating_sub(begun) as f64 / 1e9;
    let thread = thread(&places.thread(hit.tid), hit.tid);
    let group = hit.group.as_deref().map_or_else(|| "-".to_owned(), clean);
    let mut text = format!("{DIM}{seconds:11.6}{DIM:#} {thread:<20} {group:<16} {}  {function}", values(hit));
    for line in if stacks { callers(hit, places) } else { Vec::new() } {
        let _ = write!(text, "\n{:13}{line}", "");
    }
    text
}

/// The calls on a hit's stack, the innermost first, and what is missing of them.
fn callers(hit: &HitRow, places: &mut Places) -> Vec<String> {
    let callers = places.of_stack(hit);
    let inner = hit.inner.map_or(callers.len(), |inner| inner as usize).min(callers.len());
    let (inner, outer) = callers.split_at(inner);
    let missing = |end, text: &str| (hit.end == Some(end)).then(|| format!("  {DIM}{text}{DIM:#}"));
    let cut = missing(WireHitStackEnd::Cut, CUT);
    let lost = missing(WireHitStackEnd::Lost, LOST);
    inner.iter().flat_map(calls).chain(cut).chain(outer.iter().flat_map(calls)).chain(lost).collect()
}

/// The functions at a place, the innermost first.
fn functions(place: &CodePlace) -> Vec<String> {
    if place.addr == NOWHERE {
        return vec!["(unknown: the thread blocks SIGTRAP)".to_owned()];
    }
    if place.frames.is_empty() {
        return vec![clean(place.object.as_deref().unwrap_or(&place.addr))];
    }
    let first = std::iter::once(line(&place.frames[0], ""));
    first.chain(place.frames[1..].iter().map(|frame| line(frame, "  in "))).collect()
}

/// Does what [`functions`] does, for a caller.
fn calls(place: &CodePlace) -> Vec<String> {
    functions(place).into_iter().map(|line| format!("  {DIM}from{DIM:#} {}", line.trim_start())).collect()
}

fn line(frame: &CodeFrame, before: &str) -> String {
    let mut text = format!("{before}{GOOD}{}{GOOD:#}", Clean(&frame.function));
    if let Some(file) = &frame.file {
        let line = frame.line.map(|line| format!(":{line}")).unwrap_or_default();
        let _ = write!(text, " {}{line}", Clean(of_library(file)));
    }
    text
}

/// A file of Rust's own library without the folder of the compiler's build.
fn of_library(file: &str) -> &str {
    file.strip_prefix("/rustc/").and_then(|rest| Some(rest.split_once('/')?.1)).unwrap_or(file)
}

/// `7 -> 8`.
fn values(hit: &HitRow) -> String {
    let show = |value: u64| if value < COUNTED { value.to_string() } else { format!("{value:#x}") };
    match (hit.old, hit.new) {
        (Some(old), Some(new)) => format!("{} -> {}", show(old), show(new)),
        (None, Some(new)) => format!("-> {}", show(new)),
        _ => "-".to_owned(),
    }
}

fn thread(seen: &SeenThread, inner_tid: u32) -> String {
    let number = match seen.tid {
        Some(tid) => crate::text::tid(tid, inner_tid),
        None => format!("? ({inner_tid})"),
    };
    format!("{}/{number}", Clean(seen.name.as_deref().unwrap_or("?")))
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dormouse_protocol::{WatchRow, WireAccess};

    fn snapshot(row: WatchRow) -> WatchSnapshot {
        WatchSnapshot {
            row,
            counts_only: None,
            unprinted: 0,
            copied: Vec::new(),
            end: None,
            is_filtered: true,
            is_outside: false,
            is_at_max: false,
        }
    }

    fn row() -> WatchRow {
        let hit = HitRow {
            ip: 1,
            group: Some("POST /orders".into()),
            old: Some(7),
            new: Some(1 << 40),
            tid: std::process::id(),
            task: 3,
            mono_ns: 1_000_000_000,
            stack: vec![2, 3],
            inner: Some(1),
            end: Some(WireHitStackEnd::Cut),
        };
        WatchRow {
            over_because: None,
            stale_because: None,
            name: "ORDERS".into(),
            addr: 16,
            len: 8,
            access: WireAccess::Write,
            state: WireState::Armed,
            hits: 5,
            delivered: 4,
            passed: 3,
            lost: 1,
            coverage: CoverageRow {
                threads_armed: 2,
                threads_alive: 3,
                armed_ns: 1_000_000_000,
                wall_ns: 4_000_000_000,
                rests: 1,
                late: 1,
                unread: 0,
                unpassed: 0,
            },
            sites: vec![SiteRow { hits: 3, last: hit }],
            other_sites: 0,
            stream: Vec::new(),
        }
    }

    fn places() -> Places {
        let me = crate::target::Proc::system().process(std::process::id()).unwrap();
        Places::of(&me, WireAccess::Write, false)
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn a_table_says_what_it_does_not_show() {
        let text = plain(&report(&snapshot(row()), &mut places(), false, 3_000_000_000));
        for part in [
            "100.0 %  0x1",
            "POST /orders  7 -> 0x10000000000",
            "2.00 s\n",
            "5 hits, 3 of 4 pass the filters, 1 counted but not looked at, 1 late: ",
            "armed on 2 of 3 threads, 1.00 s of 4.00 s (25 %)\n",
            "rested 1 time: ",
            "never seen: accesses by the kernel",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        let coverage = CoverageRow { rests: 2, unpassed: 2, ..row().coverage };
        let text = plain(&report(&snapshot(WatchRow { coverage, ..row() }), &mut places(), false, 0));
        assert!(text.contains("2 hits of an exclusive") && !text.contains("rested"), "{text}");
        let why = Some("it is busy".to_owned());
        let text =
            report(&snapshot(WatchRow { len: 9, stale_because: why, ..row() }), &mut places(), false, 0);
        for part in ["an earlier report: it is busy\n", "the 1 to 8 of 9 bytes that were hit\n"] {
            assert!(plain(&text).contains(part), "no {part:?} in {text}");
        }
        let coverage = CoverageRow { late: 0, ..row().coverage };
        let sites = Vec::new();
        let none = WatchRow { hits: 0, delivered: 0, passed: 0, lost: 0, coverage, sites, ..row() };
        assert!(
            plain(&report(&snapshot(none), &mut places(), false, 0)).starts_with("no hit\narmed on 2 of 3")
        );
    }

    #[test]
    fn callers_make_no_column_wider() {
        let of = |stacks| plain(&report(&snapshot(row()), &mut places(), stacks, 3_000_000_000));
        let text = of(true);
        assert!(text.contains(&format!("\n{:17}{CUT}\n", "")), "{text}");
        let rows = |text: &str| text.lines().take(2).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(rows(&text), rows(&of(false)));
    }

    #[test]
    fn a_hit_is_a_line_and_its_stack() {
        let row = row();
        let of = |stacks| plain(&hit(&row.sites[0].last, &mut places(), stacks, 500_000_000));
        assert!(of(false).starts_with("   0.500000 ") && of(false).ends_with("7 -> 0x10000000000  0x1"));
        let stack = format!("\n               from 0x2\n               {CUT}\n               from 0x3");
        assert!(of(true).ends_with(&stack), "{:?}", of(true));
        let lost = HitRow { inner: None, end: Some(WireHitStackEnd::Lost), ..row.sites[0].last.clone() };
        assert!(
            plain(&hit(&lost, &mut places(), true, 0)).ends_with(&format!("from 0x3\n               {LOST}"))
        );
    }

    #[test]
    fn json_has_units_and_blind_spots() {
        let json = serde_json::to_value(ReportDocument::new(&snapshot(row()), &mut places())).unwrap();
        assert_eq!((&json["armed_percent"], &json["blind_spots"][2]), (&25.0.into(), &BLIND[2].into()));
        let site = &json["sites"][0];
        assert_eq!(
            (&site["share_percent"], &site["addr"], &site["new"]),
            (&100.0.into(), &"0x1".into(), &(1_u64 << 40).into())
        );
        assert_eq!((&site["stack"][0]["addr"], &site["task"]), (&"0x2".into(), &3.into()));
        assert_eq!((&site["inner"], &site["stack_end"]), (&1.into(), &"cut".into()));
    }

    #[test]
    fn a_hit_on_its_way_passes_no_filter() {
        let is_hit = |is_filtered, [hits, passed, lost]: [u64; 3], counts_only: Option<&str>| {
            let row = WatchRow { hits, delivered: hits.saturating_sub(lost + 1), passed, lost, ..row() };
            let counts_only = counts_only.map(str::to_owned);
            WatchSnapshot { counts_only, is_filtered, ..snapshot(row) }.is_hit()
        };
        for (is_filtered, counts, counts_only, right) in [
            (true, [9, 0, 0], None, false),
            (true, [9, 1, 0], None, true),
            (true, [9, 0, 1], None, true),
            (true, [9, 0, 0], Some("no descriptor is left"), true),
            (false, [9, 0, 0], None, true),
            (false, [0, 0, 0], None, false),
        ] {
            assert_eq!(is_hit(is_filtered, counts, counts_only), right, "{is_filtered} {counts:?}");
        }
    }
}
