//! Pictures as SVG, drawn from rows.
//!
//! Two kinds: points on lines of their own with one axis below ([`Dots`]), and curves
//! ([`Curves`]). Widths are in percent, heights in pixels, so that a picture fits a phone and its
//! letters stay as large as those around it. A kind of mark differs from the others by shape as
//! well as colour. Each picture has its values in words, for readers that do not see it.

use super::scale::{Axis, Figure, Scale, is_given, name_of, ratio};
use super::write::Html;
use crate::row::Row;

/// The share of the width on either side of an axis, in percent.
const MARGIN: f64 = 4.0;
/// Height of a line of dots.
const LINE: f64 = 36.0;
/// Height of the words below an axis.
const WORDS: f64 = 22.0;
/// Height of curves.
const HEIGHT: f64 = 240.0;

/// Points, line by line.
#[derive(Debug)]
pub(super) struct Dots {
    pub(super) title: &'static str,
    pub(super) scale: Scale,
    /// The meaning of the three marks; empty where there is none.
    pub(super) marks: [&'static str; 3],
    /// A label and the figure of each mark, as [`Figure::of`] reads it.
    pub(super) lines: &'static [[&'static str; 4]],
}

/// Curves over a number.
#[derive(Debug)]
pub(super) struct Curves {
    pub(super) title: &'static str,
    /// The number below.
    pub(super) over: &'static str,
    pub(super) at: &'static [u32],
    pub(super) each: &'static [Curve],
}

/// One curve.
#[derive(Debug)]
pub(super) struct Curve {
    pub(super) label: &'static str,
    pub(super) look: Look,
    /// Figures with spaces and a unit (`3.48 3.33 s`), or a name in which `#` is the number below.
    pub(super) figures: &'static str,
}

/// How marks and curves look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Before a change, or without something.
    Before,
    /// Somebody else's.
    Peer,
    /// Ours, or after a change.
    After,
    /// The origin's figures, before its change.
    OriginBefore,
    /// The origin's figures, after it.
    OriginAfter,
}

impl Curve {
    /// The name of its rows, if it is no origin's.
    pub(super) fn row(&self) -> Option<&'static str> {
        name_of(self.figures).filter(|name| name.contains('#'))
    }
}

const DOTS: [Look; 3] = [Look::Before, Look::Peer, Look::After];

impl Look {
    const fn class(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Peer => "peer",
            Self::After => "after",
            Self::OriginBefore => "origin before",
            Self::OriginAfter => "origin after",
        }
    }

    /// A mark at a place: `x` in percent of the width.
    fn mark(self, html: &mut Html, x: f64, y: f64) {
        if self == Self::Peer {
            html.raw("<line class=\"mark peer\" x1=\"").percent(x).raw("\" x2=\"").percent(x);
            html.raw("\" y1=\"").pixels(y - 6.0).raw("\" y2=\"").pixels(y + 6.0).raw("\"/>");
        } else {
            html.raw("<circle class=\"mark ").text(self.class()).raw("\" cx=\"").percent(x);
            html.raw("\" cy=\"").pixels(y).raw("\" r=\"5\"/>");
        }
    }
}

/// A place of an axis as a share of the width, in percent.
fn across(place: f64) -> f64 {
    MARGIN + place * (100.0 - 2.0 * MARGIN)
}

