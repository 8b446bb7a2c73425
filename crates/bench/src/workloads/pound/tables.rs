//! The origin's tables with ours beside them. Cells are means, as the origin's are; of how far an answer is off, medians,
//! and the largest of all rounds where it says max.

use super::drive::Kind;
use super::{THREADS, error, gain, origin};
use crate::report::{Row, find};
use crate::table::{Table, value};

/// Heading of what `before_after` fills.
const ORIGIN: [&str; 4] = ["threads", "origin", "patched", "gain"];

pub(super) fn all(rows: &[Row]) -> [Table; 8] {
    [
        gettime(rows),
        stale(rows),
        behind(rows),
        times(rows),
        hardware(rows, "cycles", &origin::CYCLES),
        hardware(rows, "l1-misses", &origin::L1_MISSES),
        history(rows, Kind::ClockGettime, &origin::HISTORY_GETTIME),
        history(rows, Kind::Times, &origin::HISTORY_TIMES),
    ]
}

fn mean(rows: &[Row], name: &str) -> Option<f64> {
    find(rows, name).mean
}

fn seconds(rows: &[Row], kind: Kind, threads: usize) -> Option<f64> {
    mean(rows, &format!("pound/{}/{threads}", kind.name()))
}

fn percent(gain: Option<f64>) -> String {
    gain.map_or_else(|| "-".to_owned(), |gain| format!("{gain:.2}%"))
}

/// The origin's figures of a line.
fn before_after(threads: usize, figures: origin::Pair, digits: usize) -> Vec<String> {
    let origin::Pair { before, after, gain } = figures;
    let cells = [format!("{before:.digits$}"), format!("{after:.digits$}"), percent(Some(gain))];
    std::iter::once(threads.to_string()).chain(cells).collect()
}

fn gettime(rows: &[Row]) -> Table {
    let kinds =
        [Kind::Process, Kind::ProcessExact, Kind::GroupStale, Kind::GroupFresh, Kind::GroupFreshPrefetch];
    let mut heading = ORIGIN.to_vec();
    heading.push(Kind::ClockGettime.name());
    heading.extend(
        ["process", "process-exact", "group-stale", "group-fresh", "prefetch"]
            .into_iter()
            .flat_map(|name| [name, "gain"]),
    );
    let mut table = Table::new(
        Some("pound_clock_gettime: seconds for 5,000,000 calls (origin: 4.7-rc7, patched, gain)"),
        &heading,
    );
    for (threads, figures) in THREADS.into_iter().zip(origin::CLOCK_GETTIME) {
        let mut cells = before_after(threads, figures, 2);
        cells.push(value(seconds(rows, Kind::ClockGettime, threads)));
        for kind in kinds {
            cells.push(value(seconds(rows, kind, threads)));
            cells.push(percent(mean(rows, &format!("gain/{}/{threads}", kind.name()))));
        }
        table.row(cells);
    }
    table
}

/// Nanoseconds and reads.
fn whole(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.0}"))
}

/// Each speed-up with what it costs: what the reader was told, and how far off it was.
fn stale(rows: &[Row]) -> Table {
    let mut heading = ORIGIN.to_vec();
    heading.extend(["group-stale", "told"]);
    heading.extend(error::NAMES.into_iter().flat_map(|name| [name, "max", "outside"]));
    let mut table = Table::new(
        Some(
            "Speed-up of group-stale over clock_gettime, how far its reader was told that it may be behind (ns), and of each answer \
             how far it was from process_exact() (ns) and how often outside of its bound (origin: seconds of 4.7-rc7, patched, gain)",
        ),
        &heading,
    );
    for (threads, figures) in THREADS.into_iter().zip(origin::CLOCK_GETTIME) {
        let speedup = mean(rows, &format!("speedup/group-stale/{threads}"));
        let of = |name, what| find(rows, &format!("pound-error/{name}/{threads}/{what}"));
        let mut cells = before_after(threads, figures, 2);
        cells.push(speedup.map_or_else(|| "-".to_owned(), |times| format!("{times:.1}x")));
        cells.push(whole(of("group-stale", "told-p50").median));
        for name in error::NAMES {
            let outside = of(name, "outside");
            let all = (outside.n > 0).then(|| outside.values.iter().sum());
            cells.extend([of(name, "p50").median, of(name, "max").max, all].map(whole));
        }
        table.row(cells);
    }
    table
}

