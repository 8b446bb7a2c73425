//! A view as text and as JSON.

use serde::Serialize;

use super::model::{Cpu, GroupRow, Inside, Rate, ThreadRow, View};
use crate::duration::short;
use crate::output::HEAD;
use crate::text::{Align, Table, clean, count};

/// What `--json` prints, one a line.
#[derive(Serialize)]
pub(crate) struct Snapshot<'a> {
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) pid: u32,
    pub(crate) name: &'a str,
    #[serde(flatten)]
    pub(crate) view: &'a View,
}

/// The tables of groups and threads below a line about the process.
pub(crate) fn render(who: &str, view: &View) -> String {
    let groups = view.inside.as_ref().map(|inside| format!("{}\n", groups(view, inside).render(HEAD)));
    format!("{}\n{}{}", headline(who, view), groups.unwrap_or_default(), threads(view).render(HEAD))
}

/// The process as a whole.
pub(crate) fn headline(who: &str, view: &View) -> String {
    let inside = match &view.inside {
        None => "threads only, no dormouse in it".to_owned(),
        Some(Inside { keys_on, dropped: 0, .. }) => format!("{} on", count(*keys_on as u64, "key")),
        Some(Inside { keys_on, dropped, .. }) => {
            format!("{} on, {} dropped", count(*keys_on as u64, "key"), count(*dropped, "record"))
        }
    };
    format!("{who}: {:.1} % CPU over {}, {inside}", view.process.cpu_percent, short(view.interval_ns))
}

/// Groups, then what belongs to none, then what all of it should sum up to.
pub(crate) fn groups(view: &View, inside: &Inside) -> Table {
    let mut table = table(&GROUP_COLUMNS, &view.events);
    for group in &inside.groups {
        table.row(group_cells(group));
    }
    table.row(["(unattributed)".into(), percent(inside.unattributed), seconds(inside.unattributed)]);
    table.row(["(process)".into(), percent(view.process), seconds(view.process)]);
    table
}

/// Threads.
pub(crate) fn threads(view: &View) -> Table {
    let mut table = table(&THREAD_COLUMNS, &view.events);
    for thread in &view.threads {
        table.row(thread_cells(thread));
    }
    table
}

/// Titles of the groups' columns before those of events; all but the first hold numbers.
pub(super) const GROUP_COLUMNS: [&str; 7] =
    ["GROUP", "CPU %", "CPU s", "POLLS/s", "ALIVE", "STARTED", "FINISHED"];

/// The same for threads.
pub(super) const THREAD_COLUMNS: [&str; 4] = ["THREAD", "TID", "CPU %", "CPU s"];

fn table(columns: &[&str], events: &[String]) -> Table {
    let titles = columns.iter().map(ToString::to_string).chain(events.iter().map(|event| event_title(event)));
    let align = |at| if at == 0 { Align::Left } else { Align::Right };
    Table::new(titles.enumerate().map(|(at, title)| (title, align(at))))
}

/// The title of an event's column.
pub(super) fn event_title(event: &str) -> String {
    format!("{}/s", clean(event))
}

/// A group's row.
pub(super) fn group_cells(row: &GroupRow) -> Vec<String> {
    let mut cells = vec![clean(&row.name), percent(row.cpu), seconds(row.cpu), rate(row.polls_per_s)];
    cells.extend([row.alive, row.started, row.finished].map(|n| n.to_string()));
    cells.extend(row.events.iter().map(event_cell));
    cells
}

/// A thread's row.
pub(super) fn thread_cells(row: &ThreadRow) -> Vec<String> {
    let mut cells = vec![clean(&row.name), row.tid.to_string(), percent(row.cpu), seconds(row.cpu)];
    cells.extend(row.events.iter().map(event_cell));
    cells
}

fn event_cell(of: &Rate) -> String {
    of.per_s.map_or_else(|| "<not counted>".into(), rate)
}

pub(crate) fn percent(cpu: Cpu) -> String {
    format!("{:.1}", cpu.cpu_percent)
}

pub(crate) fn seconds(cpu: Cpu) -> String {
    format!("{:.3}", cpu.cpu_ns as f64 / 1e9)
}

/// With a decimal only where it says something.
pub(crate) fn rate(per_second: f64) -> String {
    let places = usize::from(per_second < 100.0);
    format!("{per_second:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::top::model::tests::pair;

    #[test]
    fn groups_sum_up_to_the_process_before_the_readers_eyes() {
        let (before, after) = pair();
        let text = render("tea (process 7)", &View::between(&before, &after, &[]));
        let text = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(
            text,
            "\
tea (process 7): 100.0 % CPU over 500 ms, 3 keys on, 4 records dropped
GROUP           CPU %  CPU s  POLLS/s  ALIVE  STARTED  FINISHED
POST /brew       80.2  0.401      100      1        3         2
GET /menu        20.0  0.150     2000      1        3         2
idle              0.0  0.020      0.0      1        3         2
(unattributed)    0.0  0.029
(process)       100.0  0.600

THREAD  TID  CPU %  CPU s
main     10   82.0  0.500
worker   11    0.0  0.000
"
        );
    }

    #[test]
    fn json_has_the_same_figures_with_units_in_their_names() {
        let (before, after) = pair();
        let view = View::between(&before, &after, &[]);
        let json =
            serde_json::to_value(Snapshot { kind: "snapshot", pid: 7, name: "tea", view: &view }).unwrap();
        assert_eq!((&json["type"], &json["pid"]), (&"snapshot".into(), &7.into()));
        assert_eq!(json["interval_ns"], 500_000_000);
        assert_eq!(json["unattributed"], serde_json::json!({"cpu_percent": 0.0, "cpu_ns": 29_000_000}));
        assert_eq!(json["groups"][1]["polls_per_s"], 2000.0);
        assert_eq!(json["groups"][1]["cpu_percent"], 20.0);
        assert_eq!(json["threads"][0]["cpu_ns"], 500_000_000);
        assert_eq!(json["records_dropped"], 4);
    }
}