/// Draws the picture; nothing if no row has a value.
pub(super) fn dots(html: &mut Html, id: &str, dots: &Dots, rows: &[Row]) {
    let figures: Vec<[Option<Figure>; 3]> =
        dots.lines.iter().map(|[_, texts @ ..]| texts.map(|text| Figure::of(text, rows))).collect();
    // An origin's figures alone are no picture of this machine.
    let is_ours = |text: &&str| !is_given(text) && Figure::of(text, rows).is_some();
    if !dots.lines.iter().any(|line| line[1..].iter().any(&is_ours)) {
        return;
    }
    let Some(axis) = Axis::of(dots.scale, figures.iter().flatten().flatten()) else { return };
    let words: Vec<String> = figures.iter().map(in_words).collect();
    let bottom = LINE * dots.lines.len() as f64 + 4.0;
    begin(html, id, dots.title, dots.scale, bottom + WORDS);
    for (line, words) in dots.lines.iter().zip(&words) {
        html.text(line[0]).raw(": ").text(words).raw("; ");
    }
    html.raw("</desc>");
    for (place, words) in axis.ticks() {
        upright(html, across(place), bottom, &words);
    }
    for (number, ((line, figures), words)) in dots.lines.iter().zip(&figures).zip(&words).enumerate() {
        let top = LINE * number as f64;
        html.raw("<text class=\"label\" x=\"0\" y=\"").pixels(top + 13.0).raw("\">").text(line[0]);
        html.raw("</text><text class=\"value\" x=\"100%\" y=\"").pixels(top + 13.0).raw("\">").text(words);
        if let [Some(before), None, Some(after)] = figures
            && let Some(ratio) = ratio(before, after)
        {
            html.raw("<tspan class=\"ratio\">, ").text(ratio).raw("</tspan>");
        }
        html.raw("</text>");
        track(html, &axis, figures, top + 24.0);
    }
    html.raw("</svg>");
    let legend: Vec<(Look, &str)> =
        DOTS.into_iter().zip(dots.marks).filter(|(_, words)| !words.is_empty()).collect();
    end(html, &legend);
}

/// The points of a line, with the way from the first to the last, and the middle half of the values
/// of each.
fn track(html: &mut Html, axis: &Axis, figures: &[Option<Figure>; 3], y: f64) {
    let at = |number: f64| axis.place(number).map(across);
    let stretch = |html: &mut Html, class: &str, from: f64, to: f64| {
        html.raw("<line class=\"").text(class).raw("\" x1=\"").percent(from).raw("\" x2=\"").percent(to);
        html.raw("\" y1=\"").pixels(y).raw("\" y2=\"").pixels(y).raw("\"/>");
    };
    let middles: Vec<f64> = figures.iter().flatten().filter_map(|figure| at(figure.middle)).collect();
    if let [first, .., last] = middles[..] {
        stretch(html, "way", first, last);
    }
    for (look, figure) in DOTS.into_iter().zip(figures) {
        let Some(figure) = figure else { continue };
        if let (Some(low), Some(high)) = (at(figure.low), at(figure.high))
            && high > low
        {
            html.raw("<g class=\"spread\">");
            stretch(html, look.class(), low, high);
            html.raw("</g>");
        }
    }
    for (look, figure) in DOTS.into_iter().zip(figures) {
        if let Some(x) = figure.as_ref().and_then(|figure| at(figure.middle)) {
            look.mark(html, x, y);
        }
    }
}

fn in_words(figures: &[Option<Figure>; 3]) -> String {
    let words: Vec<String> = figures.iter().flatten().map(Figure::words).collect();
    if words.is_empty() {
        return "not available here".to_owned();
    }
    // Somebody else's is nothing that ours has come from.
    words.join(if figures[0].is_some() { " → " } else { ", " })
}

