//! A comparison as a page of HTML: one file that loads nothing, light or dark as the reader's
//! device is set, for phones and paper, too.

use std::fmt::Write as _;

use super::text::{better, family, interval, legend, letter, mean, median, p, shown, summary, title, word};
use super::{Change, Compared, ComparedRow, Comparison, Finding};

const STYLE: &str = include_str!("page.css");

/// Half the width of the picture of a change, and the percents that it stands for.
const HALF: f64 = 60.0;
const PERCENT: f64 = 30.0;

pub(super) fn html(comparison: &Comparison) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=en><meta charset=utf-8>\n\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
         <title>dormouse compare</title>\n<style>\n{STYLE}</style>\n<h1>dormouse compare</h1>\n<dl>\n"
    );
    for (number, side) in comparison.sides.iter().enumerate() {
        let (path, machine) = (escaped(&side.path), escaped(&side.machine.line()));
        _ = writeln!(html, "<dt>{}<dd>{path}<br><small>{machine}</small>", letter(number));
    }
    html += "</dl>\n<ul>\n";
    for sentence in summary(comparison) {
        _ = writeln!(html, "<li>{}", escaped(&sentence));
    }
    html += "</ul>\n";
    for compared in &comparison.workloads {
        workload(&mut html, compared, comparison);
    }
    _ = writeln!(
        html,
        "<p>{} A line in the picture is the interval of the change, up to {PERCENT} %.",
        legend(comparison)
    );
    for note in &comparison.notes {
        _ = writeln!(html, "<p>{}", escaped(note));
    }
    html + "</html>\n"
}

fn workload(html: &mut String, compared: &Compared, comparison: &Comparison) {
    _ = write!(
        html,
        "<h2>{}</h2>\n<p>{}\n<div class=wide><table>\n<thead><tr><th>row<th>unit<th>better",
        escaped(&compared.bench),
        escaped(&title(compared)),
    );
    for number in 0..comparison.sides.len() {
        _ = write!(html, "<th>{}", letter(number));
        if number > 0 {
            *html += "<th>change<th class=picture><th>p<th>";
        }
    }
    *html += "\n<tbody>\n";
    for row in &compared.rows {
        let (name, unit) = (escaped(&row.name), escaped(&row.unit));
        _ = write!(html, "<tr><th scope=row>{name}<td>{unit}<td>{}", better(row.better));
        for (number, cell) in row.cells.iter().enumerate() {
            let reason = cell.unavailable.as_deref().map_or_else(String::new, escaped);
            _ = write!(html, "<td title=\"{reason}\">{}", escaped(&median(cell)));
            if number > 0 {
                change(html, row, row.changes.get(number - 1).and_then(Option::as_ref));
            }
        }
        *html += "\n";
    }
    *html += "<tfoot>\n";
    for it in &compared.families {
        _ = write!(html, "<tr><th scope=row>{}<td>{}<td><td>", escaped(&family(it)), escaped(&it.unit));
        for percent in &it.percents {
            _ = write!(html, "<td><td>{}<td><td><td>", mean(*percent));
        }
        *html += "\n";
    }
    *html += "</table></div>\n";
}

fn change(html: &mut String, row: &ComparedRow, change: Option<&Change>) {
    let Some(change) = change else {
        *html += "<td><td><td><td>";
        return;
    };
    let word = word(change.finding);
    _ = write!(
        html,
        "<td title=\"{}\">{}<td class=picture>{}<td>{}<td class=\"finding {word}\">{word}",
        escaped(interval(change).trim()),
        escaped(&shown(change, row)),
        picture(change),
        p(change),
    );
}

/// The interval as a line, the change as a dot; nothing where nothing could be shown.
fn picture(change: &Change) -> String {
    let Some(percent) = change.percent.filter(|_| change.finding != Finding::Few) else {
        return String::new();
    };
    let x = |percent: f64| HALF + (percent / PERCENT).clamp(-1.0, 1.0) * (HALF - 4.0);
    let line = change.low_percent.zip(change.high_percent).map_or_else(String::new, |(low, high)| {
        format!("<line x1={:.1} x2={:.1} y1=8 y2=8 />", x(low), x(high))
    });
    let width = HALF * 2.0;
    format!(
        "<svg class=\"{}\" width={width} height=16 viewBox=\"0 0 {width} 16\" aria-hidden=true>\
         <path d=\"M{HALF} 1V15\"/>{line}<circle cx={:.1} cy=8 r=3 /></svg>",
        word(change.finding),
        x(percent),
    )
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            c => escaped.push(c),
        }
    }
    escaped
}
