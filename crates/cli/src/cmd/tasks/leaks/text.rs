//! Leaks as tables.

use std::fmt::Write as _;

use clap::builder::styling::Style;

use super::{Leak, Leaks, SpawnLine};
use crate::cmd::tasks::listing::text::{cut, short_name};
use crate::duration::short;
use crate::output::HEAD;
use crate::render::table::Table;
use crate::text::{clean, count};

/// It stands for a site for which there was no room.
const NO_SITE: &str = "(not known)";

/// Both lists; lines are cut off at `width`.
pub(super) fn report(leaks: &Leaks<'_>, width: Option<usize>) -> String {
    let lost: usize = leaks.proven.iter().map(|leak| leak.tasks.len()).sum();
    let head = format!(
        "{}: {} that nothing can wake, {} whose number of tasks keeps growing; times are taken for {}",
        clean(&leaks.who),
        count(lost as u64, "task"),
        count(leaks.suspected.len() as u64, "spawn site"),
        short(leaks.taken.times_ns)
    );
    let mut text = cut(&head, width, HEAD);
    if !leaks.proven.is_empty() {
        text.push_str(&cut(
            "\nproved: all their wakers are gone; only an abort, or the end of their runtime, ends them",
            width,
            Style::new(),
        ));
        let mut table = Table::new([">TASKS", ">OLDEST", "SPAWNED AT", "GROUP"]);
        for leak in &leaks.proven {
            table.row([leak.tasks.len().to_string(), oldest(leak), line(leak), group(leaks, leak)]);
        }
        text.push_str(&rendered(&table, width));
    }
    if !leaks.suspected.is_empty() {
        text.push_str(&cut(
            "\nsuspected: at each look there were more, and those from before are still there",
            width,
            Style::new(),
        ));
        let mut table = Table::new([">GROWN", ">IN", ">TASKS", ">OLDEST", "SPAWNED AT", "GROUP", "WAIT AT"]);
        for leak in &leaks.suspected {
            let growth = leak.growth.unwrap_or_default();
            table.row([
                format!("+{}", growth.tasks),
                short(growth.ns),
                leak.tasks.len().to_string(),
                oldest(leak),
                line(leak),
                group(leaks, leak),
                place(leaks, leak),
            ]);
        }
        text.push_str(&rendered(&table, width));
    }
    if leaks.judged_ns.is_none() {
        let watched = short(leaks.watched_ns);
        let _ = writeln!(
            text,
            "growth is not known: numbers of tasks were compared for {watched}, which is too short"
        );
    }
    text
}

fn rendered(table: &Table, width: Option<usize>) -> String {
    let mut rendered = table.render(Style::new());
    let rows = rendered.split_off(rendered.find('\n').map_or(0, |end| end + 1));
    cut(&rendered, width, HEAD) + &cut(&rows, width, Style::new())
}

fn oldest(leak: &Leak<'_>) -> String {
    leak.oldest_ns().map(short).unwrap_or_default()
}

fn line(leak: &Leak<'_>) -> String {
    leak.line.as_ref().map_or_else(|| NO_SITE.to_owned(), SpawnLine::short)
}

fn group(leaks: &Leaks<'_>, leak: &Leak<'_>) -> String {
    let most = leak.most(|task| Some(task.group));
    most.map(|(group, more)| short_name(leaks.group(group)) + &and_more(more)).unwrap_or_default()
}

/// The place of most of its tasks.
fn place(leaks: &Leaks<'_>, leak: &Leak<'_>) -> String {
    let most = leak.place().and_then(|(place, more)| Some(leaks.places.at(place)? + &and_more(more)));
    most.unwrap_or_default()
}

fn and_more(more: usize) -> String {
    if more == 0 { String::new() } else { format!(" and {more} more") }
}