/// Draws the picture; nothing if no curve of ours has a value.
pub(super) fn curves(html: &mut Html, id: &str, curves: &Curves, rows: &[Row]) {
    let drawn: Vec<(&Curve, Vec<Option<Figure>>)> =
        curves.each.iter().map(|curve| (curve, figures_of(curve, curves.at, rows))).collect();
    let is_ours = |(curve, figures): &(&Curve, Vec<Option<Figure>>)| {
        curve.row().is_some() && figures.iter().any(Option::is_some)
    };
    if !drawn.iter().any(is_ours) {
        return;
    }
    let shown = || drawn.iter().filter(|(_, figures)| figures.iter().any(Option::is_some));
    // The middles alone: one wild round would press all curves together.
    let middles: Vec<Figure> =
        shown().flat_map(|(_, figures)| figures.iter().flatten()).map(Figure::alone).collect();
    let Some(up) = Axis::of(Scale::Log, middles.iter()) else { return };
    // From the first number to the last one.
    let ends = [curves.at.first(), curves.at.last()].map(|end| end.map_or(1.0, |end| f64::from(*end).ln()));
    let over = |at: u32| inner((f64::from(at).ln() - ends[0]) / (ends[1] - ends[0]));
    begin(html, id, curves.title, Scale::Log, HEIGHT + WORDS);
    for (curve, figures) in shown() {
        html.text(curve.label).raw(": ");
        for (number, figure) in curves.at.iter().zip(figures) {
            if let Some(figure) = figure {
                html.text(figure.words()).raw(" at ").text(number).raw(", ");
            }
        }
    }
    html.raw("</desc>");
    // Room for a mark at the top and at the bottom.
    let height = |place: f64| 14.0 + (1.0 - place) * (HEIGHT - 24.0);
    for (place, words) in up.ticks() {
        let y = height(place);
        html.raw("<line class=\"rule\" x1=\"0\" x2=\"100%\" y1=\"").pixels(y).raw("\" y2=\"").pixels(y);
        html.raw("\"/><text class=\"tick start\" x=\"0\" y=\"").pixels(y - 3.0).raw("\">").text(words);
        html.raw("</text>");
    }
    let mut last = 0.0;
    for &number in curves.at {
        let x = over(number);
        // Words that would touch are left out.
        if x - last < 6.0 {
            continue;
        }
        last = x;
        html.raw("<text class=\"tick\" x=\"").percent(x).raw("\" y=\"").pixels(HEIGHT + 14.0);
        html.raw("\">").text(short(number)).raw("</text>");
    }
    for (curve, figures) in shown() {
        let place = |(&at, figure): (&u32, &Option<Figure>)| {
            Some((over(at), height(up.place(figure.as_ref()?.middle)?)))
        };
        let points: Vec<(f64, f64)> = curves.at.iter().zip(figures).filter_map(place).collect();
        // Curves know no percent: they are drawn a hundred wide, and stretched.
        html.raw("<svg width=\"100%\" height=\"").pixels(HEIGHT).raw("\" viewBox=\"0 0 100 ").pixels(HEIGHT);
        html.raw("\" preserveAspectRatio=\"none\"><polyline class=\"curve ").text(curve.look.class());
        html.raw("\" points=\"");
        for (x, y) in &points {
            html.pixels(*x).raw(",").pixels(*y).raw(" ");
        }
        html.raw("\"/></svg>");
        for (x, y) in points {
            curve.look.mark(html, x, y);
        }
    }
    html.raw("<text class=\"tick start\" x=\"0\" y=\"").pixels(HEIGHT + 14.0).raw("\">").text(curves.over);
    html.raw("</text></svg>");
    let legend: Vec<(Look, &str)> = shown().map(|(curve, _)| (curve.look, curve.label)).collect();
    end(html, &legend);
}

/// A large number in few letters.
fn short(number: u32) -> String {
    match number {
        1_000_000.. => format!("{}M", number / 1_000_000),
        1_000.. => format!("{}k", number / 1_000),
        _ => number.to_string(),
    }
}

/// A place of the lower axis, beside the words of the one to the left.
fn inner(place: f64) -> f64 {
    16.0 + place * 81.0
}

fn figures_of(curve: &Curve, at: &[u32], rows: &[Row]) -> Vec<Option<Figure>> {
    if curve.row().is_some() {
        return at.iter().map(|n| Figure::of(&curve.figures.replace('#', &n.to_string()), rows)).collect();
    }
    let mut words: Vec<&str> = curve.figures.split(' ').collect();
    let unit = words.pop().unwrap_or_default();
    words.into_iter().map(|number| Figure::of(&format!("{number} {unit}"), &[])).collect()
}