fn behind(rows: &[Row]) -> Table {
    let mut heading = vec!["threads"];
    heading.extend(error::NAMES);
    heading.extend(["walk", "with prefetch", "gain", "start"]);
    let mut table = Table::new(
        Some(
            "How far each answer is behind process_exact() (ns, at least .. at most), the walk (ns), and the threads' start (ms)",
        ),
        &heading,
    );
    for threads in THREADS {
        let mut cells = vec![threads.to_string()];
        cells.extend(error::NAMES.map(|name| {
            let end = |end: &str| whole(find(rows, &format!("{end}/{name}/{threads}")).median);
            format!("{} .. {}", end("behind-least"), end("behind-most"))
        }));
        let walks = ["no-prefetch", "prefetch"].map(|walk| mean(rows, &format!("walk/{walk}/{threads}")));
        cells.extend(walks.map(value));
        cells.push(percent(mean(rows, &format!("walk-gain/{threads}"))));
        cells.push(value(mean(rows, &format!("start/{threads}"))));
        table.row(cells);
    }
    table
}

fn times(rows: &[Row]) -> Table {
    let mut heading = ORIGIN.to_vec();
    heading.extend(["times", "group-stale", "gain over times"]);
    let mut table = Table::new(
        Some("pound_times: seconds for 5,000,000 calls (origin: 4.7-rc7, patched, gain)"),
        &heading,
    );
    for (threads, figures) in THREADS.into_iter().zip(origin::TIMES) {
        let [times, ours] = [Kind::Times, Kind::GroupStale].map(|kind| seconds(rows, kind, threads));
        let mut cells = before_after(threads, figures, 2);
        cells.extend([value(times), value(ours)]);
        cells.push(percent(times.zip(ours).map(|(times, ours)| gain(times, ours))));
        table.row(cells);
    }
    table
}

fn hardware(rows: &[Row], what: &str, figures: &[origin::Pair; 10]) -> Table {
    let (title, digits) = match what {
        "cycles" => ("Cycles of pound_clock_gettime (origin: before, after, gain)", 0),
        _ => ("L1 misses in percent of loads (origin: before, after, gain)", 2),
    };
    let mut heading = ORIGIN.to_vec();
    heading.extend(["clock_gettime", "group-stale"]);
    let mut table = Table::new(Some(title), &heading);
    for (threads, figures) in THREADS.into_iter().zip(figures) {
        let mut cells = before_after(threads, *figures, digits);
        cells.extend([Kind::ClockGettime, Kind::GroupStale].map(|kind| {
            let row = find(rows, &format!("{what}/{}/{threads}", kind.name()));
            // Why is in the row.
            row.unavailable.map_or_else(|| value(row.mean), |_| "unavailable".to_owned())
        }));
        table.row(cells);
    }
    table
}

fn history(rows: &[Row], kind: Kind, figures: &[[f64; 3]; 10]) -> Table {
    let title = format!("pound_{} across kernels (origin: the figures that its fix was for)", kind.name());
    let mut table = Table::new(
        Some(&title),
        &["threads", "parent of 6e998916df", "6e998916df", "4.7-rc7", "this kernel", "group-stale"],
    );
    for (threads, [parent, itself, later]) in THREADS.into_iter().zip(figures) {
        table.row([
            threads.to_string(),
            format!("{parent:.2}"),
            format!("{itself:.2} ({:.2}%)", gain(*parent, *itself)),
            format!("{later:.2} ({:.2}%)", gain(*parent, *later)),
            value(seconds(rows, kind, threads)),
            value(seconds(rows, Kind::GroupStale, threads)),
        ]);
    }
    table
}