/// A picture up to the values in words.
fn begin(html: &mut Html, id: &str, title: &str, scale: Scale, height: f64) {
    html.raw("<figure><figcaption>").text(title);
    if scale == Scale::Log {
        html.raw(" <small>(logarithmic)</small>");
    }
    html.raw("</figcaption><svg class=\"picture\" role=\"img\" width=\"100%\" height=\"").pixels(height);
    html.raw("\" aria-labelledby=\"").text(id).raw("-t ").text(id).raw("-d\"><title id=\"").text(id);
    html.raw("-t\">").text(title).raw("</title><desc id=\"").text(id).raw("-d\">");
}

fn upright(html: &mut Html, x: f64, bottom: f64, words: &str) {
    html.raw("<line class=\"rule\" x1=\"").percent(x).raw("\" x2=\"").percent(x).raw("\" y1=\"0\" y2=\"");
    html.pixels(bottom).raw("\"/><text class=\"tick\" x=\"").percent(x).raw("\" y=\"").pixels(bottom + 15.0);
    html.raw("\">").text(words).raw("</text>");
}

/// The end of a picture, with the meaning of its marks.
fn end(html: &mut Html, legend: &[(Look, &str)]) {
    html.raw("<ul class=\"legend\">");
    for (look, words) in legend {
        html.raw("<li><svg width=\"28\" height=\"14\" aria-hidden=\"true\"><line class=\"curve ");
        html.text(look.class()).raw("\" x1=\"0\" x2=\"28\" y1=\"7\" y2=\"7\"/>");
        look.mark(html, 50.0, 7.0);
        html.raw("</svg>").text(words).raw("</li>");
    }
    html.raw("</ul></figure>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Spec;

    const DOTS: Dots = Dots {
        title: "A picture",
        scale: Scale::Log,
        marks: ["before", "", "after"],
        lines: &[["origin", "57 ms", "", "1.4 ms"], ["here", "a", "", "b"]],
    };
    const CURVES: Curves = Curves {
        title: "Curves",
        over: "threads",
        at: &[2, 5],
        each: &[
            Curve { label: "origin", look: Look::OriginBefore, figures: "3.48 3.33 s" },
            Curve { label: "here", look: Look::After, figures: "a/#" },
        ],
    };

    fn row(name: &str, values: Result<Vec<f64>, String>) -> Row {
        Row::new(&Spec::new(name, "us"), values)
    }

    fn drawn(draw: impl FnOnce(&mut Html)) -> String {
        let mut html = Html::default();
        draw(&mut html);
        html.finish()
    }

    #[test]
    fn a_line_goes_from_before_to_after() {
        let rows = [row("a", Ok(vec![100.0])), row("b", Ok(vec![10.0, 15.0, 25.0, 30.0]))];
        let svg = drawn(|html| dots(html, "x", &DOTS, &rows));
        assert!(svg.contains("here: 100 µs → 20.0 µs; "), "{svg}");
        assert!(svg.contains("57.0 ms → 1.40 ms<tspan class=\"ratio\">, 41× less</tspan>"), "{svg}");
        assert_eq!(svg.matches("class=\"way\"").count(), 2);
        assert_eq!(svg.matches("<g class=\"spread\"><line class=\"after\"").count(), 1, "of four values");
    }

    #[test]
    fn a_row_without_values_says_so() {
        let rows = [row("a", Ok(vec![100.0])), row("b", Err("no clock".to_owned()))];
        assert!(drawn(|html| dots(html, "x", &DOTS, &rows)).contains(">100 µs</text>"));
        let rows = rows.map(|row| Row { median: None, ..row });
        assert_eq!(drawn(|html| dots(html, "x", &DOTS, &rows)), "", "the origin's alone");
    }

    #[test]
    fn curves_leave_out_what_is_not_there() {
        let rows = [row("a/2", Ok(vec![4.0])), row("a/5", Ok(vec![0.0]))];
        let svg = drawn(|html| curves(html, "x", &CURVES, &rows));
        assert_eq!(svg.matches("class=\"mark after\"").count(), 1 + 1, "one point, one in the legend");
        assert!(svg.contains("3.48 s at 2, 3.33 s at 5"), "{svg}");
        assert_eq!(drawn(|html| curves(html, "x", &CURVES, &[])), "");
    }
}
